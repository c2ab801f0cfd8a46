"""Explanations against explicit kernels and an explicit inverse, and their laws."""

import math

import numpy as np
import pytest
import torch

from fedsim.watermark.explanation import answer_kernel, explain, feature_kernels, projection
from fedsim.watermark.loss import embedding_loss, pcgrad, shares_met

NODES, FEATURES, CLASSES, RIDGE = 9, 14, 3, 0.1


def data(seed=0, nodes=NODES, features=FEATURES, binary=False):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(nodes, features))
    if binary:
        x = (x > 0.8).astype(float)
    logits = rng.normal(size=(nodes, CLASSES))
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return x, p


def slow(x, p):
    """The definition with n x n matrices, vectorised kernels of n^2 entries and an inverse."""
    n, f = x.shape
    c = p.shape[1]
    centre = np.eye(n) - np.ones((n, n)) / n
    x = (x - x.mean()) / x.std(ddof=1)
    p = (p - p.mean()) / p.std(ddof=1)

    def unit(kernel):
        kernel = centre @ kernel @ centre
        norm = math.sqrt((kernel**2).sum())
        return (kernel / norm).reshape(-1) if norm > 1e-9 else np.zeros(n * n)

    columns = np.zeros((n * n, f))
    for k in range(f):
        kernel = np.zeros((n, n))
        for u in range(n):
            for v in range(n):
                kernel[u, v] = math.exp(-((x[u, k] - x[v, k]) ** 2) / (0.2 * f))
        columns[:, k] = unit(kernel)
    answers = np.zeros((n, n))
    for u in range(n):
        for v in range(n):
            answers[u, v] = math.exp(-sum((p[u] - p[v]) ** 2) / (0.2 * c))
    return np.linalg.inv(columns.T @ columns + RIDGE * np.eye(f)) @ columns.T @ unit(answers)


def tensors(*arrays):
    return [torch.from_numpy(one) for one in arrays]


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("shape", [(9, 14), (5, 40), (12, 4)])
def test_the_slow_reference(shape, binary):
    x, p = data(3, *shape, binary=binary)
    found = explain(*tensors(x, p))
    np.testing.assert_allclose(found.numpy(), slow(x, p), rtol=0, atol=1e-9)


@pytest.mark.parametrize("shape", [(9, 14), (5, 40), (12, 4)])
def test_primal_and_dual_are_equal(shape):
    x, p = tensors(*data(1, *shape))
    torch.testing.assert_close(explain(x, p, form="primal"), explain(x, p, form="dual"), rtol=0, atol=1e-13)


def test_a_batch_of_sets_and_the_projection_are_the_same_map():
    pairs = [tensors(*data(seed)) for seed in range(3)]
    x, p = torch.stack([one for one, _ in pairs]), torch.stack([one for _, one in pairs])
    each = torch.stack([explain(*pair) for pair in pairs])
    torch.testing.assert_close(explain(x, p), each, rtol=0, atol=0)
    wanted = torch.tensor([2, 3, 11])
    torch.testing.assert_close(projection(x, wanted).explain(p), each[:, wanted], rtol=0, atol=1e-13)
    small = x[..., :4]  # the primal side
    found = projection(small, torch.tensor([3, 0])).explain(p)
    torch.testing.assert_close(found, explain(small, p)[:, [3, 0]], rtol=0, atol=1e-13)


@pytest.mark.parametrize("features", [5, 14])
def test_gradients_agree_with_finite_differences(features):
    x, p = tensors(*data(2, features=features))
    p.requires_grad_()
    assert torch.autograd.gradcheck(lambda q: explain(x, q), (p,))
    seen = projection(x.unsqueeze(0), torch.arange(features))
    signs = torch.ones(features, dtype=torch.float64)
    signs[::2] = -1
    assert torch.autograd.gradcheck(lambda q: embedding_loss(seen, signs, q.unsqueeze(0), 0.05), (p,))


def test_the_order_of_nodes_does_not_matter():
    x, p = tensors(*data(4))
    order = torch.randperm(NODES, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(explain(x[order], p[order]), explain(x, p), rtol=0, atol=1e-12)


def test_constant_columns_give_exactly_zero():
    x, p = tensors(*data(5, binary=True))
    x[:, 3], x[:, 7] = 0.0, 1.0
    found = explain(x, p)
    assert found[3] == 0
    assert found[7] == 0
    assert int((found != 0).sum()) > 5
    assert projection(x.unsqueeze(0), torch.tensor([3, 7])).matrix.abs().max() == 0
    assert 3 not in feature_kernels(x)[1]


@pytest.mark.parametrize("answers", ["equal", "saturated"])
def test_answers_that_are_all_alike_give_zero_and_a_finite_gradient(answers):
    x, _ = tensors(*data(6))
    p = torch.full((NODES, CLASSES), 1 / CLASSES, dtype=torch.float64)
    if answers == "saturated":
        p = torch.eye(CLASSES, dtype=torch.float64)[torch.zeros(NODES, dtype=torch.int64)]
    p.requires_grad_()
    found = explain(x, p)
    assert not found.any()
    seen = projection(x.unsqueeze(0), torch.arange(FEATURES))
    signs = torch.ones(FEATURES, dtype=torch.float64)
    loss = embedding_loss(seen, signs, p.unsqueeze(0), 0.1)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(0.1)
    assert torch.isfinite(p.grad).all()


def test_a_set_without_varying_features_and_small_coefficients():
    _, p = tensors(*data(7))
    assert not explain(torch.ones(NODES, 5), p).any()
    x, p = tensors(*data(7))
    tiny = explain(x, p, ridge=1e9)  # every coefficient is below 1e-8
    assert not tiny.any()


def test_float32_input_is_computed_in_float64():
    x, p = tensors(*data(8))
    found = explain(x.float(), p.float())
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, explain(x, p), rtol=0, atol=1e-5)
    assert answer_kernel(p).square().sum() == pytest.approx(1.0)


def test_the_loss_is_a_mean_of_hinges():
    x, p = tensors(*data(9))
    e = explain(x, p)
    signs = torch.where(torch.arange(FEATURES) % 3 == 0, 1.0, -1.0).double()
    seen = projection(x.unsqueeze(0), torch.arange(FEATURES))
    by_hand = sum(max(0.0, 0.02 - float(w * one)) for w, one in zip(signs, e, strict=True)) / FEATURES
    assert float(embedding_loss(seen, signs, p.unsqueeze(0), 0.02)) == pytest.approx(by_hand, rel=1e-12)
    met = sum(float(w * one) > 0 for w, one in zip(signs, e, strict=True)) / FEATURES
    assert shares_met(seen, signs, p.unsqueeze(0)) == pytest.approx(met)


def test_pcgrad_removes_only_what_conflicts():
    task, mark = torch.tensor([1.0, 1.0, 0.0]), torch.tensor([-1.0, 0.0, 0.0])
    found = pcgrad(torch.stack([task, mark]))
    by_hand = (task - (-1.0 / 1.0) * mark) + (mark - (-1.0 / 2.0) * task)
    torch.testing.assert_close(found, by_hand)
    agreeing = torch.stack([task, -mark])
    torch.testing.assert_close(pcgrad(agreeing), agreeing.sum(dim=0))
    torch.testing.assert_close(pcgrad(torch.stack([task, torch.zeros(3)])), task)
