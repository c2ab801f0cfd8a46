"""p of an owner's key over the rounds of a federation: rules, FlatLand, several owners, a server, controls.

    python experiments/watermark_federated/run.py --out runs/watermark_federated

Every variant is `fedsim run experiments/watermark_federated/experiment.toml` with some keys changed, each
seed in a folder of its own; a second call goes on where the first stopped.
"""

import argparse
import json
import statistics
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

warnings.filterwarnings("ignore", category=DeprecationWarning)  # PyG's own, on torch 2.13

from fedsim.launch import launch  # noqa: E402
from fedsim.watermark.false_claims import fresh_keys  # noqa: E402
from fedsim.watermark.key import key_text  # noqa: E402
from fedsim.watermark.sources import read_graph  # noqa: E402
from fedsim.watermark.subgraphs import set_size, split_nodes  # noqa: E402
from fedsim.watermark.verification import Level  # noqa: E402

FILE = Path(__file__).with_name("experiment.toml")
FLATLAND = ("model={ kind = 'lorentz', hidden = 64, dropout = 0.1 }", "client.method.kind=flatland")
VARIANTS: dict[str, tuple[str, ...]] = {
    "fedavg": (),
    "fedavg, no mark": ("client.last_round=0",),
    "fedavg, pace 4": ("client.pace=4.0",),
    "flatland": FLATLAND,
    "flatland, pace 4": (*FLATLAND, "client.pace=4.0"),
    "flatland, no mark": (*FLATLAND, "client.last_round=0"),
    "median": ("strategy.kind=median", "client.pace=4.0"),
    "trimmed mean": ("strategy={ kind = 'trimmed_mean', byzantine = 1 }", "client.pace=4.0"),
    "multi-Krum": ("strategy={ kind = 'multi_krum', byzantine = 1 }", "client.pace=4.0"),
    "geometric median": ("strategy.kind=geometric_median", "client.pace=4.0"),
    "2 owners, pace 4": ("client.owners=[0, 1]", "client.pace=4.0"),
    "5 owners, pace 4": ("client.owners=[0, 1, 2, 3, 4]", "client.pace=4.0"),
    "10 owners, pace 4": ("client.owners=[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]", "client.pace=4.0"),
    "server": (),  # see `server_owner`
}
DATA, MODEL = "Amazon/Photo", "{ kind = 'sage', hidden = 64, layers = 2, dropout = 0.1 }"  # as in the file
ROUNDS, LAST = (5, 10, 20, 30, 35, 40, 50, 60), 30
Z, P = (f"client_diagnostic_watermark_{name}" for name in ("z", "log10_p"))

Told = dict[int, dict[str, list[float]]]
"""Round -> z and log10 p of every owner, and the clients' test accuracy."""


def server_owner(folder: Path, seed: int) -> tuple[str, ...]:
    """Clients know of no key; the server presses its own in after every round until LAST, and notes p."""
    key = folder / f"key-{seed}.json"
    if not key.exists():
        graph = read_graph(DATA)
        size = set_size(len(split_nodes(graph.y, seed).train))
        (made,) = fresh_keys(graph, keys=1, sets=4, size=size, seed=seed)
        folder.mkdir(parents=True, exist_ok=True)
        key.write_text(key_text(made))
    own = f"key = '{key.resolve()}', data = '{DATA}', model = {MODEL}"
    notes = f"{{ kind = 'notes:Notes', {own}, path = '{notes_of(folder, seed).resolve()}' }}"
    plain = "epochs = 3, keep_optimizer = true, optimizer = { kind = 'adam', learning_rate = 2e-3 }"
    mark = f"{{ kind = 'watermark', {own}, last_round = {LAST} }}"
    return (
        f"client={{ kind = 'supervised', {plain} }}",
        f"strategy={{ kind = 'fedavg', after = [{mark}, {notes}] }}",
    )


