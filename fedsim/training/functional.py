"""A module as a function of its tensors.

`torch.func.functional_call` does the same and checks more; at a tenth of a millisecond per training
step its bookkeeping costs as much as a small model. Here the places of a module's tensors are found once.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from fedsim.contracts import Batch, Predicate, StackedBatch, Tensors
from fedsim.params import Layout
from fedsim.training.client_view import GraphView, Unstackable, call_stacked


class _Slot(NamedTuple):
    """One entry of a submodule's `_parameters` or `_buffers`, and the tensor's name in the model."""

    owner: dict[str, Any]  # values: tensors, or None for a registered absence, which has no slot
    key: str
    name: str


class _Slots(NamedTuple):
    parameters: tuple[_Slot, ...]  # a parameter used in two places has two slots and one name
    buffers: tuple[_Slot, ...]  # persistent ones
    state: tuple[_Slot, ...]  # each tensor once, in the order of `state_dict`
    names: frozenset[str]  # of the parameters
    layouts: dict[tuple[str, ...], Layout]  # of the shared tensors, by their names


_CACHE: WeakKeyDictionary[nn.Module, _Slots] = WeakKeyDictionary()


class FunctionalModel:
    """Calls a template with given tensors in place of its own, and leaves the template as it was.

    A tensor that is not given keeps the template's value. Not for two threads at once.
    """

    def __init__(self, model: nn.Module, prefix: str = "") -> None:
        """Bind `model`; its tensors are looked up under `prefix` + their names."""
        slots = _slots(model)
        self._model, self._prefix = model, prefix
        self.stacks = hasattr(model, "forward_stacked")  # does it compute many clients at once?
        self._parameters = _prefixed(slots.parameters, prefix)
        self._buffers = _prefixed(slots.buffers, prefix)

    def __call__(
        self, tensors: Tensors, batch: Batch, noise: Tensors | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """(logits, new buffers): the given buffers are not changed; names carry the prefix.

        Raises:
            Unstackable: while mapped over clients with graphs, of a model without `forward_stacked`.
        """
        stacked: StackedBatch | None = getattr(batch, "stacked", None)
        if stacked is not None and self.stacks:
            return self._for_all_clients(tensors, stacked, noise), {}
        if isinstance(batch, GraphView):
            raise Unstackable(f"the model {type(self._model).__name__} has no forward_stacked")
        parameters, buffers = self._parameters, self._buffers
        own = [owner[key] for owner, key, _ in parameters]
        own_buffers = [owner[key] for owner, key, _ in buffers]
        try:
            for owner, key, name in parameters:
                if name in tensors:
                    owner[key] = tensors[name]
            for owner, key, name in buffers:
                owner[key] = tensors.get(name, owner[key]).clone()
            logits = self._model(batch, noise)
            return logits, {name: owner[key] for owner, key, name in buffers if name in tensors}
        finally:
            for (owner, key, _), value in zip(parameters, own, strict=True):
                owner[key] = value
            for (owner, key, _), value in zip(buffers, own_buffers, strict=True):
                owner[key] = value

    def of_all(self, tensors: Tensors, stacked: StackedBatch, noise: Tensors | None) -> Tensor:
        """[k, b, classes], the logits of k clients at once, outside of any map over clients.

        Args:
            tensors: [k, ...] by name.
            stacked: the clients' batches.
            noise: [k, ...] by name, or None.
        """
        count = len(stacked.batch.y)
        found = {}
        for owner, key, name in (*self._parameters, *self._buffers):
            value = tensors.get(name)
            found[name.removeprefix(self._prefix)] = (
                owner[key].expand(count, *owner[key].shape) if value is None else value
            )
        forward: Callable[..., Tensor] = self._model.forward_stacked  # type: ignore[assignment]
        return forward(found, stacked, noise)

    def _for_all_clients(self, tensors: Tensors, stacked: StackedBatch, noise: Tensors | None) -> Tensor:
        slots = (*self._parameters, *self._buffers)
        names = [slot.name.removeprefix(self._prefix) for slot in slots]
        values = [tensors.get(slot.name, slot.owner[slot.key]) for slot in slots]
        return call_stacked(self._model, names, values, stacked, noise or {})


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers by name, detached, each once, in `state_dict` order."""
    return {name: owner[key].detach() for owner, key, name in _slots(model).state}


def tensors_on(device: torch.device, model: nn.Module) -> dict[str, Tensor]:
    """The same, after taking the template to this device; its values stay as they are."""
    tensors = model_tensors(model)
    if any(tensor.device != device for tensor in tensors.values()):
        return model_tensors(model.to(device))
    return tensors


def parameter_names(model: nn.Module) -> frozenset[str]:
    """The names of the model's parameters; a parameter used twice has its first name."""
    return _slots(model).names


def shared_layout(model: nn.Module, is_shared: Predicate) -> Layout:
    """The layout of the model's shared tensors, the same object for the same names."""
    slots = _slots(model)
    names = tuple(slot.name for slot in slots.state if is_shared(slot.name))
    if names not in slots.layouts:
        tensors = model_tensors(model)
        slots.layouts[names] = Layout.of({name: tensors[name] for name in names})
    return slots.layouts[names]


def _slots(model: nn.Module) -> _Slots:
    found = _CACHE.get(model)
    if found is None:
        parameters, buffers = tuple(_parameter_slots(model)), tuple(_buffer_slots(model))
        by_name = {slot.name: slot for slot in (*parameters, *buffers)}
        state = tuple(by_name[name] for name in model.state_dict() if name in by_name)
        names = frozenset(slot.name for slot in parameters)
        found = _CACHE[model] = _Slots(parameters, buffers, state, names, {})
    return found


def _parameter_slots(model: nn.Module) -> Iterator[_Slot]:
    names = {id(value): name for name, value in model.named_parameters()}
    for module in model.modules():
        for key, value in module._parameters.items():
            if value is not None:
                yield _Slot(module._parameters, key, names[id(value)])


def _buffer_slots(model: nn.Module) -> Iterator[_Slot]:
    names = {id(value): name for name, value in model.named_buffers()}
    for module in model.modules():
        for key, value in module._buffers.items():
            if value is not None and key not in module._non_persistent_buffers_set:
                yield _Slot(module._buffers, key, names[id(value)])


def _prefixed(slots: tuple[_Slot, ...], prefix: str) -> tuple[_Slot, ...]:
    if not prefix:
        return slots
    return tuple(slot._replace(name=prefix + slot.name) for slot in slots)
