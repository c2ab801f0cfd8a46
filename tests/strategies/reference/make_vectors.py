"""Writes byzfl.json beside this file: inputs, and what ByzFL 0.0.11 makes of them.

Run once, in an environment of its own:

    python -m venv byz && byz/bin/pip install torch byzfl==0.0.11
    byz/bin/python tests/strategies/reference/make_vectors.py

ByzFL imports torchvision for its data sets only. Its wheels clash with the CPU build of torch, so a stand-in
takes its place here if it cannot be imported.
"""

import importlib.util
import json
import sys
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np

if importlib.util.find_spec("torchvision") is None:
    for module in ("torchvision", "torchvision.datasets", "torchvision.transforms"):
        sys.modules[module] = MagicMock()

import byzfl

COHORTS = ((3, 1), (7, 2), (8, 2), (11, 3))  # (n, f)
COLUMNS = 6


def answers(rows: np.ndarray, f: int) -> dict[str, object]:
    """ByzFL's aggregates of one cohort, in float64."""
    clipping = byzfl.CenteredClipping(L=3, tau=1.5)
    return {
        "median": byzfl.Median()(rows),
        "trimmed_mean": byzfl.TrMean(f=f)(rows),
        "krum": byzfl.Krum(f=f)(rows),
        "multi_krum": byzfl.MultiKrum(f=f)(rows),
        "geometric_median": byzfl.GeometricMedian(nu=1e-6, T=2000)(rows),
        "centred_clipping": clipping(rows),
        "centred_clipping_again": clipping(2 * rows),
        "nnm": byzfl.NNM(f=f)(rows),
    }


def main() -> None:
    """Draw the cohorts, ask ByzFL, write."""
    generator, cases = np.random.default_rng(0), []
    for n, f in COHORTS:
        rows = generator.normal(size=(n, COLUMNS)) + 0.5
        rows[:f] *= 8
        found = {name: np.asarray(answer).tolist() for name, answer in answers(rows.copy(), f).items()}
        cases.append({"f": f, "rows": rows.tolist(), **found})
    text = json.dumps({"byzfl": "0.0.11", "cases": cases}, indent=1)
    Path(__file__).with_name("byzfl.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
