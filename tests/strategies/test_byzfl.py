"""Against vectors that ByzFL made; reference/make_vectors.py says how."""

import json
from pathlib import Path

import pytest
import torch

from strategies.centred_clipping import CentredClipping
from strategies.geometric_median import GeometricMedian
from strategies.krum import Krum
from strategies.median import Median
from strategies.multi_krum import MultiKrum
from strategies.nnm import NearestNeighbourMixing
from strategies.trimmed_mean import TrimmedMean

CASES = json.loads((Path(__file__).parent / "reference" / "byzfl.json").read_text(encoding="utf-8"))["cases"]
cases = pytest.mark.parametrize("case", CASES, ids=lambda case: f"n={len(case['rows'])},f={case['f']}")


@pytest.fixture
def ask(cohort_of, server_of):
    """What a rule makes of the case's rows, from its first state."""

    def one(rule, case):
        updates = torch.tensor(case["rows"], dtype=torch.float64)
        server = server_of(updates.shape[1])
        return rule.step(rule.init(server.model), cohort_of(updates), server)[1].update.tolist()

    return one


@cases
def test_rules_with_the_same_definition(case, ask):
    for name, rule in {"median": Median(), "trimmed_mean": TrimmedMean(byzantine=case["f"])}.items():
        assert ask(rule, case) == pytest.approx(case[name], rel=1e-12)


@cases
def test_geometric_median_without_weights_started_elsewhere(case, ask):
    rule = GeometricMedian(weighted=False, iterations=2000, tolerance=0.0)
    assert ask(rule, case) == pytest.approx(case["geometric_median"], rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("case", CASES[1:], ids=lambda case: f"n={len(case['rows'])},f={case['f']}")
def test_krum_with_one_neighbour_more_than_in_the_paper(case, ask):
    """ByzFL sums over n - f - 1 others, which is the paper's number for f - 1."""
    f, n = case["f"], len(case["rows"])
    assert ask(Krum(byzantine=f - 1), case) == case["krum"]
    wanted = pytest.approx(case["multi_krum"], rel=1e-12)
    assert ask(MultiKrum(byzantine=f - 1, keep=n - f), case) == wanted


@cases
def test_centred_clipping_over_two_rounds(case, cohort_of, server_of):
    rule, updates = CentredClipping(radius=1.5, iterations=3), torch.tensor(case["rows"], dtype=torch.float64)
    server = server_of(updates.shape[1])
    state, first = rule.step(rule.init(server.model), cohort_of(updates), server)
    _, second = rule.step(state, cohort_of(2 * updates), server)
    assert first.update.tolist() == pytest.approx(case["centred_clipping"], rel=1e-12)
    assert second.update.tolist() == pytest.approx(case["centred_clipping_again"], rel=1e-12)


@cases
def test_nearest_neighbour_mixing(case, server_of):
    updates = torch.tensor(case["rows"], dtype=torch.float64)
    found = NearestNeighbourMixing(byzantine=case["f"]).mix(updates, server_of(updates.shape[1])).rows
    wanted = torch.tensor(case["nnm"], dtype=torch.float64)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
