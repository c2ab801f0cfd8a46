"""The parts of a client method that most methods do not need."""

import torch

from fedsim.contracts import ClientInfo, ClientMethod, Tensors
from fedsim.errors import RoundError


class WithoutState:
    """Base of methods that add no private tensors and send nothing beside the update."""

    def init(self, client: ClientInfo, rng: torch.Generator) -> Tensors:
        """No private tensors beyond the model's own, which start at the template's values."""
        return {}

    def finish(
        self, before: Tensors, after: Tensors, private: Tensors, downlink: Tensors, steps: int
    ) -> tuple[Tensors, Tensors]:
        """No uplink; the private tensors as training left them."""
        return {}, private


def finished(
    method: ClientMethod, before: Tensors, after: Tensors, private: Tensors, downlink: Tensors, steps: int
) -> tuple[Tensors, Tensors]:
    """What `method.finish` returns.

    Raises:
        RoundError: it wrote into what all clients of a worker share.
    """
    shared = {**before, **downlink}
    versions = [tensor._version for tensor in shared.values()]
    uplink, left = method.finish(before, after, private, downlink, steps)
    for (name, tensor), version in zip(shared.items(), versions, strict=True):
        if tensor._version != version:
            raise RoundError(
                f"{type(method).__name__}.finish changed the received tensor {name!r} in place, which other "
                "clients share: work on a clone."
            )
    return uplink, left
