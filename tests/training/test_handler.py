import pickle
from dataclasses import dataclass, replace

import pytest
import torch

from fedsim.contracts import (
    ClientInfo,
    Failure,
    LocalEvaluation,
    LocalProgram,
    LocalUpdate,
    ModelBuilder,
    Phase,
)
from fedsim.engine.protocols import Task, WorkerPlace
from fedsim.errors import DataError
from fedsim.federation import EvaluateOrder, TrainOrder
from fedsim.params import Layout
from fedsim.training.handler import TrainingSetup
from fedsim.training.initial import initial_model
from fedsim.training.losses import supervised_losses
from fedsim.training.method import WithoutState
from fedsim.training.optimizers import Sgd


@dataclass(frozen=True, kw_only=True)
class Plain(WithoutState):
    model: ModelBuilder
    broken: int | None = None

    def program(self, client: ClientInfo, round: int) -> LocalProgram:
        if client.partition == self.broken:
            raise DataError("Row 3 is torn.\nSecond line.")
        model = self.model.build(client.spec)
        phase = Phase(
            trains=lambda name: True,
            losses=supervised_losses(model),
            optimizer=Sgd(learning_rate=0.1),
            epochs=1,
            batch_size=4,
        )
        return LocalProgram(model=model, is_shared=lambda name: True, phases=(phase,))


def handler_and_order(tiny, method, data, kind=TrainOrder, dtype=torch.float64):
    tensors = initial_model(method, data)
    layout = Layout.of(tensors)
    handler = TrainingSetup(method, tiny.SEED, dtype)(data, WorkerPlace(2, tiny.CPU))
    return handler, kind(4, layout.flatten(tensors), layout.integers_of(tensors))


def test_results_come_in_the_order_of_the_items(tiny):
    data = tiny.federated((10, 7, 9))
    handler, order = handler_and_order(tiny, Plain(model=tiny.seeded()), data)
    found = handler.run(order, Task((2, 0), (None, None)))
    assert [result.partition for result in found] == [2, 0]
    assert all(isinstance(result, LocalUpdate) for result in found)
    alone = handler.run(order, Task((0,), (None,)))[0]
    assert torch.equal(alone.update, found[1].update)


def test_one_client_that_raises_costs_only_itself(tiny):
    data = tiny.federated((10, 7, 9))
    method = Plain(model=tiny.seeded(), broken=1)
    for kind, result in ((TrainOrder, LocalUpdate), (EvaluateOrder, LocalEvaluation)):
        handler, order = handler_and_order(tiny, method, data, kind)
        first, second, third = handler.run(order, Task((0, 1, 2), (None,) * 3))
        assert isinstance(first, result)
        assert isinstance(third, result)
        assert isinstance(second, Failure)
        assert (second.round, second.partition, second.worker) == (4, 1, 2)
        assert second.kind == "exception"
        assert second.message == "DataError: Row 3 is torn."
        assert "in program" in second.traceback
        assert pickle.loads(pickle.dumps(second)) == second


def test_a_client_without_examples_is_a_failure(tiny):
    data = tiny.federated((10, 7))
    empty = replace(data.clients[1].train, x=torch.zeros(0, 4), y=torch.zeros(0, dtype=torch.int64))
    data = replace(data, clients=(data.clients[0], replace(data.clients[1], train=empty)))
    handler, order = handler_and_order(tiny, Plain(model=tiny.seeded()), data)
    found = handler.run(order, Task((0, 1), (None, None)))[1]
    assert found.message == "RoundError: Client 1 has no training examples, so it cannot train."


def test_data_are_cast_once_and_results_have_the_layouts_type(tiny):
    data = tiny.federated((10, 7))
    method = Plain(model=tiny.seeded(torch.float32))
    handler, order = handler_and_order(tiny, method, data, dtype=torch.float32)
    found = handler.run(order, Task((0,), (None,)))[0]
    assert found.update.dtype == torch.float32
    assert handler._info(0) is handler._info(0)
    assert handler._info(0).data.test.x.dtype == torch.float32


def test_setup_travels_to_workers(tiny):
    setup = TrainingSetup(Sgd(learning_rate=0.1), 3, torch.float64)
    assert pickle.loads(pickle.dumps(setup)) == setup


def test_the_initial_model_is_a_copy_of_the_shared_part(tiny):
    data = tiny.federated((10, 7))
    method = Plain(model=tiny.seeded(norm=True))
    found = initial_model(method, data)
    template = method.model.build(data.spec)
    assert list(found) == list(template.state_dict())
    found["body.bias"].fill_(9)
    assert not template.body.bias.eq(9).any()


def test_an_unknown_partition_is_a_failure(tiny):
    handler, order = handler_and_order(tiny, Plain(model=tiny.seeded()), tiny.federated((10,)))
    assert isinstance(handler.run(order, Task((5,), (None,)))[0], Failure)
    with pytest.raises(ValueError, match="argument"):
        handler.run(order, Task((0,), ()))


@dataclass(frozen=True, kw_only=True)
class Writing(Plain):
    """Its losses write into what all clients of a worker share."""

    def program(self, client, round):
        program = super().program(client, round)
        losses = program.phases[0].losses

        def writing(tensors, batch, context):
            for value in context.anchor.values():
                value.zero_()
            return losses(tensors, batch, context)

        return replace(program, phases=(replace(program.phases[0], losses=writing),))


@pytest.mark.parametrize("stacked", [False, True])
def test_a_loss_that_writes_into_what_clients_share_is_a_failure_of_all(tiny, stacked):
    data = tiny.federated((10, 7))
    handler, order = handler_and_order(tiny, Writing(model=tiny.seeded()), data)
    handler = TrainingSetup(handler.setup.method, tiny.SEED, torch.float64, stacked=stacked)(
        data, WorkerPlace(0, tiny.CPU)
    )
    found = handler.run(order, Task((0, 1), (None, None)))
    assert [type(result) for result in found] == [Failure, Failure]
    assert all("context.anchor) was changed in place" in result.message for result in found)
