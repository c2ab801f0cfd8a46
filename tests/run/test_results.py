import pytest

from fedsim.contracts import LocalEvaluation
from fedsim.metrics import Sum
from fedsim.run.results import client_metrics, empty_selections, lower_is_better, summarise

FACTS = {"evaluated_clients": "all"}


def record(round_, **metrics):
    return {"round": round_, "metrics": metrics, "clients": {}}


RECORDS = [
    record(1, test_accuracy=0.5, test_loss=2.0),
    record(2, test_accuracy=0.9, test_loss=1.5, client_val_accuracy=0.6),
    record(3, test_accuracy=0.8, test_loss=1.0),
    record(4, test_accuracy=0.7, test_loss=1.2, client_val_accuracy=0.6),
]


def test_last_best_and_selected_values_with_their_rounds():
    metric = summarise(RECORDS, FACTS)["test_accuracy"]
    assert metric["last"] == {"value": 0.7, "round": 4}
    assert metric["best"] == {"value": 0.9, "round": 2}
    assert metric["validation_selected"] == {"value": 0.9, "round": 2, "selected_by": "client_val_accuracy"}


def test_a_loss_is_best_where_it_is_lowest():
    assert summarise(RECORDS, FACTS)["test_loss"]["best"] == {"value": 1.0, "round": 3}
    assert lower_is_better("train_loss")
    assert not lower_is_better("test_accuracy")


def test_without_validation_nothing_is_selected():
    assert summarise(RECORDS[:1], FACTS)["test_accuracy"]["validation_selected"] is None


def test_the_model_the_moment_and_the_clients_are_named():
    found = summarise(RECORDS, FACTS)
    assert found["test_accuracy"]["model"] == "global"
    assert found["client_val_accuracy"]["model"] == "personal"
    assert "val split" in found["client_val_accuracy"]["examples"]
    assert found["client_val_accuracy"]["clients"] == "all"


def test_missing_values_are_skipped():
    found = summarise([record(1, test_accuracy=None), record(2, test_accuracy=0.1)], FACTS)
    assert found["test_accuracy"]["best"]["round"] == 2
    assert "test_loss" not in summarise([record(1, test_loss=None)], FACTS)


def test_pooled_means_count_examples_and_the_spread_counts_clients():
    evaluations = [
        LocalEvaluation(0, {"test_accuracy": Sum(1, 1)}),
        LocalEvaluation(1, {"test_accuracy": Sum(0, 9)}),
        LocalEvaluation(2, {"test_accuracy": Sum(0, 0)}),  # no test examples: nobody's zero
    ]
    pooled, spread = client_metrics(evaluations)
    assert pooled == {"client_test_accuracy": 0.1, "client_mean_test_accuracy": 0.5}
    assert spread["client_test_accuracy"]["clients"] == 2
    assert spread["client_test_accuracy"]["mean_over_clients"] == 0.5
    assert spread["client_test_accuracy"]["quantiles"] == {
        str(level): pytest.approx(1 - (1 - float(level)))
        for level in ("0", "0.1", "0.25", "0.5", "0.75", "0.9", "1")
    }


def test_the_spread_beside_the_last_value_is_that_of_its_round():
    measured = {"clients": 2, "mean_over_clients": 0.5, "quantiles": {"0.5": 0.5}}
    nobody = {"clients": 0, "mean_over_clients": None, "quantiles": {}}  # a cohort without val examples
    records = [
        {"round": 1, "metrics": {"client_val_loss": 0.4}, "clients": {"client_val_loss": measured}},
        {"round": 2, "metrics": {"client_val_loss": None}, "clients": {"client_val_loss": nobody}},
    ]
    assert summarise(records, FACTS)["client_val_loss"]["last"] == {"value": 0.4, "round": 1} | measured


def test_no_examples_at_all():
    pooled, spread = client_metrics([LocalEvaluation(0, {"val_loss": Sum(0, 0)})])
    assert pooled == {"client_val_loss": None, "client_mean_val_loss": None}
    assert spread["client_val_loss"] == {"clients": 0, "mean_over_clients": None, "quantiles": {}}


def test_a_rule_that_trusts_nobody_is_told_of():
    weights = [[0.5, 0.5], [0.0, 0.0], None, [0.0, 0.1], [0.0, 0.0]]
    records = [{"round": at + 1, "weights": found} for at, found in enumerate(weights)]
    assert empty_selections(records) == [2, 5]
