import pytest
import torch

from clients.models.logistic import Logistic
from clients.models.mlp import Mlp
from fedsim.contracts import Batch, DataSpec


def rows(b: int, *shape: int) -> Batch:
    x = torch.randn(b, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return Batch(x, torch.zeros(b, dtype=torch.int64))


def test_logistic_is_linear_in_the_flattened_input() -> None:
    model = Logistic().build(DataSpec("rows", (2, 3, 4), 5)).double()
    batch = rows(6, 2, 3, 4)
    expected = torch.einsum("bchw,kchw->bk", batch.x, model.head.weight.view(5, 2, 3, 4)) + model.head.bias
    torch.testing.assert_close(model(batch), expected, rtol=1e-12, atol=1e-12)
    assert model.draw(batch, torch.Generator()) == {}


@pytest.mark.parametrize("hidden", [7, (7,), (8, 6, 4)])
def test_mlp_alternates_linear_layers_and_relu(hidden: int | tuple[int, ...]) -> None:
    model = Mlp(hidden=hidden).build(DataSpec("rows", (5,), 3)).double()
    batch, w = rows(4, 5), dict(model.named_parameters())
    expected = batch.x
    for layer in range(1 if isinstance(hidden, int) else len(hidden)):
        expected = expected @ w[f"layers.{layer}.weight"].T + w[f"layers.{layer}.bias"]
        expected = torch.where(expected > 0, expected, 0)
    expected = expected @ w["head.weight"].T + w["head.bias"]
    torch.testing.assert_close(model(batch), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("table", [Logistic(), Mlp(hidden=4)])
def test_on_nodes_the_edges_are_not_looked_at(table: Logistic | Mlp) -> None:
    model = table.build(DataSpec("nodes", (5,), 3)).double()
    batch = rows(6, 5)._replace(edge_index=torch.tensor([[0, 1], [1, 0]]))
    assert torch.equal(model(batch), model(batch._replace(edge_index=torch.tensor([[2, 3], [4, 5]]))))


@pytest.mark.parametrize("table", [Logistic(), Mlp(hidden=(6, 4), dropout=0.5)])
def test_stacked_clients_give_what_each_gives_alone(table: Logistic | Mlp) -> None:
    model = table.build(DataSpec("rows", (5,), 3)).double()
    stacks = {name: torch.stack([v, -v, 2 * v]).detach() for name, v in model.named_parameters()}
    x = rows(12, 5).x.view(3, 4, 5)
    y = torch.zeros(4, dtype=torch.int64)
    noises = [model.draw(Batch(x[c], y), torch.Generator().manual_seed(c)) for c in range(3)]
    stacked_noise = {name: torch.stack([noise[name] for noise in noises]) for name in noises[0]}

    def call(tensors: dict[str, torch.Tensor], inputs: torch.Tensor, noise: dict[str, torch.Tensor]):
        return torch.func.functional_call(model, tensors, (Batch(inputs, y), noise))

    dims = (0, 0, 0 if stacked_noise else None)
    together = torch.func.vmap(call, in_dims=dims)(stacks, x, stacked_noise)
    for c in range(3):
        alone = call({name: stack[c] for name, stack in stacks.items()}, x[c], noises[c])
        torch.testing.assert_close(together[c], alone, rtol=1e-12, atol=1e-12)
