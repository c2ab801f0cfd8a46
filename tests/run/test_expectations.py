import pytest

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


def test_unknown_metrics_are_refused_with_the_nearest():
    with pytest.raises(ConfigError, match=r"expect.test_acuracy: .*did you mean 'test_accuracy'"):
        refuse_unknown({"test_acuracy": Expectation(at_least=0)}, ["test_accuracy", "test_loss"])
    refuse_unknown({"train_anything": Expectation(at_least=0)}, [])
