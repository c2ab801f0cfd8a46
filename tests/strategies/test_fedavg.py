import math
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fedsim.contracts import Cohort, Server
from fedsim.params import Layout
from strategies.fedavg import FedAvg, weighted_mean


def cohort_of(updates: Tensor, examples: list[int]) -> Cohort:
    return Cohort(
        round=1,
        partitions=tuple(range(len(updates))),
        updates=updates,
        examples=torch.tensor(examples),
        layout=Layout.of({"w": updates[0]}),
    )


def server_of(updates: Tensor) -> Server:
    return Server(model=torch.zeros_like(updates[0]), rng=torch.Generator())


def normal(n: int, d: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(n, d, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def exact_mean(updates: Tensor, weights: list[int]) -> list[Fraction]:
    """Algorithm 1's sum over k of n_k / n times w_k, in rational numbers."""
    rows = [[Fraction(value) for value in row] for row in updates.tolist()]
    total = Fraction(sum(weights))
    return [
        sum(k * row[j] for k, row in zip(weights, rows, strict=True)) / total for j in range(len(rows[0]))
    ]


@pytest.mark.parametrize("n", [1, 2, 3, 7, 40])
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, 2**-24), (torch.float64, 1e-15)],  # float32: correctly rounded, half a unit
)
def test_mean_follows_algorithm_1(n: int, dtype: torch.dtype, tolerance: float) -> None:
    updates, weights = normal(n, 6, dtype, seed=n), [(k * 37) % 101 + 1 for k in range(n)]
    found = weighted_mean(updates, torch.tensor(weights))
    assert found.dtype == dtype
    scale = updates.abs().max().item()
    for value, expected in zip(found.tolist(), exact_mean(updates, weights), strict=True):
        assert abs(Fraction(value) - expected) <= tolerance * abs(expected) + Fraction(1e-15 * scale)


def test_cancelling_rows_keep_what_remains_in_float32() -> None:
    updates = torch.tensor([[1e8], [1.0], [-1e8]])
    assert weighted_mean(updates, torch.ones(3)).item() == pytest.approx(1 / 3, rel=1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("weighted", [True, False])
def test_one_client_is_returned_exactly(dtype: torch.dtype, weighted: bool) -> None:
    updates = normal(1, 1000, dtype)
    _, decision = FedAvg(weighted=weighted).step({}, cohort_of(updates, [13]), server_of(updates))
    assert torch.equal(decision.update, updates[0])


def test_weights_are_the_shares_of_the_examples() -> None:
    updates = normal(3, 4, torch.float32)
    _, decision = FedAvg().step({}, cohort_of(updates, [1, 2, 5]), server_of(updates))
    assert decision.weights is not None
    assert decision.weights.tolist() == [0.125, 0.25, 0.625]


def test_unweighted_counts_every_client_alike() -> None:
    updates = normal(4, 5, torch.float64)
    _, decision = FedAvg(weighted=False).step({}, cohort_of(updates, [1, 2, 3, 1000]), server_of(updates))
    torch.testing.assert_close(decision.update, updates.mean(dim=0), rtol=1e-15, atol=1e-15)
    assert decision.weights is not None
    assert decision.weights.tolist() == [0.25] * 4


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float32, 1e-6), (torch.float64, 1e-14)])
def test_order_of_clients_does_not_matter_beyond_rounding(dtype: torch.dtype, rtol: float) -> None:
    updates, examples = normal(9, 50, dtype), torch.arange(1, 10)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(
        weighted_mean(updates[order], examples[order]), weighted_mean(updates, examples), rtol=rtol, atol=rtol
    )


def test_mean_moves_with_its_rows_and_scales_with_them() -> None:
    updates, examples, shift = normal(5, 20, torch.float64), torch.arange(1, 6), torch.arange(20.0).double()
    mean = weighted_mean(updates, examples)
    torch.testing.assert_close(weighted_mean(updates + shift, examples), mean + shift, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(weighted_mean(-3 * updates, examples), -3 * mean, rtol=1e-13, atol=1e-13)


def test_huge_counts_and_values_do_not_overflow() -> None:
    updates = torch.tensor([[3e38], [3e38], [1e38]])
    examples = [2**62, 2**62, 2**62]  # their int64 sum wraps around
    _, decision = FedAvg().step({}, cohort_of(updates, examples), server_of(updates))
    assert decision.update.item() == pytest.approx(7e38 / 3, rel=1e-6)
    wide = torch.full((2, 1), 1.5e308, dtype=torch.float64)
    assert math.isfinite(weighted_mean(wide, torch.tensor([10**6, 10**6])).item())


def test_inputs_stay_as_they_were_and_a_second_call_gives_the_same() -> None:
    updates = normal(4, 8, torch.float32)
    cohort, server = cohort_of(updates.clone(), [1, 2, 3, 4]), server_of(updates)
    first_state, first = FedAvg().step({}, cohort, server)
    _, second = FedAvg().step(first_state, cohort, server)
    assert torch.equal(cohort.updates, updates)
    assert cohort.examples.tolist() == [1, 2, 3, 4]
    assert torch.equal(server.model, torch.zeros(8))
    assert torch.equal(first.update, second.update)
    assert first_state == {} == FedAvg().init(updates[0])


def test_a_model_without_parameters_has_an_empty_mean() -> None:
    assert weighted_mean(torch.zeros(3, 0), torch.ones(3)).shape == (0,)


class Allocations(TorchDispatchMode):
    """Bytes of every storage that an operation makes anew."""

    def __init__(self, *known: Tensor) -> None:
        super().__init__()
        self.known = {tensor.untyped_storage().data_ptr() for tensor in known}
        self.bytes: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, list | tuple) else [result]:
            if isinstance(tensor, Tensor) and tensor.untyped_storage().data_ptr() not in self.known:
                self.bytes.append(tensor.untyped_storage().nbytes())
        return result


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nothing_larger_than_one_float64_row_is_allocated(dtype: torch.dtype) -> None:
    updates = normal(50, 1000, dtype)
    with Allocations(updates) as made:
        weighted_mean(updates, torch.ones(50))
    assert max(made.bytes) == 1000 * 8
