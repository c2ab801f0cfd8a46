"""`make flwr-run`: an experiment under Flower's own `flwr run`, simulated or on SuperNodes.

    python -m fedsim.flower.flwr_run experiments/quickstart/experiment.toml --set rounds=3
    python -m fedsim.flower.flwr_run experiments/two/experiment.toml --deployment

Flower 1.42 shares one local SuperLink among all checkouts of a machine, installs the app's dependencies anew
for every run, simulates 2 nodes that take 2 CPUs each, and exits 0 when the ServerApp raised. Here a
SuperLink is started for this run alone and stopped after it, nothing is installed, the federation has the
experiment's size, and the exit code tells what happened.
"""

import argparse
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedsim.config import Experiment, load
from fedsim.engine.options import usable_cores
from fedsim.errors import ConfigError, FedsimError, RoundError
from fedsim.flower import bundle
from fedsim.flower.flower_processes import HOST, environment, free_port, start, stop, tail, wait_for_superlink
from fedsim.plugins import search_in
from fedsim.run.assembly import build_plugins
from fedsim.run.directory import fresh_folder

Say = Callable[[str], None]
CONNECTION = "fedsim"
STATUS_TRIES = 10
_STARTED = re.compile(r"Successfully started run (\d+)")
_ENDED = re.compile(r"fedsim_exit_code (\d+)")
_REASON = re.compile(r"^(?:Error:|seed \d+: (?:failed|expectation_failed)) (.+)$", re.MULTILINE)
_HASH = re.compile(r"model_sha256 ([0-9a-f]{64})")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        status: Flower's word, such as `finished:completed`.
        exit_code: of `fedsim run`, as the ServerApp told it; None where it did not come so far.
        hashes: SHA-256 of the final models, one per seed.
        reason: what the ServerApp said of a failure, or an empty string.
    """

    status: str
    exit_code: int | None
    hashes: tuple[str, ...]
    reason: str = ""

    @property
    def code(self) -> int:
        """0 only where Flower and the ServerApp agree that the run completed."""
        if self.exit_code:
            return self.exit_code
        return 0 if self.status == "finished:completed" and self.exit_code == 0 and self.hashes else 1


def run(
    experiment: Path, overrides: Sequence[str], *, out: Path | None, deployment: bool, say: Say
) -> Outcome:
    """Play an experiment through `flwr run`.

    Args:
        experiment: the TOML file.
        overrides: `key.path=value` changes.
        out: folder of results; None: `runs/NAME/TIME`.
        deployment: one SuperLink and a SuperNode per client, instead of Flower's simulation.
        say: receives the log, line by line.

    Raises:
        ConfigError: the experiment is refused, or fedsim is not imported from its repository.
        WorkerError: the SuperLink does not start.
        RoundError: `flwr run` itself failed.
    """
    search_in(experiment.parent, Path.cwd())
    whole = load(experiment, overrides)
    build_plugins(whole, whole.seeds[0])  # a misspelt plugin is refused here, not a minute later
    if deployment and whole.attack is not None:
        raise ConfigError("attack: is played by the simulation only; SuperNodes stand for real clients.")
    with tempfile.TemporaryDirectory(prefix="fedsim-flwr-") as folder, ExitStack() as stack:
        work, results = Path(folder), fresh_folder(whole.name, out)
        stack.callback(_remove_if_empty, results)
        bundle.stage(experiment, overrides, results, work / "app")
        port = stack.enter_context(_superlink(work, experiment, deployment))
        if deployment:
            stack.enter_context(_supernodes(work, experiment, port, whole.federation.clients))
        return _submit(work, experiment, [] if deployment else _simulation(whole), say)


def _remove_if_empty(folder: Path) -> None:
    """A run that was refused before its first round leaves no folder behind."""
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def _simulation(experiment: Experiment) -> list[str]:
    """One simulated SuperNode per client, one CPU each, as many at once as there are cores."""
    settings: dict[str, Any] = {
        "num-supernodes": experiment.federation.clients,
        "client-resources-num-cpus": 1,
        "init-args-num-cpus": usable_cores(),
    }
    cards = _cards(experiment)
    if cards:
        settings |= {"client-resources-num-gpus": cards / usable_cores(), "init-args-num-gpus": cards}
    return ["--federation-config", " ".join(f"{key}={value}" for key, value in settings.items())]


def _cards(experiment: Experiment) -> int:
    return 0 if experiment.engine.device == "cpu" else torch.cuda.device_count()


def _environment(work: Path, home: str, experiment: Path) -> dict[str, str]:
    (work / home).mkdir()
    return environment(work / home, (experiment.resolve().parent, Path.cwd()))


@contextmanager
def _superlink(work: Path, experiment: Path, deployment: bool) -> Iterator[int]:
    """A SuperLink of this run's own, and the connection that `flwr` will use; gives its port."""
    port, log = free_port(), work / "superlink.log"
    variables = _environment(work, "home", experiment)
    settings = f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n'
    settings += f'address = "{HOST}:{port}"\ninsecure = true\n'
    (work / "home" / "config.toml").write_text(settings, encoding="utf-8")
    command = ["flower-superlink", "--insecure", "--host", HOST, "--port", str(port)]
    command += ["--disable-runtime-dependency-installation"]
    process = start(command if deployment else [*command, "--simulation"], variables, log)
    try:
        wait_for_superlink(process, port, log)
        yield port
    finally:
        stop([process])


