"""A cell's changes in the tables of the file."""

from fedsim.sweep.axes import union
from fedsim.sweep.merge import changed


def test_another_kind_keeps_the_keys_that_it_shares_and_loses_the_rest():
    base = {"client": {"optimizer": {"kind": "sgd", "learning_rate": 0.1, "momentum": 0.9}, "epochs": 2}}
    after = changed(base, {"client": {"kind": "fedprox", "mu": 0.1, "optimizer": {"kind": "adam"}}})
    assert after["client"] == {
        "kind": "fedprox",
        "mu": 0.1,
        "epochs": 2,
        "optimizer": {"kind": "adam", "learning_rate": 0.1},
    }
    assert base["client"]["optimizer"]["momentum"] == 0.9


def test_the_same_kind_is_changed_key_by_key():
    base = {"strategy": {"kind": "krum", "byzantine": 2}}
    assert changed(base, {"strategy": {"kind": "krum", "byzantine": 3}})["strategy"]["byzantine"] == 3
    assert changed(base, {"strategy": "krum"}) == base


def test_keys_of_no_plugin_stay_so_that_a_misspelt_one_is_refused_later():
    base = {"strategy": {"kind": "krum", "byzantine": 2, "byzantin": 3, "before": ["nnm"]}}
    after = changed(base, {"strategy": "median"})
    assert after["strategy"] == {"kind": "median", "byzantin": 3, "before": ["nnm"]}


def test_who_attacks_and_when_stays_with_another_attack():
    base = {"attack": {"kind": "honest", "malicious": 2, "window": [1, 3], "clean_run": False}}
    after = changed(base, {"attack": {"kind": "fedsim.threat:Passive"}})
    assert after["attack"] == {**base["attack"], "kind": "fedsim.threat:Passive"}


def test_a_string_is_a_kind_where_a_table_is():
    assert changed({"strategy": "krum"}, {"strategy": {"byzantine": 1}}) == {
        "strategy": {"kind": "krum", "byzantine": 1}
    }
    base = {"client": {"optimizer": {"kind": "sgd", "learning_rate": 0.1}}}
    assert changed(base, {"client": {"optimizer": "adam"}})["client"]["optimizer"]["kind"] == "adam"
    assert changed({"name": "a"}, {"data": "digits"}) == {"name": "a", "data": {"kind": "digits"}}


def test_changes_of_two_axes_do_not_depend_on_their_order():
    one, other = {"strategy": "krum"}, {"strategy": {"byzantine": 1}, "rounds": 2}
    assert union(one, other) == union(other, one)
