"""The server's first model."""

from torch import Tensor

from fedsim.contracts import ClientInfo, ClientMethod, FederatedData
from fedsim.training.functional import model_tensors


def initial_model(method: ClientMethod, data: FederatedData) -> dict[str, Tensor]:
    """The shared tensors before round 1, on the CPU, in the model's order.

    They are those of client 0's template. Where clients differ, only tensors that all have alike can be
    shared, and a client whose shared tensors differ refuses its first order.
    """
    program = method.program(ClientInfo(0, data.clients[0]), 1)
    template = model_tensors(program.model)
    return {name: value.cpu().clone() for name, value in template.items() if program.is_shared(name)}