@contextmanager
def _supernodes(work: Path, experiment: Path, port: int, clients: int) -> Iterator[None]:
    """A SuperNode per client; each installs the app bundle into a home of its own."""
    nodes: list[subprocess.Popen[bytes]] = []
    try:
        for partition in range(clients):
            variables = _environment(work, f"node-{partition}", experiment)
            command = ["flower-supernode", "--insecure", "--superlink", f"{HOST}:{port}"]
            command += ["--host", HOST, "--port", str(free_port())]
            command += ["--node-config", f"partition-id={partition} num-partitions={clients}"]
            nodes.append(start(command, variables, work / f"node-{partition}.log"))
        yield
    finally:
        stop(nodes)


def _submit(work: Path, experiment: Path, federation: Sequence[str], say: Say) -> Outcome:
    """`flwr run --stream`, then what became of it."""
    variables = environment(work / "home", (experiment.resolve().parent, Path.cwd()))
    command = _flwr("run", str(work / "app"), CONNECTION, "--stream", *federation)
    lines = _streamed(command, variables, say)
    text = "\n".join(lines)
    started = _STARTED.search(text)
    if started is None:
        raise RoundError(f"`flwr run` did not start a run:\n{tail(work / 'superlink.log')}")
    return outcome_of(_status(started.group(1), variables), text)


def outcome_of(status: str, log: str) -> Outcome:
    """What Flower and the ServerApp's last lines say together.

    Args:
        status: Flower's word.
        log: of the run, without colours.
    """
    ended, reasons = _ENDED.findall(log), _REASON.findall(log)
    return Outcome(
        status=status,
        exit_code=int(ended[-1]) if ended else None,
        hashes=tuple(_HASH.findall(log)),
        reason=reasons[-1] if reasons else "",
    )


def _flwr(*arguments: str) -> list[str]:
    return [str(Path(sys.executable).parent / "flwr"), *arguments]


def _streamed(command: Sequence[str], variables: dict[str, str], say: Say) -> list[str]:
    """Run a command and pass its lines on as they come."""
    lines = []
    with subprocess.Popen(
        command, env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        assert process.stdout is not None  # PIPE was asked for
        try:
            for raw in process.stdout:
                line = raw.decode(errors="replace").rstrip("\n")
                lines.append(_COLOURS.sub("", line))
                say(line)
        finally:
            process.terminate()
    return lines


def _status(run_id: str, variables: dict[str, str]) -> str:
    """Flower's status of a run; the log may end a moment before the run counts as finished."""
    status = ""
    for _ in range(STATUS_TRIES):
        command = _flwr("ls", CONNECTION, "--run-id", run_id, "--format", "json")
        listed = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
        try:
            status = str(json.loads(listed.stdout)["runs"][0]["status"])
        except (ValueError, KeyError, IndexError):
            return f"unknown: {listed.stdout.strip() or listed.stderr.strip()}"
        if status.startswith("finished"):
            return status
        time.sleep(1)
    return status


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code of `fedsim run`."""
    parser = argparse.ArgumentParser(prog="fedsim.flower.flwr_run", description="Run under `flwr run`.")
    parser.add_argument("experiment", type=Path, help="experiment file")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides")
    parser.add_argument("--out", type=Path, default=None, help="folder of results")
    parser.add_argument("--deployment", action="store_true", help="one SuperLink, one SuperNode per client")
    options = parser.parse_args(arguments)
    try:
        outcome = run(
            options.experiment,
            options.overrides,
            out=options.out,
            deployment=options.deployment,
            say=lambda line: print(line, flush=True),
        )
    except FedsimError as error:
        print(f"Error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("Interrupted; the SuperLink of this run is stopped.", file=sys.stderr)
        return 128 + signal.SIGINT
    print(f"flwr run: {outcome.status}")
    if outcome.code:
        print(f"Error: {outcome.reason or 'the run failed; its log above says why.'}", file=sys.stderr)
    return outcome.code


def _interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _interrupt)
    sys.exit(main())
