"""One seed on its way: its parts, its folder, its rounds so far, and the result they add up to."""

import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from fedsim.config import Experiment
from fedsim.contracts import Failure
from fedsim.errors import CheckpointError, FedsimError
from fedsim.federation import Federation
from fedsim.params import digest
from fedsim.run import checkpoint as checkpoints
from fedsim.run.adversary import Adversary, refuse_in_messages
from fedsim.run.assembly import Parts, assemble
from fedsim.run.attack_record import LIVE
from fedsim.run.checkpoint import Checkpoint, RunState
from fedsim.run.clean_twin import CleanTwin, without_attack
from fedsim.run.code import code_digest, joined
from fedsim.run.directory import RunDirectory
from fedsim.run.durability import detector, durability, lifespan
from fedsim.run.expectations import check, refuse_unknown, unmet
from fedsim.run.incidents import device_of, events_of, why_not_reproducible
from fedsim.run.outcome import Observer, Outcome
from fedsim.run.private_store import PrivateStore
from fedsim.run.provenance import manifest, tier
from fedsim.run.replies import TooManyFailures
from fedsim.run.results import empty_selections, summarise
from fedsim.run.round_loop import RoundLoop, tensors_of
from fedsim.run.server_evaluation import ServerEvaluation, known_metrics, server_device
from fedsim.run.stopwatch import PHASES

FederationOf = Callable[[Parts, PrivateStore], Federation]


def judged(experiment: Experiment, result: Mapping[str, Any]) -> dict[str, Any]:
    """The result of a run that ended, held against the experiment's expectations."""
    checks = check(experiment.expect, result["metrics"])
    reason = unmet(checks)
    status = "expectation_failed" if reason else "completed"
    rest = {key: value for key, value in result.items() if key not in ("status", "reason")}
    return {"status": status, "reason": reason, **rest, "expectations": checks}


