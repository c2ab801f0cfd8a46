"""The same run without the attack: what it costs, and how often a trigger works on a model never attacked.

The twin is an ordinary run of the same file in which the malicious clients are honest. They are in the same
cohorts, so the two differ by the attack alone. It keeps the model of every measured round, on which the
attacked run measures its trigger of that round (the floor). One twin serves every attack with the same
members, participation and window.
"""

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open

from fedsim.config import Experiment
from fedsim.contracts import Tensors
from fedsim.errors import RoundError
from fedsim.params import digest
from fedsim.run.atomic_files import save_tensors

HONEST = "fedsim.threat:Passive"


def without_attack(experiment: Experiment) -> Experiment | None:
    """The twin's experiment; None where there is no attack, or none wanted."""
    attack = experiment.attack
    if attack is None or not attack.clean_run or is_honest(experiment):
        return None
    return made_honest(experiment).model_copy(update={"expect": {}, "track": ()})


def is_honest(experiment: Experiment) -> bool:
    """Is the attack the one that does nothing?"""
    return experiment.attack is not None and experiment.attack.kind in (HONEST, "honest")


def made_honest(experiment: Experiment) -> Experiment:
    """The experiment with the attack that does nothing, spelt in one way, so that it has one digest."""
    attack = experiment.attack
    if attack is None:
        return experiment
    kept = attack.model_dump(include={"malicious", "participation", "window"})
    return experiment.model_copy(update={"attack": type(attack)(kind=HONEST, clean_run=False, **kept)})


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
        save_tensors(self._path(round), tensors, {"round": str(round), "model_sha256": digest(tensors)})

    def tensors(self, round: int) -> Tensors:
        """The model after a round.

        Raises:
            RoundError: it was not kept, or its file was changed since.
        """
        path = self._path(round)
        try:
            with safe_open(path, framework="pt") as file:
                told = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
        except (OSError, SafetensorError) as error:
            raise self._damaged(path, f"cannot be read ({type(error).__name__})") from error
        if told != {"round": str(round), "model_sha256": digest(tensors)}:
            raise self._damaged(path, "was changed after it was written")
        return tensors

    def _damaged(self, path: Path, what: str) -> RoundError:
        return RoundError(
            f"{path}: the clean run's model {what}: remove {self.folder.parent} to play that run again."
        )

    def client_accuracy(self, round: int) -> float | None:
        """Of the clients' own models on their own test splits; None where it was not measured then."""
        with suppress(OSError, ValueError):
            for line in (self.folder.parent / "rounds.jsonl").read_text(encoding="utf-8").splitlines():
                record = json.loads(line)
                if record["round"] == round:
                    found: float | None = record["metrics"].get("client_test_accuracy")
                    return found
        return None

    def _path(self, round: int) -> Path:
        return self.folder / f"round-{round:05d}.safetensors"
