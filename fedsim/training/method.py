"""The parts of a client method that most methods do not need."""

import torch

from fedsim.contracts import ClientInfo, Tensors


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
