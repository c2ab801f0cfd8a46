from dataclasses import replace

import pytest
import torch

from fedsim.contracts import ClientData
from fedsim.errors import RoundError
from fedsim.training.optimizers import Adam, Sgd


def is_body(name):
    return name.startswith("body.")


def without_examples(data):
    client = data.clients[0]
    empty = replace(client.train, x=client.train.x[:0], y=client.train.y[:0])
    return replace(data, clients=(ClientData(empty, client.val, client.test, client.spec),))


def matrix_loss(tensors, batch, context):
    return tensors["body.weight"], {}


def strange_buffer(tensors, batch, context):
    return tensors["body.weight"].sum().unsqueeze(0), {"mean": torch.zeros(1)}


def trained_buffer(tensors, batch, context):
    return tensors["body.weight"].sum().unsqueeze(0), {"body.bias": torch.zeros(5)}


HALF = torch.zeros(3, dtype=torch.float16)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"phase": {"trains": lambda name: False}}, "Phase 0 trains no tensor"),
        ({"phase": {"losses": matrix_loss}}, r"losses must have shape \[k\], found \(5, 4\)"),
        ({"phase": {"losses": strange_buffer}}, "buffer 'mean', which is not among the client's tensors"),
        ({"phase": {"losses": trained_buffer}}, "buffer 'body.bias', which is trained"),
        ({"phase": {"project": lambda t, c: {"x": HALF}}}, "projection returned 'x'"),
        ({"extra": lambda c, r: {"half": HALF}}, "trains 'body.weight' .* and 'half' .*need one type"),
        ({"extra": lambda c, r: {"own": torch.zeros(3).double()}}, "trains private tensor 'own'"),
        ({"extra": lambda c, r: {"optimizer/x": HALF}}, "'optimizer/x': names under 'optimizer/'"),
        ({"extra": lambda c, r: {"body.bias": HALF}}, "'body.bias' is private .* program shares it"),
        (
            {
                "extra": lambda c, r: {"head.bias": torch.zeros(4)},
                "program_options": {"is_shared": is_body},
            },
            r"'head.bias' should be torch.float64 \(3,\), found torch.float32 \(4,\)",
        ),
        ({"end": lambda b, a, p, d, s: ({}, {"optimizer/": HALF})}, "names under 'optimizer/'"),
        ({"phase": {"epochs": -1}}, "epochs must be at least 0, found -1"),
        ({"phase": {"batch_size": 0}}, "batch_size must be at least 1 or None, found 0"),
    ],
)
def test_programs_that_contradict_themselves_are_refused(tiny, options, message):
    with pytest.raises(RoundError, match=message):
        tiny.train(tiny.Method(model=tiny.seeded(), **options), tiny.federated((10,)))


def test_a_client_without_examples_is_refused(tiny):
    data = without_examples(tiny.federated((10,)))
    with pytest.raises(RoundError, match="Client 0 has no training examples"):
        tiny.train(tiny.Method(model=tiny.seeded()), data)


def test_an_order_that_does_not_fit_is_refused(tiny):
    data = tiny.federated((10,))
    method = tiny.Method(model=tiny.seeded(norm=True))
    order = tiny.order_of(method, data)
    with pytest.raises(RoundError, match=r"has 63 values of torch.float64, but the order carries \(62,\)"):
        tiny.train(method, data, order=replace(order, vector=order.vector[1:]))
    with pytest.raises(RoundError, match=r"carries .* of torch.float32"):
        tiny.train(method, data, order=replace(order, vector=order.vector.float()))
    with pytest.raises(RoundError, match=r"lacks the shared integer tensor 'norm.num_batches_tracked'"):
        tiny.train(method, data, order=replace(order, integers={}))


def test_kept_state_of_other_tensors_is_refused(tiny):
    data = tiny.federated((10,))
    keep = {"keep_optimizer": True}
    whole = tiny.Method(model=tiny.seeded(), program_options=keep)
    part = tiny.Method(model=tiny.seeded(), program_options=keep, phase={"trains": is_body})
    groups = ((is_body, Sgd(learning_rate=0.3, momentum=0.5)),)
    divided = tiny.Method(model=tiny.seeded(), program_options=keep, phase={"groups": groups})
    kept = tiny.train(whole, data).private
    with pytest.raises(RoundError, match=r"state 'momentum' should have shape \(25,\), found \(43,\)"):
        tiny.train(part, data, kept)
    with pytest.raises(RoundError, match=r"has 2 groups of trained tensors, .* state of 1"):
        tiny.train(divided, data, kept)
    adam = tiny.Method(model=tiny.seeded(), program_options=keep, phase={"optimizer": Adam(learning_rate=1)})
    with pytest.raises(RoundError, match=r"state 'first' should have shape \(43,\), found None"):
        tiny.train(adam, data, kept)


def test_a_finish_that_writes_into_what_clients_share_is_refused(tiny, monkeypatch):
    data, method = tiny.federated((10,)), tiny.Method(model=tiny.seeded())

    def finish(self, before, after, private, downlink, steps):
        next(iter(before.values())).add_(1.0)
        return {}, private

    monkeypatch.setattr(tiny.Method, "finish", finish)
    with pytest.raises(RoundError, match=r"Method.finish changed the received tensor '.*' in place"):
        tiny.train(method, data)
