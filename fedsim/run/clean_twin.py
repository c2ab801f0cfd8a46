"""The same run without the attack: what it costs, and how often a trigger works on a model never attacked.

The twin is an ordinary run of the same file in which the malicious clients are honest. They are in the same
cohorts, so the two differ by the attack alone. It keeps the model of every measured round, on which the
attacked run measures its trigger of that round (the floor). One twin serves every attack with the same
members, participation and window.
"""

from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import load_file

from fedsim.config import Experiment
from fedsim.contracts import Tensors
from fedsim.run.atomic_files import save_tensors

HONEST = "fedsim.threat:Passive"


def without_attack(experiment: Experiment) -> Experiment | None:
    """The twin's experiment; None where there is no attack, or none wanted."""
    attack = experiment.attack
    if attack is None or not attack.clean_run or attack.kind in (HONEST, "honest"):
        return None
    kept = attack.model_dump(include={"malicious", "participation", "window"})
    honest = type(attack)(kind=HONEST, clean_run=False, **kept)
    return experiment.model_copy(update={"attack": honest, "expect": {}, "track": ()})


@dataclass(frozen=True)
class CleanTwin:
    """Models of a clean run, round by round.

    Attributes:
        folder: one file per round.
    """

    folder: Path

    def keep(self, round: int, tensors: Tensors) -> None:
        """Store the model after a round."""
        self.folder.mkdir(parents=True, exist_ok=True)
        save_tensors(self._path(round), tensors, {"round": str(round)})

    def tensors(self, round: int) -> Tensors | None:
        """The model after a round; None where it was not kept."""
        path = self._path(round)
        return load_file(path) if path.exists() else None

    def _path(self, round: int) -> Path:
        return self.folder / f"round-{round:05d}.safetensors"
