"""p of an owner's key over the rounds of a federation: rules, FlatLand, several owners, and controls.

    python experiments/watermark_federated/run.py --out runs/watermark_federated

Every variant is `fedsim run experiments/watermark_federated/experiment.toml` with some keys changed, in a
folder of its own; a second call goes on where the first stopped.
"""

import argparse
import json
import statistics
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

warnings.filterwarnings("ignore", category=DeprecationWarning)  # PyG's own, on torch 2.13

from fedsim.launch import launch  # noqa: E402

FILE = Path(__file__).with_name("experiment.toml")
FLATLAND = ("model={ kind = 'lorentz', hidden = 64, dropout = 0.1 }", "client.method.kind=flatland")
VARIANTS: dict[str, tuple[str, ...]] = {
    "fedavg": (),
    "fedavg, no mark": ("client.last_round=0",),
    "fedavg, pace 4": ("client.pace=4.0",),
    "flatland": FLATLAND,
    "flatland, pace 4": (*FLATLAND, "client.pace=4.0"),
    "flatland, no mark": (*FLATLAND, "client.last_round=0"),
    "median": ("strategy.kind=median",),
    "trimmed mean": ("strategy={ kind = 'trimmed_mean', byzantine = 1 }",),
    "multi-Krum": ("strategy={ kind = 'multi_krum', byzantine = 1 }",),
    "geometric median": ("strategy.kind=geometric_median",),
    "2 owners": ("client.owners=[0, 1]",),
    "5 owners": ("client.owners=[0, 1, 2, 3, 4]",),
}
Z, P, ACCURACY = (
    f"client_{name}" for name in ("diagnostic_watermark_z", "diagnostic_watermark_log10_p", "test_accuracy")
)


def records(folder: Path) -> Iterator[list[dict[str, Any]]]:
    """The rounds of each seed."""
    for path in sorted(folder.rglob("rounds.jsonl")):
        yield [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def row(name: str, folder: Path, rounds: list[int]) -> str:
    """z of the key by round, mean over seeds and owners; p at the owner's last round and at the end."""
    runs = [{one["round"]: one["metrics"] for one in seed} for seed in records(folder)]
    cells = []
    for number in rounds:
        values = [run[number][Z] for run in runs if run.get(number, {}).get(Z) is not None]
        cells.append(f"{statistics.fmean(values):6.2f}" if values else "     -")
    worst = [
        max((run[number][P] for run in runs if number in run), default=float("nan")) for number in (30, 60)
    ]
    right = [run[60][ACCURACY] for run in runs if 60 in run]
    mean = f"{statistics.fmean(right):.4f}" if right else "-"
    return f"{name:18} {len(runs)} {mean:>6} |{''.join(cells)} | 10^{worst[0]:.1f} 10^{worst[1]:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    given = parser.parse_args()
    rounds = [5, 10, 20, 30, 35, 40, 50, 60]
    for name in given.variants:
        folder = given.out / name.replace(" ", "_").replace(",", "")
        seeds = f"seeds={given.seeds}"
        launch(FILE, [*VARIANTS[name], seeds], out=folder, resume=folder.exists(), talk=False)
    print(
        "variant        seeds  test |"
        + "".join(f"   z@{number:<2}" for number in rounds)
        + " | largest p @30, @60"
    )
    for name in given.variants:
        print(row(name, given.out / name.replace(" ", "_").replace(",", ""), rounds))


if __name__ == "__main__":
    main()
