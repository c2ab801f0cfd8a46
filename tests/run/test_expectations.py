import pytest

from fedsim.config import Experiment
from fedsim.config_tables import Expectation
from fedsim.errors import ConfigError
from fedsim.run.expectations import check, refuse_unknown, unmet

METRICS = {"test_accuracy": {"last": {"value": 0.7}, "best": {"value": 0.9}, "validation_selected": None}}


@pytest.mark.parametrize(
    ("wanted", "met"),
    [
        ({"at_least": 0.7}, True),
        ({"at_least": 0.7001}, False),
        ({"at_most": 0.7}, True),
        ({"at_most": 0.6}, False),
        ({"at_least": 0.9, "statistic": "best"}, True),
        ({"at_least": 0.1, "statistic": "validation_selected"}, False),
        ({"at_least": 0.6, "at_most": 0.8}, True),
    ],
)
def test_bounds_are_inclusive(wanted, met):
    checks = check({"test_accuracy": Expectation(**wanted)}, METRICS)
    assert checks[0]["met"] is met
    assert (unmet(checks) is None) is met


def test_the_line_says_value_and_bound():
    checks = check({"test_accuracy": Expectation(at_least=0.8), "x": Expectation(at_most=1)}, METRICS)
    assert unmet(checks) == (
        "test_accuracy (last) is 0.7, expected at least 0.8; x (last) is not measured, expected at most 1"
    )


def experiment(**expect):
    return Experiment.model_validate(
        {
            "name": "x",
            "seeds": [0],
            "rounds": 40,
            "data": {"kind": "digits"},
            "federation": {"clients": 4, "clients_per_round": 4, "partition": {"kind": "iid"}},
            "model": {"kind": "logistic"},
            "client": {"kind": "supervised"},
            "strategy": {"kind": "fedavg"},
            "attack": {"kind": "badnets", "malicious": 1, "window": [1, 10]},
            "expect": expect,
        }
    )


KNOWN = ["test_accuracy", "test_loss", "train_loss", "attack_success", "attack_lifespan", "detector"]


@pytest.mark.parametrize(
    ("metric", "statistic", "message"),
    [
        ("test_acuracy", "last", r"expect.test_acuracy: .*did you mean 'test_accuracy'"),
        ("train_los", "last", r"expect.train_los: .*did you mean 'train_loss'"),
        ("test_accuracy", "auc50", r"expect.test_accuracy.statistic: .*'auc50'.*known: last, best"),
        ("detector", "last", r"expect.detector.statistic: .*known: precision"),
        ("attack_success", "plus_50", r"expect.attack_success.statistic: .*'plus_50'"),
    ],
)
def test_what_the_run_will_not_tell_is_refused(metric, statistic, message):
    with pytest.raises(ConfigError, match=message):
        refuse_unknown(experiment(**{metric: {"at_least": 0, "statistic": statistic}}), KNOWN)


@pytest.mark.parametrize(
    ("metric", "statistic"),
    [
        ("test_accuracy", "best"),
        ("client_diagnostic_anything", "last"),
        ("attack_success", "plus_25"),
        ("attack_lifespan", "smoothed"),
        ("detector", "f1"),
    ],
)
def test_what_it_tells_may_be_expected(metric, statistic):
    refuse_unknown(experiment(**{metric: {"at_least": 0, "statistic": statistic}}), KNOWN)
