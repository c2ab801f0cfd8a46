import pytest
import torch
from torch.nn import functional

from fedsim.contracts import Batch
from fedsim.data.examples import Nodes
from fedsim.training.evaluate import evaluate
from fedsim.training.functional import model_tensors


class Masked:
    """A stub of nodes: every batch is the whole graph."""

    def __init__(self, x, y, index):
        self.x, self.y, self.index, self.shown = x, y, index, 0

    def __len__(self):
        return len(self.index)

    def labels(self):
        return self.y[self.index]

    def batch(self, index=None):
        self.shown += 1
        mask = torch.zeros(len(self.y), dtype=torch.bool)
        mask[self.index if index is None else self.index[index]] = True
        return Batch(self.x, self.y, mask)


def test_sums_over_a_split_in_evaluation_mode(tiny):
    model = tiny.seeded(norm=True, dropout=0.5).build(tiny.federated().spec)
    tensors = {name: value + 0.1 for name, value in model_tensors(model).items()}
    data = tiny.table(5, 23)
    scale = (tensors["norm.running_var"] + model.norm.eps).sqrt()
    hidden = data.x @ tensors["body.weight"].T + tensors["body.bias"]
    hidden = (hidden - tensors["norm.running_mean"]) / scale * tensors["norm.weight"] + tensors["norm.bias"]
    logits = torch.tanh(hidden) @ tensors["head.weight"].T + tensors["head.bias"]
    loss = functional.cross_entropy(logits, data.y, reduction="sum").item()
    for batch_size in (1, 5, 23, 1024):
        found = evaluate(model, tensors, {"val": data}, batch_size=batch_size)
        assert found["val_accuracy"].total == (logits.argmax(1) == data.y).sum()
        assert found["val_accuracy"].count == found["val_loss"].count == 23
        assert found["val_loss"].total == pytest.approx(loss, rel=1e-12)
    assert model.training
    assert model.norm.training
    assert model.norm.num_batches_tracked == 0


def test_modes_come_back_one_by_one(tiny):
    model = tiny.TwoLayer(4, 5, norm=True, dropout=0.0).double()
    model.norm.eval()
    evaluate(model, {}, {"test": tiny.table(0, 3)})
    assert model.training
    assert not model.norm.training


def test_an_empty_split_counts_nothing(tiny):
    model = tiny.seeded().build(tiny.federated().spec)
    found = evaluate(model, {}, {"test": tiny.table(0, 0)})
    assert found["test_accuracy"].mean is None
    assert found["test_loss"].mean is None


def test_a_graph_is_shown_once_whatever_the_batch_size(tiny):
    model = tiny.seeded().build(tiny.federated().spec)
    table = tiny.table(0, 30)
    index = torch.arange(3, 20)
    nodes = Masked(table.x, table.y, index)
    found = evaluate(model, {}, {"test": nodes}, batch_size=4)
    expected = evaluate(model, {}, {"test": tiny.Table(table.x[index], table.y[index])})
    assert nodes.shown == 2  # one of them to see that it is a graph
    assert found["test_accuracy"] == expected["test_accuracy"]
    assert found["test_loss"].mean == pytest.approx(expected["test_loss"].mean, rel=1e-12)


def nodes(seed, parts):
    """Nodes of one graph, in parts that hold the same tensors."""
    draws = torch.Generator().manual_seed(seed)
    x, y = torch.randn(20, 4, generator=draws), torch.randint(3, (20,), generator=draws)
    edges = torch.randint(20, (2, 60), generator=draws)
    return [Nodes(x, edges, y, index) for index in torch.randperm(20, generator=draws).split(20 // parts)]


class Counting(torch.nn.Module):
    """Adds up each node's incoming neighbours, and counts how often it is asked."""

    def __init__(self):
        super().__init__()
        self.layer, self.asked = torch.nn.Linear(4, 3), 0

    def forward(self, batch, noise=None):
        self.asked += 1
        sources, targets = batch.edge_index
        return self.layer(batch.x.index_add(0, targets, batch.x[sources]))


def test_splits_of_one_graph_are_answered_at_once():
    model, (train, val, other), (far, *_) = Counting(), nodes(0, 3)[:3], nodes(1, 2)
    found = evaluate(model, {}, {"train": train, "val": val, "far": far, "test": other})
    assert model.asked == 2
    for name, part in {"train": train, "val": val, "far": far, "test": other}.items():
        alone = evaluate(model, {}, {name: part})
        assert found[f"{name}_accuracy"] == alone[f"{name}_accuracy"]
        assert found[f"{name}_loss"] == alone[f"{name}_loss"]
    assert found["far_loss"] != found["train_loss"]
