import torch
from torch.nn import functional

from fedsim.contracts import Batch, Context
from fedsim.training.functional import model_tensors
from fedsim.training.losses import cross_entropy, model_draw, supervised_losses

CONTEXT = Context({}, {}, {}, 1)


def test_only_the_examples_under_the_mask_count():
    logits = torch.randn(7, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = torch.tensor([0, 1, 2, 0, 1, 2, 0])
    mask = torch.tensor([True, False, True, True, False, False, True])
    batch = Batch(torch.zeros(7, 1), y, mask)
    expected = -sum(logits[i].log_softmax(0)[y[i]] for i in (0, 2, 3, 6)) / 4
    torch.testing.assert_close(cross_entropy(logits, batch), expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(cross_entropy(logits, batch, "sum"), 4 * expected, rtol=1e-12, atol=0)


def test_one_loss_and_the_new_buffers(tiny):
    model = tiny.seeded(norm=True).build(tiny.federated().spec)
    tensors = model_tensors(model)
    batch = tiny.table(0, 8).batch()
    losses, buffers = supervised_losses(model)(tensors, batch, CONTEXT)
    hidden = model.body(batch.x)
    standard = (hidden - hidden.mean(0)) / (hidden.var(0, correction=0) + model.norm.eps).sqrt()
    expected = functional.cross_entropy(model.head(torch.tanh(standard)), batch.y)
    torch.testing.assert_close(losses, expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(buffers["norm.running_mean"], 0.1 * hidden.mean(0), rtol=1e-12, atol=0)
    assert buffers["norm.num_batches_tracked"] == 1
    assert tensors["norm.num_batches_tracked"] == 0


def test_a_model_without_noise_has_no_draw():
    assert model_draw(torch.nn.Linear(2, 2)) is None


def test_the_models_noise_comes_from_the_given_stream(tiny):
    model = tiny.seeded(dropout=0.5).build(tiny.federated().spec)
    batch = tiny.table(0, 8).batch()
    draws = [model_draw(model)(batch, torch.Generator().manual_seed(s))[1]["mask"] for s in (1, 1, 2)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
