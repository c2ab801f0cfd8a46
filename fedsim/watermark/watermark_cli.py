"""`fedsim watermark`: make a key, embed it, verify a suspect, audit the proof. Exit codes as `fedsim`.

Heavy libraries are imported inside the commands, so that `fedsim --help` answers at once.
"""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Ownership of a graph model, proved through its explanations.",
)

KeyFile = Annotated[Path, typer.Argument(metavar="KEY", help="A key file.", show_default=False)]
Data = Annotated[
    str,
    typer.Option(
        "--data",
        metavar="NAME",
        help="A graph, such as Amazon/Photo, or a safetensors file with x, edge_index and y.",
        show_default=False,
    ),
]
Mirror = Annotated[
    str | None, typer.Option("--mirror", metavar="DIR", help="Raw data sets; else FEDSIM_DATA_MIRROR.")
]
Overrides = Annotated[
    list[str],
    typer.Option(
        "--set",
        metavar="KEY.PATH=VALUE",
        help="Of the tables model and embedding, such as model.kind=sage; may be repeated.",
    ),
]
Seed = Annotated[int, typer.Option("--seed", help="Of everything that is drawn.")]
AsJson = Annotated[bool, typer.Option("--json", help="Only the result, as JSON on standard output.")]
Alpha = Annotated[float, typer.Option(help="Level of the verdict for a single key.")]
Budget = Annotated[int, typer.Option(help="Keys that an owner could have tried; divides alpha.")]


@app.command("keygen")
def keygen_command(
    data: Data,
    owner: Annotated[str, typer.Option(help="As it shall stand in public.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The key; holds the secret.")] = Path(
        "watermark-key.json"
    ),
    date: Annotated[str | None, typer.Option(help="ISO 8601; else today.")] = None,
    sets: Annotated[int, typer.Option(help="T, sets of nodes.")] = 4,
    share: Annotated[float, typer.Option(help="Nodes of a set, as a share of the training nodes.")] = 0.005,
    size: Annotated[int | None, typer.Option(help="Nodes of a set, in place of --share.")] = None,
    marks: Annotated[int | None, typer.Option(help="M, marked features; else by the paper's rule.")] = None,
    seed: Seed = 0,
    mirror: Mirror = None,
) -> None:
    """Draw sets of training nodes and a key for them, and write the commitment to publish beside it."""
    with clear_errors():
        from fedsim.watermark.key_files import keygen

        for line in keygen(
            data,
            out,
            owner=owner,
            date=date,
            sets=sets,
            share=share,
            size=size,
            marks=marks,
            seed=seed,
            mirror=mirror,
        ):
            typer.echo(line)


@app.command("embed")
def embed_command(
    keys: Annotated[
        list[Path], typer.Argument(metavar="KEY...", help="One key, or those of several owners.")
    ],
    data: Data,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The model.")] = Path(
        "model.safetensors"
    ),
    overrides: Overrides = [],  # noqa: B006 - typer reads the default, nobody changes it
    unmarked: Annotated[bool, typer.Option("--unmarked", help="Train the control: no mark.")] = False,
    seed: Seed = 0,
    mirror: Mirror = None,
    as_json: AsJson = False,
) -> None:
    """Train a model on the data and on the keys at once."""
    with clear_errors():
        from fedsim.watermark.commands import embed

        for line in embed(
            keys, data, out, overrides, marked=not unmarked, seed=seed, mirror=mirror, as_json=as_json
        ):
            typer.echo(line)


@app.command("verify")
def verify_command(
    key: KeyFile,
    suspect: Annotated[
        str,
        typer.Argument(
            metavar="SUSPECT",
            help="A safetensors model, package.module:function, or http://...",
            show_default=False,
        ),
    ],
    data: Data,
    alpha: Alpha = 0.01,
    budget: Budget = 1_000_000,
    null_sets: Annotated[
        int, typer.Option(help="Other sets to ask about, for the paper's matching index; 0: none.")
    ] = 100,
    commitment: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Published commitment that the key must open.")
    ] = None,
    picture: Annotated[Path | None, typer.Option(metavar="FILE", help="A PNG of the nulls.")] = None,
    overrides: Overrides = [],  # noqa: B006
    mirror: Mirror = None,
    as_json: AsJson = False,
) -> None:
    """Does the suspect carry the key's mark? Asks for nothing but probabilities."""
    with clear_errors():
        from fedsim.watermark.commands import verify_suspect

        for line in verify_suspect(
            key,
            suspect,
            data,
            alpha=alpha,
            budget=budget,
            null_sets=null_sets,
            commitment=commitment,
            picture=picture,
            overrides=overrides,
            mirror=mirror,
            as_json=as_json,
        ):
            typer.echo(line)


@app.command("export")
def export_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An experiment file.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Of keys and graphs.")] = Path("keys"),
    seed: Annotated[int | None, typer.Option(help="Of the run; else the file's first.")] = None,
    overrides: Annotated[
        list[str], typer.Option("--set", metavar="KEY.PATH=VALUE", help="As for fedsim run.")
    ] = [],  # noqa: B006
) -> None:
    """Write the keys and graphs of a federation's owners, with which each verifies any model by itself."""
    with clear_errors():
        from fedsim.watermark.key_files import export

        for line in export(file, overrides, out, seed):
            typer.echo(line)


@app.command("audit")
def audit_command(
    data: Data,
    parts: Annotated[
        list[str], typer.Option("--part", help="claims, forgery or cost; may be repeated; else all.")
    ] = [],  # noqa: B006
    models: Annotated[int, typer.Option(help="Unmarked models to claim.")] = 20,
    keys: Annotated[int, typer.Option(help="Claims on each, with fresh sets and a fresh key.")] = 50,
    sets: Annotated[int, typer.Option(help="T, sets of nodes.")] = 4,
    size: Annotated[
        int | None, typer.Option(help="Nodes of a set; else 0.005 of the training nodes.")
    ] = None,
    secrets: Annotated[int, typer.Option(help="Keys that the forger grinds.")] = 10_000,
    candidates: Annotated[int, typer.Option(help="Random sets that the forger knows.")] = 600,
    swaps: Annotated[int, typer.Option(help="Nodes that the forger tries to exchange.")] = 400,
    seed: Seed = 0,
    overrides: Overrides = [],  # noqa: B006
    mirror: Mirror = None,
    as_json: AsJson = False,
) -> None:
    """Measure false claims on unmarked models, forgeries, and what a mark costs on isolated nodes."""
    with clear_errors():
        from fedsim.watermark.commands import audit
        from fedsim.watermark.forgery import Effort

        effort = Effort(candidates=candidates, swaps=swaps, secrets=secrets)
        for line in audit(
            data,
            parts,
            overrides,
            models=models,
            keys=keys,
            sets=sets,
            size=size,
            effort=effort,
            seed=seed,
            mirror=mirror,
            as_json=as_json,
        ):
            typer.echo(line)


@app.command("serve")
def serve_command(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A safetensors model.", show_default=False)],
    port: Annotated[int, typer.Option(help="0: any free one.")] = 8080,
    host: Annotated[str, typer.Option(help="To listen on; the default is this machine alone.")] = "127.0.0.1",
    overrides: Overrides = [],  # noqa: B006
) -> None:
    """Answer POST {x, edge_index} with {probabilities} for a model: a black box to verify."""
    with clear_errors():
        from fedsim.watermark.commands import serve

        serve(model, overrides, host=host, port=port, tell=typer.echo)


def clear_errors() -> AbstractContextManager[None]:
    """That of `fedsim.cli`, which imports this module."""
    from fedsim.cli import clear_errors as clear

    return clear()
