"""The `fedsim` command. Exit codes: 0 done, 1 failed, 2 bad input, 3 expectation not met, 130 interrupted.

Heavy libraries are imported inside the commands, so that `fedsim --help` answers at once.
"""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

import typer

from fedsim.errors import FedsimError
from fedsim.watermark.watermark_cli import app as watermark_app

INTERRUPTED = 130

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
)

app.add_typer(watermark_app, name="watermark")

File = Annotated[Path, typer.Argument(metavar="FILE", help="An experiment file (TOML).", show_default=False)]
Overrides = Annotated[
    list[str],
    typer.Option("--set", metavar="KEY.PATH=VALUE", help="Change a value of the file; may be repeated."),
]
Out = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="Folder of the run; else runs/NAME/TIME.")
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Go on with the run in --out, or with the latest one.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Only the result.")]
AsJson = Annotated[bool, typer.Option("--json", help="Only the result, as JSON on standard output.")]


@app.command("run")
def run_command(
    file: File,
    overrides: Overrides = [],  # noqa: B006 - typer reads the default, nobody changes it
    out: Out = None,
    resume: Resume = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Run an experiment: all seeds, a table, and a folder with everything behind it."""
    with clear_errors():
        from fedsim.launch import launch
        from fedsim.run.outcome import exit_code

        outcomes = launch(
            file, overrides, out=out, resume=resume, talk=not (quiet or as_json), as_json=as_json
        )
        raise typer.Exit(exit_code(outcomes))


@app.command("sweep")
def sweep_command(
    file: File,
    overrides: Overrides = [],  # noqa: B006
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Folder of the sweep; else runs/NAME/sweep.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="The folder must hold a sweep; what is finished is kept anyway.")
    ] = False,
    cells: Annotated[
        list[str],
        typer.Option("--cells", metavar="AXIS=LABEL,LABEL", help="Play these cells only; may be repeated."),
    ] = [],  # noqa: B006
    seeds: Annotated[
        str | None, typer.Option("--seeds", metavar="N,N", help="Play these seeds of the file only.")
    ] = None,
    jobs: Annotated[int | None, typer.Option("--jobs", help="Runs at a time; else one per core.")] = None,
    any_code: Annotated[
        bool, typer.Option("--any-code", help="Keep runs that other code made; else they are played again.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Run every cell of a file's [sweep] table with every seed: tables, heat maps, resumable."""
    with clear_errors():
        from fedsim.sweep.command import seed_list, sweep

        code = sweep(
            file,
            overrides,
            out=out,
            resume=resume,
            filters=cells,
            seeds=seed_list(seeds),
            jobs=jobs,
            talk=not quiet,
            any_code=any_code,
        )
        raise typer.Exit(code)


@app.command("check")
def check_command(file: File, overrides: Overrides = []) -> None:  # noqa: B006
    """Look at an experiment before running it: data, sizes, memory, workers."""
    with clear_errors():
        from fedsim.report.check import print_preflight

        print_preflight(file, overrides)


@app.command("list")
def list_command() -> None:
    """All tables and plugins with their keys, defaults and meanings."""
    with clear_errors():
        from fedsim.report.plugin_list import print_plugins

        print_plugins()


@app.command("doctor")
def doctor_command() -> None:
    """Versions, cores, memory, GPUs, Ray, and the data mirror."""
    with clear_errors():
        from fedsim.report.doctor import print_doctor

        print_doctor()


@app.command("app")
def app_command(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A Flower app's folder.", show_default=False)],
    clients: Annotated[
        int | None, typer.Option(help="SuperNodes; else what the app declares, or 10.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of everything that the run draws.")] = 0,
    backend: Annotated[str, typer.Option(help="in-process or ray.")] = "in-process",
    workers: Annotated[int | None, typer.Option(help="Workers; else one per core, 8 at most.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    deadline: Annotated[
        float | None, typer.Option(help="Seconds that a worker may take for a round.")
    ] = None,
    run_config: Annotated[
        list[str], typer.Option("--run-config", metavar="KEYS", help="Changes, as flwr run takes them.")
    ] = [],  # noqa: B006
    max_failed_fraction: Annotated[float, typer.Option(help="Of a round's messages that may fail.")] = 0.0,
) -> None:
    """Run somebody else's Flower app on fedsim's engine, unmodified."""
    with clear_errors():
        from fedsim.engine.options import EngineOptions
        from fedsim.flower.foreign.app import run_app
        from fedsim.flower.foreign.result import summary_lines

        known: Any = backend  # the options refuse anything else
        options = EngineOptions(backend=known, workers=workers, device=device, deadline=deadline)
        result = run_app(
            path,
            clients=clients,
            seed=seed,
            engine=options,
            overrides=run_config,
            max_failed_fraction=max_failed_fraction,
        )
        for line in summary_lines(result):
            typer.echo(line)
        raise typer.Exit(result.exit_code)


@contextmanager
def clear_errors() -> Iterator[None]:
    """Deliberate errors become one line on standard error and an exit code; SIGTERM acts like Ctrl-C."""

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    except FedsimError as error:
        typer.echo("fedsim: " + " ".join(str(error).split()), err=True)
        raise typer.Exit(error.exit_code) from None
    except OSError as error:  # a full disk, a folder that is gone
        typer.echo(f"fedsim: {type(error).__name__}: {' '.join(str(error).split())}", err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        typer.echo("fedsim: interrupted; workers were ended. Go on with --resume.", err=True)
        raise typer.Exit(INTERRUPTED) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def main() -> None:
    """Entry point of the console script."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without ± shows ? and does not fail
    try:
        app()
    except SystemExit as ended:
        if ended.code == INTERRUPTED:  # a second Ctrl-C has nothing left to end
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise
