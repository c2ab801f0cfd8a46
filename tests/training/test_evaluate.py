import pytest
import torch
from torch.nn import functional

from fedsim.contracts import Batch
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
        found = evaluate(model, tensors, data, "val", batch_size=batch_size)
        assert found["val_accuracy"].total == (logits.argmax(1) == data.y).sum()
        assert found["val_accuracy"].count == found["val_loss"].count == 23
        assert found["val_loss"].total == pytest.approx(loss, rel=1e-12)
    assert model.training
    assert model.norm.training
    assert model.norm.num_batches_tracked == 0


def test_modes_come_back_one_by_one(tiny):
    model = tiny.TwoLayer(4, 5, norm=True, dropout=0.0).double()
    model.norm.eval()
    evaluate(model, {}, tiny.table(0, 3), "test")
    assert model.training
    assert not model.norm.training


def test_an_empty_split_counts_nothing(tiny):
    model = tiny.seeded().build(tiny.federated().spec)
    found = evaluate(model, {}, tiny.table(0, 0), "test")
    assert found["test_accuracy"].mean is None
    assert found["test_loss"].mean is None


def test_a_graph_is_shown_once_whatever_the_batch_size(tiny):
    model = tiny.seeded().build(tiny.federated().spec)
    table = tiny.table(0, 30)
    index = torch.arange(3, 20)
    nodes = Masked(table.x, table.y, index)
    found = evaluate(model, {}, nodes, "test", batch_size=4)
    expected = evaluate(model, {}, tiny.Table(table.x[index], table.y[index]), "test")
    assert nodes.shown == 2  # one of them to see that it is a graph
    assert found["test_accuracy"] == expected["test_accuracy"]
    assert found["test_loss"].mean == pytest.approx(expected["test_loss"].mean, rel=1e-12)