def notes_of(folder: Path, seed: int) -> Path:
    """What a server's owner noted."""
    return folder / f"notes-{seed}.jsonl"


def read(folder: Path, seed: int) -> Told:
    """One run."""
    told: Told = {}
    for line in lines_of(folder / f"seed-{seed}" / "rounds.jsonl"):
        clients, metrics = line.get("clients", {}), line["metrics"]
        if "client_test_accuracy" in metrics:
            owners = {name: list(clients.get(name, {}).get("by_client", {}).values()) for name in (Z, P)}
            told[line["round"]] = {**owners, "accuracy": [metrics["client_test_accuracy"]]}
    for line in lines_of(notes_of(folder, seed)):
        if line["round"] in told:
            told[line["round"]] |= {Z: [line["z"]], P: [line["log10_p"]]}
    return told


def lines_of(path: Path) -> list[dict[str, Any]]:
    """JSON lines, none where there is no file."""
    return (
        [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []
    )


def row(name: str, runs: list[Told]) -> str:
    """Means over seeds and owners; how many owners the verdict convicts for at LAST and at the end."""

    def over(reduce: Callable[[list[float]], float], number: int, field: str) -> float:
        values = [value for run in runs for value in run.get(number, {}).get(field, [])]
        return reduce(values) if values else float("nan")

    cells = "".join(f"{over(statistics.fmean, number, Z):6.2f}" for number in ROUNDS)
    convicted = []
    for number in (LAST, ROUNDS[-1]):
        values = [10**p <= Level().threshold for run in runs for p in run.get(number, {}).get(P, [])]
        convicted.append(f"10^{over(max, number, P):<6.1f}{sum(values)}/{len(values):<2}")
    accuracy = over(statistics.fmean, ROUNDS[-1], "accuracy")
    return f"{name:18} {len(runs):4}  {accuracy:.4f} |{cells} | {'  '.join(convicted)}"


def draw(found: dict[str, list[Told]], path: Path) -> None:
    """-log10 p by round, means over seeds and owners."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for place, (name, runs) in enumerate(found.items()):
        rounds = sorted({number for run in runs for number in run})
        means = [
            statistics.fmean([-p for run in runs for p in run.get(number, {}).get(P, [])] or [0.0])
            for number in rounds
        ]
        style = ("-", "--", ":")[place // 7]
        axes.plot(rounds, means, style, color=f"C{place % 7}", label=f"{name} ({len(runs)})")
    axes.axhline(8, color="black", lw=0.8, ls="--")
    axes.axvline(LAST, color="grey", lw=0.8)
    axes.set(
        xlabel="round (grey: the owner stops)",
        ylabel="-log10 p of the key (dashed: the verdict)",
        ylim=(0, None),
    )
    axes.legend(fontsize=7, ncols=2, title="variant (seeds)", title_fontsize=7)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--seeds", type=int, nargs="*", default=[0, 1, 2], help="none: only the table of what is there"
    )
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    given = parser.parse_args()
    folders = {name: given.out / name.replace(" ", "_").replace(",", "") for name in VARIANTS}
    for name in given.variants:
        for seed in given.seeds:
            folder = folders[name] / f"seed-{seed}"
            if not (folder / "result.json").is_file():
                changes = server_owner(folders[name], seed) if name == "server" else VARIANTS[name]
                launch(FILE, [*changes, f"seeds=[{seed}]"], out=folder, resume=folder.exists(), talk=False)
    columns = "".join(f"   z@{number:<2}" for number in ROUNDS)
    print(f"variant           seeds  test   |{columns} | largest p and marked @{LAST}, @{ROUNDS[-1]}")
    found = {}
    for name, folder in folders.items():
        seeds = sorted(int(path.parent.name[5:]) for path in folder.glob("seed-*/result.json"))
        if seeds:
            found[name] = [read(folder, seed) for seed in seeds]
            print(row(name, found[name]))
    draw(found, given.out / "p_by_round.png")


if __name__ == "__main__":
    main()
