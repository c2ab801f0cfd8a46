"""An order's shared model, as all clients of a round see it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from fedsim.contracts import Tensors, Vector
from fedsim.errors import RoundError
from fedsim.federation import Order
from fedsim.params import Layout


@dataclass(frozen=True)
class Received:
    """What clients of one round share; made once per order and worker.

    Attributes:
        vector: [d], never written to.
        integers: the integer tensors by name.
        layout: of the vector.
        version: of the vector when it came, by which torch counts writes.
    """

    vector: Vector
    integers: Tensors
    layout: Layout
    version: int

    @classmethod
    def of(cls, order: Order, layout: Layout) -> "Received":
        """The order's model in this layout.

        Raises:
            RoundError: the order carries another number or type of values, or lacks an integer tensor.
        """
        if order.vector.shape != (layout.size,) or order.vector.dtype != layout.dtype:
            raise RoundError(
                f"The shared model has {layout.size} values of {layout.dtype}, but the order carries "
                f"{tuple(order.vector.shape)} of {order.vector.dtype}."
            )
        for name, shape, _ in layout.integers:
            if name not in order.integers or tuple(order.integers[name].shape) != shape:
                raise RoundError(f"The order lacks the shared integer tensor {name!r} of shape {shape}.")
        return cls(order.vector, order.integers, layout, order.vector._version)

    def require_unchanged(self) -> None:
        """Nobody's losses, steps or projections wrote into what all clients share.

        Raises:
            RoundError: somebody's did; other clients' results would depend on who came first.
        """
        if self.vector._version != self.version:
            raise RoundError(
                "The received model (context.anchor) was changed in place, which other clients share: let "
                "the client method work on clones."
            )

    @cached_property
    def anchor(self) -> Tensors:
        """The tensors by name, views of the vector."""
        return self.layout.unflatten(self.vector, self.integers)

    @cached_property
    def names(self) -> list[str]:
        """Of the floating-point tensors, in the order of the vector."""
        return [name for name, _, _ in self.layout.floats]

    def is_whole(self, tensors: Tensors, names: Sequence[str]) -> bool:
        """Are the named tensors the very values received, all of them, in their order?"""
        return names == self.names and all(tensors[name] is self.anchor[name] for name in names)

    def check(self, own: Layout) -> None:
        """Compare with a client's own layout.

        Raises:
            RoundError: with the name of the first tensor that differs.
        """
        if own is self.layout or own == self.layout:
            return
        wanted, found = _entries(self.layout), _entries(own)
        for name in wanted | found:
            if wanted.get(name) != found.get(name):
                raise RoundError(
                    f"Shared tensor {name!r}: the server has {wanted.get(name, 'none')}, this client "
                    f"{found.get(name, 'none')}. Clients with different inputs keep such tensors private."
                )
        raise RoundError(f"The client shares its tensors in another order: {[*found]}, not {[*wanted]}.")


def _entries(layout: Layout) -> dict[str, str]:
    return {name: f"{dtype} {shape}" for name, shape, dtype in (*layout.floats, *layout.integers)}
