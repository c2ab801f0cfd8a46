import math

import pytest
import torch

from fedsim.errors import RoundError
from fedsim.params import Layout
from strategies.foolsgold import FoolsGold, remember, sybil_weights


def cosine(x, y):
    inner = math.fsum(a * b for a, b in zip(x, y, strict=True))
    return inner / (math.hypot(*x) * math.hypot(*y))


def by_algorithm_1(histories, kappa=1.0):
    """Lines 5 to 24 in their order, with the published code's 0.99 for a weight of 1."""
    n = len(histories)
    similar = [[cosine(x, y) for y in histories] for x in histories]
    largest = [max(similar[i][j] for j in range(n) if j != i) for i in range(n)]
    for i in range(n):
        for j in range(n):
            if i != j and largest[j] > largest[i] > 0:
                similar[i][j] *= largest[i] / largest[j]
    alpha = [1 - max(similar[i][j] for j in range(n) if j != i) for i in range(n)]
    alpha = [min(1.0, max(0.0, value)) for value in alpha]
    alpha = [value / max(alpha) for value in alpha]
    alpha = [0.99 if value == 1 else value for value in alpha]
    return [min(1.0, max(0.0, kappa * (math.log(value / (1 - value)) + 0.5))) for value in alpha]


@pytest.mark.parametrize("kappa", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weights_follow_algorithm_1(seed, kappa, dtype, normal):
    histories = normal(8, 6, dtype, seed=seed) + (seed - 1)  # seeds 2 and 3 point one way, 0 the other
    histories[:3] = histories[0] + 0.3 * normal(3, 6, dtype, seed=10 + seed)
    wanted = by_algorithm_1(histories.double().tolist(), kappa)
    assert sybil_weights(histories, kappa).tolist() == pytest.approx(wanted, rel=1e-6, abs=1e-9)
    assert {0.0, 1.0} != set(wanted) or kappa == 2  # else the logit itself goes unseen


def test_sybils_lose_their_weight_and_honest_clients_keep_theirs(normal):
    histories = normal(10, 60)
    histories[:4] = histories[0] + 1e-3 * normal(4, 60, seed=1)
    weights = sybil_weights(histories)
    assert weights[:4].tolist() == [0] * 4
    assert weights[4:].min() > 0.9


def test_exact_copies_of_one_another_are_not_trusted():
    assert sybil_weights(torch.ones(3, 2)).tolist() == [0, 0, 0]
    weights = sybil_weights(torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]))
    assert weights.tolist() == [0, 0, 1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_histories_that_differ_in_length_alone_are_not_told_apart_by_rounding(dtype, normal):
    lengths = torch.arange(1, 7, dtype=dtype)[:, None] * 0.37
    assert sybil_weights(lengths * normal(1, 50).to(dtype)).tolist() == [0.0] * 6


def test_a_single_client_and_opposite_clients_are_trusted():
    assert sybil_weights(torch.tensor([[1.0, 2.0]])).tolist() == [1]
    assert sybil_weights(torch.tensor([[1.0], [-1.0]])).tolist() == [1, 1]


def test_history_is_kept_per_partition_on_the_output_layer_alone(normal, cohort_of, server_of, layout):
    rule, kept = FoolsGold(), {}
    state = rule.init(torch.zeros(layout.size))
    for number, partitions in enumerate([(2, 5, 7), (0, 5), (2, 7, 9)]):
        updates = normal(len(partitions), layout.size, torch.float32, seed=number)
        state, _ = rule.step(
            state, cohort_of(updates, partitions=partitions), server_of(layout.size, torch.float32)
        )
        for partition, row in zip(partitions, updates, strict=True):
            kept[partition] = kept.get(partition, 0) + row[16:]  # head.weight and head.bias
    assert state["partitions"].tolist() == [0, 2, 5, 7, 9]
    torch.testing.assert_close(state["history"], torch.stack([kept[p] for p in sorted(kept)]))


def test_sybils_are_found_over_rounds_though_they_take_turns(normal, cohort_of, server_of, layout):
    """Two sybils send opposite perturbations that cancel over two rounds: only the history shows them."""
    rule, goal = FoolsGold(), normal(1, layout.size, seed=50)[0]
    state = rule.init(goal)
    for number in range(2):
        updates = normal(6, layout.size, seed=number)
        hidden = 5 * normal(1, layout.size, seed=60)[0] * (-1) ** number
        updates[0], updates[1] = goal + hidden, goal - hidden
        state, decision = rule.step(state, cohort_of(updates), server_of(layout.size))
        assert (decision.weights[:2].max() == 0) == (number == 1)


def test_all_features_on_request(normal, cohort_of, server_of, layout):
    rule = FoolsGold(features="all")
    updates = normal(3, layout.size)
    state, _ = rule.step(rule.init(updates[0]), cohort_of(updates), server_of(layout.size))
    trained = torch.cat([updates[:, :12], updates[:, 16:]], dim=1)  # without BatchNorm's statistics
    assert torch.equal(state["history"], trained)


def test_a_model_without_a_matrix_has_no_output_layer(normal, cohort_of, server_of):
    with pytest.raises(RoundError, match="no weight matrix"):
        FoolsGold().step(FoolsGold().init(torch.zeros(4)), cohort_of(normal(3, 4)), server_of(4))


def test_another_model_than_before_is_refused():
    state = {"partitions": torch.tensor([1]), "history": torch.zeros(1, 7)}
    with pytest.raises(
        RoundError, match="remembers 7 values of each client, but this round's replies have 3"
    ):
        remember(state, (1,), torch.zeros(1, 3))


def test_only_a_layer_s_worth_is_remembered_of_a_large_model(normal, cohort_of, server_of):
    layout = Layout.of({"a.weight": torch.zeros(100, 100), "head.weight": torch.zeros(2, 10)})
    updates = normal(3, layout.size)
    state, _ = FoolsGold().step(
        FoolsGold().init(updates[0]), cohort_of(updates, layout=layout), server_of(layout.size)
    )
    assert state["history"].shape == (3, 20)
