"""Label flip: train on wrong labels.

Tolpegin et al., "Data Poisoning Attacks Against Federated Learning Systems", ESORICS 2020, section 3 (one
source class to one target); "reverse" is Fang et al., "Local Model Poisoning Attacks to Byzantine-Robust
Federated Learning", USENIX Security 2020, section 6 (label l becomes L - l - 1).

Every training example whose label the map changes is mislabelled, inputs stay as they are; so it serves rows,
nodes and graphs. Success is the share of test examples that get the wrong label that their own class maps to.
With an odd number of classes "reverse" leaves the middle class alone.
"""

from dataclasses import dataclass
from typing import Literal

import torch

from attacks.programs import change_batches
from attacks.triggers import check_target
from fedsim.contracts import Batch, ClientData, LocalProgram, Tensors
from fedsim.errors import ConfigError
from fedsim.threat import Passive, Threat


@dataclass(frozen=True, kw_only=True)
class LabelFlip(Passive):
    """Each malicious client by itself.

    Attributes:
        mapping: "reverse": y becomes classes - 1 - y; "next": y + 1, the last becomes 0; "one": `source`
            becomes `target`, the others stay.
        source: label to change; with "one" alone.
        target: what it becomes; with "one" alone.
    """

    mapping: Literal["reverse", "next", "one"] = "reverse"
    source: int | None = None
    target: int | None = None

    def __post_init__(self) -> None:
        given = self.source is not None and self.target is not None
        if (self.mapping == "one") != given or (self.source is None) != (self.target is None):
            raise ConfigError(
                f'source and target belong to mapping = "one", which needs both; found source = '
                f"{self.source}, target = {self.target} with mapping = {self.mapping!r}."
            )
        if given and self.source == self.target:
            raise ConfigError(f"source and target must differ, found {self.source} twice.")

    def init(self, threat: Threat, rng: torch.Generator) -> Tensors:
        """[classes] int64, the label that each label becomes.

        Raises:
            ConfigError: clients' classes differ, or lack `source` or `target`.
        """
        if threat.spec is None:
            raise ConfigError("attack.kind: label_flip needs the same classes on all clients.")
        labels = torch.arange(threat.spec.classes)
        if self.mapping == "reverse":
            return {"labels": labels.flip(0)}
        if self.mapping == "next":
            return {"labels": labels.roll(-1)}
        return {"labels": self._one(labels, threat)}

    def _one(self, labels: torch.Tensor, threat: Threat) -> torch.Tensor:
        source, target = int(self.source or 0), int(self.target or 0)
        check_target(source, threat.spec, "source")
        check_target(target, threat.spec)
        return labels.masked_fill(labels == source, target)

    def corrupt(
        self, state: Tensors, member: int, program: LocalProgram, data: ClientData
    ) -> tuple[LocalProgram, ClientData]:
        """Train on batches with the wrong labels."""
        return change_batches(program, lambda batch: self.poison(state, batch)), data

    def poison(self, state: Tensors, batch: Batch) -> Batch:
        """The same inputs with the wrong labels."""
        return batch._replace(y=state["labels"].to(batch.y.device)[batch.y])
