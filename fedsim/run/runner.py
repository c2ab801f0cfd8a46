"""Runs an experiment: one seed after the other, each into a folder of its own.

Every transport shares this loop: the caller hands over a factory of federations, so the same rounds run
on the engine, through a Flower grid in one process, or on SuperNodes elsewhere.
"""

from contextlib import closing, suppress
from pathlib import Path

from fedsim.config import Experiment
from fedsim.errors import CheckpointError, FedsimError, RoundError
from fedsim.run import checkpoint as checkpoints
from fedsim.run.atomic_files import save_json
from fedsim.run.clean_twin import CleanTwin
from fedsim.run.code import code_digest
from fedsim.run.directory import RunDirectory, seed_folder
from fedsim.run.outcome import Observer, Outcome, Silent
from fedsim.run.seed_run import FederationOf, SeedRun, judged
from fedsim.run.summary import summary_of
from fedsim.run.threads import one_thread

ANEW = "start anew without --resume to play it again"

__all__ = ["FederationOf", "run", "run_seed"]


def run(
    experiment: Experiment,
    folder: Path,
    *,
    federation_of: FederationOf,
    resume: bool = False,
    observer: Observer | None = None,
    clean: Path | None = None,
) -> list[Outcome]:
    """All seeds in turn; a seed that fails does not stop the others.

    Args:
        experiment: as validated.
        folder: of the whole run.
        federation_of: makes the clients of one seed reachable.
        resume: go on from checkpoints; finished seeds are kept as they are.
        observer: told of progress.
        clean: folder of the clean run beside an attack, where several attacks share one (a single seed);
            None: `clean` in each seed's folder.

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
                clean=clean,
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
    clean: Path | None = None,
) -> Outcome:
    """One seed, from its data to its result.json; a failed round becomes an outcome, not an exception.

    Raises:
        FedsimError: with exit code 2: experiment, data or checkpoint cannot be used. Nothing was run.
        KeyboardInterrupt: after workers were ended and result.json written; the run can be resumed.
    """
    if resume and (kept := _finished(experiment, seed, directory)):
        if directory.read_code() != code_digest(experiment):
            observer.notice(f"seed {seed}: kept, though other code played it; {ANEW}")
        observer.seed_finished(kept)
        return kept
    with one_thread(), closing(SeedRun.prepare(experiment, seed, directory, resume)) as run:
        _tell(run, observer)
        place = clean or directory.path / "clean"
        outcome = _played(run, federation_of, observer, place, any_code=clean is not None)
    observer.seed_finished(outcome)
    return outcome


def _tell(run: SeedRun, observer: Observer) -> None:
    """What a user may not expect."""
    seed = run.parts.seed
    if run.adversary is not None and not run.adversary.threat.members:
        observer.notice(f"seed {seed}: attack.malicious names nobody, so that everybody is honest")
    if run.resumed is not None and run.code_changed:
        observer.notice(f"seed {seed}: goes on after round {len(run.records)} with changed code; {ANEW}")


def play_clean_run(
    honest: Experiment,
    seed: int,
    folder: Path,
    federation_of: FederationOf,
    observer: Observer,
    *,
    any_code: bool = False,
) -> CleanTwin:
    """The same run without the attack, played now unless the same code finished it before.

    Args:
        honest: see `clean_twin.without_attack`.
        seed: of the run.
        folder: of the clean run.
        federation_of: makes its clients reachable.
        observer: told that it takes its time.
        any_code: a finished one counts whatever code made it.

    Raises:
        CheckpointError: the folder holds something else.
        RoundError: it failed.
    """
    directory, twin = RunDirectory(folder), CleanTwin(folder / "models")
    try:
        kept = directory.read_result()
    except CheckpointError as error:
        raise CheckpointError(f"{error} Remove {folder} to play the clean run again.") from error
    same_code = any_code or directory.read_code() == code_digest(honest)
    finished = kept is not None and kept["status"] == "completed" and kept["digest"] == honest.digest()
    if finished and same_code:
        return twin
    observer.notice(f"seed {seed}: first {honest.rounds} rounds without the attack, to compare with")
    resume = same_code and _resumable(directory, honest, seed)
    with closing(SeedRun.prepare(honest, seed, directory, resume)) as clean:
        clean.models = twin
        outcome = _played(clean, federation_of, Silent(), folder, any_code=any_code)
    if outcome.status == "failed":
        raise RoundError(f"The clean run beside the attack failed: {outcome.result['reason']}")
    return twin


def _resumable(directory: RunDirectory, experiment: Experiment, seed: int) -> bool:
    """Does the folder hold a checkpoint of this very run?"""
    try:
        found = checkpoints.load(directory.checkpoint)
    except (CheckpointError, OSError):
        return False
    return found.digest == experiment.digest() and found.seed == seed


def _played(
    run: SeedRun, federation_of: FederationOf, observer: Observer, clean: Path, *, any_code: bool
) -> Outcome:
    """Rounds to the end, or to the first that fails; the clean run beside an attack first."""
    directory, honest = run.directory, run.clean_experiment
    try:
        if honest is not None:
            run.twin = play_clean_run(
                honest, run.parts.seed, clean, federation_of, observer, any_code=any_code
            )
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
    if result.get("seed") != seed:
        raise CheckpointError(
            f"{directory.path}: holds a finished run of seed {result.get('seed')}, but the file now asks for "
            f"seed {seed}: undo the change, or start anew without --resume."
        )
    told = judged(experiment, result)  # the expectations may have changed since
    directory.write_result(told)
    return Outcome(seed, told["status"], directory.path, told)
