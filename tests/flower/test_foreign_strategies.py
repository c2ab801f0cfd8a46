"""Flower's own strategies and workflows inside foreign apps: they run, and twice the same."""

from pathlib import Path

import numpy as np
import pytest

from fedsim.engine.options import EngineOptions
from fedsim.flower.foreign.app import run_app
from fedsim.flower.foreign.result import summary_lines

APPS = Path(__file__).parent / "apps"
PRIVATE = "DifferentialPrivacy{}Side{}Clipping"


def play(app, clients, *overrides):
    return run_app(
        APPS / app, clients=clients, engine=EngineOptions(workers=1), overrides=overrides, apart=False
    )


@pytest.mark.parametrize(
    ("strategy", "mod"),
    [
        ("FedAvgM", ""),
        ("FedAdam", ""),
        ("FedYogi", ""),
        ("FedMedian", ""),
        ("FedTrimmedAvg", ""),
        ("FedProx", ""),
        ("QFedAvg", ""),
        ("Krum", ""),
        ("MultiKrum", ""),
        ("Bulyan", ""),
        (PRIVATE.format("Server", "Fixed"), ""),
        (PRIVATE.format("Server", "Adaptive"), ""),
        (PRIVATE.format("Client", "Fixed"), "fixedclipping_mod"),
        (PRIVATE.format("Client", "Adaptive"), "adaptiveclipping_mod"),
    ],
)
def test_a_strategy_of_flowers_runs_and_is_deterministic(strategy, mod):
    first, second = (play("zoo", 8, f"strategy='{strategy}' mod='{mod}'") for _ in range(2))
    assert first.status == "completed", summary_lines(first)
    assert first.strategy == strategy
    assert first.model_sha256 == second.model_sha256 is not None


def test_secure_aggregation_gives_the_mean_up_to_its_quantisation():
    result = play("secure", 5)
    assert result.status == "completed", summary_lines(result)
    # partitions 0 to 4 add their number, a mean of 2 per round; SecAgg+ clips to 8 and quantises to 2**22
    np.testing.assert_allclose(result.arrays["0"], np.full(4, 4.0), rtol=0, atol=0.01)
    np.testing.assert_allclose(result.arrays["1"], np.full((2, 2), 5.0), rtol=0, atol=0.01)
