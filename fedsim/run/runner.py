"""Runs an experiment: one seed after the other, each into a folder of its own.

Every transport shares this loop: the caller hands over a factory of federations, so the same rounds run
on the engine, through a Flower grid in one process, or on SuperNodes elsewhere.
"""

import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedsim.config import Experiment
from fedsim.contracts import Failure
from fedsim.errors import CheckpointError, FedsimError
from fedsim.federation import Federation
from fedsim.params import digest
from fedsim.run import checkpoint as checkpoints
from fedsim.run.adversary import Adversary
from fedsim.run.assembly import Parts, assemble
from fedsim.run.atomic_files import save_json
from fedsim.run.checkpoint import Checkpoint, RunState
from fedsim.run.directory import RunDirectory, seed_folder
from fedsim.run.expectations import check, refuse_unknown, unmet
from fedsim.run.outcome import Observer, Outcome, Silent
from fedsim.run.private_store import PrivateStore
from fedsim.run.provenance import manifest, tier
from fedsim.run.replies import TooManyFailures
from fedsim.run.results import summarise
from fedsim.run.round_loop import RoundLoop, tensors_of
from fedsim.run.server_evaluation import ServerEvaluation, known_metrics, server_device
from fedsim.run.stopwatch import PHASES
from fedsim.run.summary import summary_of
from fedsim.run.threads import one_thread

FederationOf = Callable[[Parts, PrivateStore], Federation]


def run(
    experiment: Experiment,
    folder: Path,
    *,
    federation_of: FederationOf,
    resume: bool = False,
    observer: Observer | None = None,
) -> list[Outcome]:
    """All seeds in turn; a seed that fails does not stop the others.

    Args:
        experiment: as validated.
        folder: of the whole run.
        federation_of: makes the clients of one seed reachable.
        resume: go on from checkpoints; finished seeds are kept as they are.
        observer: told of progress.

    Raises:
        FedsimError: with exit code 2, for what is wrong before a seed's first round.
    """
    outcomes = []
    for seed in experiment.seeds:
        directory = seed_folder(folder, seed, len(experiment.seeds))
        outcomes.append(
            run_seed(
                experiment,
                seed,
                directory,
                federation_of=federation_of,
                resume=resume,
                observer=observer or Silent(),
            )
        )
        if len(experiment.seeds) > 1:
            save_json(folder / "summary.json", summary_of(experiment.name, [one.result for one in outcomes]))
    return outcomes


def run_seed(
    experiment: Experiment,
    seed: int,
    directory: RunDirectory,
    *,
    federation_of: FederationOf,
    resume: bool = False,
    observer: Observer,
) -> Outcome:
    """One seed, from its data to its result.json; a failed round becomes an outcome, not an exception.

    Raises:
        FedsimError: with exit code 2: experiment, data or checkpoint cannot be used. Nothing was run.
        KeyboardInterrupt: after workers were ended and result.json written; the run can be resumed.
    """
    if resume and (kept := _finished(experiment, seed, directory)):
        observer.seed_finished(kept)
        return kept
    with one_thread(), closing(SeedRun.prepare(experiment, seed, directory, resume)) as run:
        outcome = _played(run, federation_of, observer)
    observer.seed_finished(outcome)
    return outcome


def _played(run: "SeedRun", federation_of: FederationOf, observer: Observer) -> Outcome:
    """Rounds to the end, or to the first that fails."""
    directory = run.directory
    try:
        return run.complete(federation_of, observer)
    except KeyboardInterrupt:
        directory.write_result(run.failed("interrupted; continue with --resume", ()))
        raise
    except FedsimError as error:
        if error.exit_code != 2:
            return run.lost(error)
        run.refuse(error)
        raise
    except (
        OSError
    ) as error:  # a full disk, a folder that is gone: perhaps the result cannot be written either
        reason = f"{directory.path}: {type(error).__name__}: {error}"
        with suppress(OSError):
            directory.write_result(run.failed(reason, ()))
        raise FedsimError(reason) from error
    except Exception as error:
        directory.write_result(run.failed(f"{type(error).__name__}: {error}", ()))
        raise


