"""The global model on the server's test set, in the driver, on one thread."""

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from fedsim.contracts import Batch, Examples, Tensors
from fedsim.run.assembly import Parts
from fedsim.run.results import MEAN
from fedsim.threat import overrides
from fedsim.training.evaluate import attack_success, evaluate
from fedsim.training.functional import model_tensors


@dataclass(frozen=True)
class ServerEvaluation:
    """A template of the server's own, so that workers in this process cannot move it to another device.

    Attributes:
        model: the template.
        examples: the test set, on the device.
        device: where to compute.
    """

    model: nn.Module
    examples: Examples
    device: torch.device

    @classmethod
    def of(cls, parts: Parts, device: torch.device) -> "ServerEvaluation | None":
        """None where there is nothing to measure.

        That is so without a common test set, and where a part of the model never leaves the clients:
        the server's copy of such a part is untrained, and a number from it would mislead.
        """
        data = parts.data
        if data.test is None or len(data.test) == 0:
            return None
        program = parts.program
        if any(not program.is_shared(name) for name in model_tensors(program.model)):
            return None
        model = copy.deepcopy(program.model).to(device)
        return cls(model, data.test.to(device, parts.dtype), device)

    def measure(
        self, tensors: Tensors, poison: Callable[[Batch], Batch] | None = None
    ) -> dict[str, float | None]:
        """`test_accuracy`, `test_loss` of the shared tensors; `attack_success` where there is poison."""
        moved = {name: tensor.to(self.device) for name, tensor in tensors.items()}
        sums = evaluate(self.model, moved, {"test": self.examples})
        if poison is not None:
            sums["attack_success"] = attack_success(self.model, moved, self.examples, poison)
        return {name: value.mean for name, value in sums.items()}


def known_metrics(parts: Parts, server: ServerEvaluation | None) -> list[str]:
    """Names of the metrics that the run will measure."""
    names = ["test_accuracy", "test_loss"] if server else []
    if parts.experiment.evaluate.clients != "none":
        splits = [f"{split}_{what}" for split in ("test", "val") for what in ("accuracy", "loss")]
        names += [f"{prefix}{name}" for prefix in ("client_", MEAN) for name in splits]
    return [*names, "train_loss", *_attack_metrics(parts, server)]


def _attack_metrics(parts: Parts, server: ServerEvaluation | None) -> list[str]:
    attack, table = parts.plugins.attack, parts.experiment.attack
    if attack is None or table is None:
        return []
    names = ["detector"] + (["clean_test_accuracy"] if server and table.clean_run else [])
    if table.clean_run and parts.experiment.evaluate.clients != "none":
        names.append("clean_client_test_accuracy")
    if overrides(attack, "poison"):
        if server:
            names += ["attack_success", "attack_lifespan"] + (["attack_floor"] if table.clean_run else [])
        if parts.experiment.evaluate.clients != "none":
            names += [f"client_attack_success{camp}" for camp in ("", "_benign", "_malicious")]
    return names


def server_device(device: str) -> torch.device:
    """Where the driver measures the global model: on a card where clients use one and the driver sees it."""
    if device == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda" if device == "auto" else device)