@dataclass
class SeedRun:
    """One seed on its way; `state` and `records` grow with every finished round."""

    parts: Parts
    directory: RunDirectory
    store: PrivateStore
    server: ServerEvaluation | None
    adversary: Adversary | None
    resumed: Checkpoint | None
    records: list[dict[str, Any]]
    claim: int
    code: str
    twin: CleanTwin | None = None
    models: CleanTwin | None = None
    unrecorded: list[dict[str, Any]] = field(default_factory=list)
    """Events of a round that did not end."""

    @property
    def clean_experiment(self) -> Experiment | None:
        """The run to compare with, if any."""
        if self.adversary is None or not self.adversary.threat.members:
            return None
        return without_attack(self.parts.experiment)

    @property
    def code_changed(self) -> bool:
        """Was the run begun by other code?"""
        return self.code != code_digest(self.parts.experiment)

    def close(self) -> None:
        """Let other runs into the folder."""
        os.close(self.claim)

    @classmethod
    def prepare(cls, experiment: Experiment, seed: int, directory: RunDirectory, resume: bool) -> "SeedRun":
        """Everything short of workers; the folder is touched last, once nothing can be refused any more."""
        parts = assemble(experiment, seed)
        if tier(parts) == "T0":
            refuse_in_messages(parts.plugins.attack)
        server = ServerEvaluation.of(parts, server_device(experiment.engine.device))
        refuse_unknown(experiment, known_metrics(parts, server))
        adversary, layout = Adversary.of(parts), parts.layout
        store = PrivateStore(directory.private, experiment.engine.private_memory * 2**30)
        resumed, records, code = None, [], code_digest(experiment)
        claim = directory.claim()
        try:
            if resume and directory.checkpoint.exists():
                resumed = checkpoints.load(directory.checkpoint)
                checkpoints.require_same(resumed, experiment.digest(), seed, directory.checkpoint)
                store.restore(resumed.memory, resumed.files)
                records = directory.rewind(resumed.history, resumed.state.round)
                parts = replace(parts, settled_tier=directory.read_tier())
                code = joined(directory.read_code(), code)
            else:
                if resume:
                    _require_same_file(directory, experiment)
                directory.create()
            directory.result.unlink(missing_ok=True)
            directory.write_manifest(manifest(parts, layout, code=code))
        except BaseException:
            os.close(claim)
            raise
        return cls(parts, directory, store, server, adversary, resumed, records, claim, code)

    def complete(self, federation_of: FederationOf, observer: Observer) -> Outcome:
        """All remaining rounds, and the result."""
        observer.seed_started(self.parts, self.directory.path, len(self.records))
        with closing(federation_of(self.parts, self.store)) as federation:
            self._settle(federation)
            loop = RoundLoop(self.parts, federation, self.server, self.adversary, self.twin)
            state = self.resumed.state if self.resumed else loop.start()
            while state.round < self.parts.experiment.rounds:
                state, record = self._play(loop, federation, state)
                if self.models is not None and "test_accuracy" in record["metrics"]:
                    self.models.keep(state.round, tensors_of(state, self.parts.layout))
                length = self.directory.append(record)
                self.records.append(record)
                self._checkpoint(state, length)
                observer.round_finished(record)
        return self._completed(state)

    def _settle(self, federation: Federation) -> None:
        """Enter what only the federation knows into the manifest: its device, and the tier it plays."""
        asked = self.parts.experiment.engine.tier
        of_messages = "T1" if asked in ("auto", "measured") else asked  # SuperNodes train one by one
        played: str = getattr(federation, "tier", of_messages)
        timed: Mapping[str, float] = getattr(federation, "timed", {})
        self.parts = replace(self.parts, settled_tier=played)
        told = manifest(self.parts, self.parts.layout, device_of(federation), timed, code=self.code)
        self.directory.write_manifest(told)

    def _play(
        self, loop: RoundLoop, federation: Federation, state: RunState
    ) -> tuple[RunState, dict[str, Any]]:
        """One round and its events."""
        try:
            state, record = loop.play(state)
        except BaseException:
            self.unrecorded = events_of(federation)
            raise
        return state, record | {"events": events_of(federation)}

    def _checkpoint(self, state: RunState, history: int) -> None:
        every = self.parts.experiment.checkpoint.every
        if every == 0:
            self.store.sweep()
        elif state.round % every == 0 or state.round == self.parts.experiment.rounds:
            memory, files = self.store.snapshot()
            saved = Checkpoint(
                state=state,
                seed=self.parts.seed,
                digest=self.parts.experiment.digest(),
                history=history,
                memory=memory,
                files=files,
            )
            self.directory.keep_rounds()
            checkpoints.save(self.directory.checkpoint, saved)
            self.store.sweep()

    def _completed(self, state: RunState) -> Outcome:
        tensors = tensors_of(state, self.parts.layout)
        sha256 = digest(tensors)
        result = judged(self.parts.experiment, self._result() | {"model_sha256": sha256})
        self.directory.write_model(tensors, sha256)
        self.directory.write_result(result)
        return Outcome(self.parts.seed, result["status"], self.directory.path, result, tensors)

    def refuse(self, error: FedsimError) -> None:
        """Leave nothing behind of a seed that was refused before its first round."""
        if self.records or self.resumed:
            self.directory.write_result(self.failed(str(error), ()))
        else:
            self.directory.discard()

    def lost(self, error: FedsimError) -> Outcome:
        """The outcome of a run that could not go on."""
        failures = error.failures if isinstance(error, TooManyFailures) else self._cause(error)
        result = self.failed(str(error), [asdict(failure) for failure in failures])
        self.directory.write_result(result)
        return Outcome(self.parts.seed, "failed", self.directory.path, result)

    def _cause(self, error: FedsimError) -> tuple[Failure, ...]:
        """The exception of somebody else's code in the driver, such as a rule's, as a ledger entry."""
        if error.__cause__ is None:
            return ()
        trace = "".join(traceback.format_exception(error.__cause__))
        return (Failure(len(self.records) + 1, None, None, "exception", str(error), trace),)

    def failed(self, reason: str, failures: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """result.json of a run that did not end."""
        result = self._result()
        result["failures"] = [*result["failures"], *failures]
        return {"status": "failed", "reason": reason, **result}

    def _attack_metrics(self) -> dict[str, Any]:
        """`attack_success` with its durability, `attack_lifespan`, `detector`, where they were measured."""
        if self.adversary is None:
            return {}
        records, window = self.records, self.adversary.threat.window
        told = summarise(records, {"evaluated_clients": self.parts.experiment.evaluate.clients})
        found: dict[str, Any] = {}
        if "attack_success" in told:
            found["attack_success"] = told["attack_success"] | durability(records, window)
            found["attack_lifespan"] = lifespan(records, window)
        if (scores := detector(records)) is not None:
            found["detector"] = scores
        return found

    def _result(self) -> dict[str, Any]:
        """What is known of the run so far."""
        experiment, records = self.parts.experiment, self.records
        failures = [failure for record in records for failure in record["failures"]]
        detours = [{"round": r["round"], **detour} for r in records for detour in r.get("detours", ())]
        events = [event for record in records for event in record.get("events", ())] + self.unrecorded
        lost = why_not_reproducible(failures, detours, events)
        return {
            "seed": self.parts.seed,
            "digest": experiment.digest(),
            "rounds": len(records),
            "metrics": summarise(records, {"evaluated_clients": experiment.evaluate.clients})
            | self._attack_metrics(),
            **({} if self.adversary is None else {"defence_active": defence_active(records)}),
            "failures": failures,
            "events": events,
            "empty_selections": empty_selections(records),
            "tier": tier(self.parts),
            "detours": _by_reason(detours),
            "reproducible": not lost,
            "not_reproducible_because": lost,
            "timing": {name: sum(record["seconds"][name] for record in records) for name in PHASES},
        }


def _require_same_file(directory: RunDirectory, experiment: Experiment) -> None:
    """Rounds without a checkpoint are played again, so only the file that made them may replace them."""
    begun = directory.read_manifest().get("digest", experiment.digest())
    if begun != experiment.digest():
        raise CheckpointError(
            f"{directory.path}: holds rounds of experiment {str(begun)[:12]}, but the file now reads "
            f"{experiment.digest()[:12]}: undo the change, or start anew without --resume."
        )


def defence_active(records: Sequence[Mapping[str, Any]]) -> bool | None:
    """Did the rule ever differ from a plain mean under attack? None: it was never under attack."""
    attacked = [record["attack"] for record in records if record.get("attack")]
    differences = [one["differs_from_mean"] for one in attacked if one["malicious"]]
    return any(difference > LIVE for difference in differences) if differences else None


def _by_reason(detours: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Why clients ran T1 in a stacked run: an entry per reason, its first round, and how many clients."""
    found: dict[str, dict[str, Any]] = {}
    for detour in detours:
        new = {"reason": detour["reason"], "failed": detour["failed"], "since_round": detour["round"]}
        entry = found.setdefault(detour["reason"], new | {"clients": 0})
        entry["clients"] += len(detour["partitions"])
    return list(found.values())