def _finished(experiment: Experiment, seed: int, directory: RunDirectory) -> Outcome | None:
    """The outcome of a seed that ended before, unless it failed."""
    result = directory.read_result()
    if result is None or result["status"] == "failed":
        return None
    if result["digest"] != experiment.digest():
        raise CheckpointError(
            f"{directory.path}: holds a finished run of experiment {result['digest'][:12]}, but the file now "
            f"reads {experiment.digest()[:12]}: undo the change, or start anew without --resume."
        )
    judged = _judged(experiment, result)  # the expectations may have changed since
    directory.write_result(judged)
    return Outcome(seed, judged["status"], directory.path, judged)


def _judged(experiment: Experiment, result: Mapping[str, Any]) -> dict[str, Any]:
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

    def close(self) -> None:
        """Let other runs into the folder."""
        os.close(self.claim)

    @classmethod
    def prepare(cls, experiment: Experiment, seed: int, directory: RunDirectory, resume: bool) -> "SeedRun":
        """Everything short of workers; the folder is touched last, once nothing can be refused any more."""
        parts = assemble(experiment, seed)
        server = ServerEvaluation.of(parts, server_device(experiment.engine.device))
        refuse_unknown(experiment.expect, known_metrics(parts, server))
        adversary, layout = Adversary.of(parts), parts.layout
        store = PrivateStore(directory.private, experiment.engine.private_memory * 2**30)
        resumed, records = None, []
        claim = directory.claim()
        if resume and directory.checkpoint.exists():
            resumed = checkpoints.load(directory.checkpoint)
            checkpoints.require_same(resumed, experiment.digest(), seed, directory.checkpoint)
            store.restore(resumed.memory, resumed.files)
            records = directory.rewind(resumed.history, resumed.state.round)
        else:
            directory.create()
        directory.result.unlink(missing_ok=True)
        directory.write_manifest(manifest(parts, layout))
        return cls(parts, directory, store, server, adversary, resumed, records, claim)

    def complete(self, federation_of: FederationOf, observer: Observer) -> Outcome:
        """All remaining rounds, and the result."""
        observer.seed_started(self.parts, self.directory.path, len(self.records))
        with closing(federation_of(self.parts, self.store)) as federation:
            loop = RoundLoop(self.parts, federation, self.server, self.adversary)
            state = self.resumed.state if self.resumed else loop.start()
            while state.round < self.parts.experiment.rounds:
                state, record = loop.play(state)
                length = self.directory.append(record)
                self.records.append(record)
                self._checkpoint(state, length)
                observer.round_finished(record)
        return self._completed(state)

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
            checkpoints.save(self.directory.checkpoint, saved)
            self.store.sweep()

    def _completed(self, state: RunState) -> Outcome:
        tensors = tensors_of(state, self.parts.layout)
        sha256 = digest(tensors)
        result = _judged(self.parts.experiment, self._result() | {"model_sha256": sha256})
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

    def _result(self) -> dict[str, Any]:
        """What is known of the run so far."""
        experiment, records = self.parts.experiment, self.records
        failures = [failure for record in records for failure in record["failures"]]
        detours = [{"round": r["round"], **detour} for r in records for detour in r.get("detours", ())]
        lost = sorted({failure["kind"] for failure in failures} & {"died", "deadline"})
        if any(detour["failed"] for detour in detours):
            lost.append("a stacked chunk that raised, and was run one client at a time")
        return {
            "seed": self.parts.seed,
            "digest": experiment.digest(),
            "rounds": len(records),
            "metrics": summarise(records, {"evaluated_clients": experiment.evaluate.clients}),
            "failures": failures,
            "tier": tier(self.parts),
            "detours": _by_reason(detours),
            "reproducible": not lost,
            "not_reproducible_because": lost,
            "timing": {name: sum(record["seconds"][name] for record in records) for name in PHASES},
        }


def _by_reason(detours: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Why clients ran T1 in a stacked run: an entry per reason, its first round, and how many clients."""
    found: dict[str, dict[str, Any]] = {}
    for detour in detours:
        new = {"reason": detour["reason"], "failed": detour["failed"], "since_round": detour["round"]}
        entry = found.setdefault(detour["reason"], new | {"clients": 0})
        entry["clients"] += len(detour["partitions"])
    return list(found.values())
