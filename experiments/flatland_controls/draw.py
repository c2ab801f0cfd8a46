"""Pictures of FlatLand's diagnostics: K against rounds, and gain against hyperbolicity.

    python experiments/flatland_controls/draw.py RUN [BASELINE] --out FOLDER

RUN is the folder of one seed, made with `client.diagnostics = true`; BASELINE that of another method on the
same clients (same data, federation and seed), such as local training. Writes `curvature.png` and, with
a baseline, `gain.png`. Every client is one line or one point.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

Record = Mapping[str, Any]
ACCURACY = "client_test_accuracy"


def records(folder: Path) -> list[Record]:
    """The rounds of a run in which clients were measured."""
    lines = (folder / "rounds.jsonl").read_text(encoding="utf-8").splitlines()
    return [record for record in map(json.loads, lines) if record["clients"]]


def by_client(found: Sequence[Record], metric: str) -> dict[str, list[float]]:
    """Each client's values over the measured rounds.

    Raises:
        SystemExit: the run did not tell this metric.
    """
    rows = [record["clients"].get(metric, {}).get("by_client") for record in found]
    if not rows or any(row is None for row in rows):
        raise SystemExit(f"draw.py: the run has no {metric} by client: set client.diagnostics = true.")
    return {client: [row[client] for row in rows] for client in rows[0]}


def draw_curvature(found: Sequence[Record], path: Path) -> None:
    """K, the norms of m x_t and M x_s, and the manifold's residual, against rounds."""
    panels = {
        "diagnostic_k_0": "K",
        "diagnostic_time_norm_0": "|m x_t|, first layer",
        "diagnostic_space_norm_0": "|M x_s|, first layer",
        "diagnostic_residual_0": "residual, first layer",
    }
    rounds = [record["round"] for record in found]
    figure, axes = plt.subplots(1, len(panels), figsize=(4 * len(panels), 3.2), layout="constrained")
    for axis, (metric, label) in zip(axes, panels.items(), strict=True):
        for client, values in by_client(found, f"client_{metric}").items():
            axis.plot(rounds, values, linewidth=1, label=f"client {client}")
        axis.set(xlabel="round", ylabel=label, yscale="log" if "residual" in metric else "linear")
    if len(axes[0].lines) <= 10:
        axes[0].legend(fontsize=6)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def draw_gain(found: Sequence[Record], baseline: Sequence[Record], path: Path) -> None:
    """Accuracy above the baseline in the last round, against each fact about the clients' graphs."""
    ours, theirs = by_client(found[-1:], ACCURACY), by_client(baseline[-1:], ACCURACY)
    if ours.keys() != theirs.keys():
        raise SystemExit("draw.py: the two runs have different clients.")
    facts = {
        "graph_delta_mean": "mean delta of the client's graph",
        "graph_delta_relative": "2 delta / diameter",
        "graph_degree_tail": "Hill exponent of degrees",
        "graph_forman_ricci": "mean Forman-Ricci curvature",
    }
    figure, axes = plt.subplots(1, len(facts), figsize=(4 * len(facts), 3.2), layout="constrained")
    for axis, (fact, label) in zip(axes, facts.items(), strict=True):
        values = by_client(found[-1:], f"client_diagnostic_{fact}")
        for client in ours:
            axis.plot(values[client][0], 100 * (ours[client][0] - theirs[client][0]), "o", color="tab:blue")
            axis.annotate(
                client, (values[client][0], 100 * (ours[client][0] - theirs[client][0])), fontsize=7
            )
        axis.axhline(0, color="grey", linewidth=0.8)
        axis.set(xlabel=label, ylabel="gain in accuracy, points")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main() -> None:
    """Read the command's words, and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("baseline", type=Path, nargs="?")
    parser.add_argument("--out", type=Path, default=Path())
    words = parser.parse_args()
    words.out.mkdir(parents=True, exist_ok=True)
    found = records(words.run)
    draw_curvature(found, words.out / "curvature.png")
    if words.baseline is not None:
        draw_gain(found, records(words.baseline), words.out / "gain.png")


if __name__ == "__main__":
    main()
