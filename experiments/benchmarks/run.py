"""Times fedsim against its peers on the same weights and batches.

python experiments/benchmarks/run.py W1 W2 W3 W4 W5 --peers flower,loop
python experiments/benchmarks/run.py W1 --peers pfl,fedjax --pfl-python PATH --fedjax-python PATH
python experiments/benchmarks/run.py --picture curves.png
"""

import argparse
import json
import os
import platform
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import verdict
from catalogue import TOGETHER, WORKLOADS, by_clients, by_parameters
from contenders import PLACES, contenders
from expected import minutes
from page import written
from picture import draw
from profiled import missed, profiles
from rich.console import Console
from session import Played, play
from system import PATIENCE
from workload import Variant

from fedsim.run.provenance import versions

PEERS = ("flower", "pfl", "fedjax", "loop")


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0, or 1 where final models differ or one of ours is missing."""
    asked = _parser().parse_args(arguments)
    console, errors = Console(width=110), Console(stderr=True)
    torch.set_num_threads(1)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the systems are ended too
    begun, played = time.monotonic(), Played([], {})
    groups = [[(one, _contenders(one, asked)) for one in group] for group in _groups(asked)]
    if not asked.quick:
        errors.print(f"about {minutes(groups):.0f} minutes on two idle cores, without profiles")
    for group in groups:
        found = play(group, errors.print, asked.patience)
        played = Played(played.rows + found.rows, played.times | found.times)
        report = _report(asked, played, (time.monotonic() - begun) / 60)
        _write(asked, report)  # what was found so far outlives an interrupted command
    wanted = missed(report["ratios"], every=asked.profile) if groups else []
    if wanted:
        errors.print(f"profiles: {', '.join(map(' '.join, wanted))}")
        variants = {one.name: one for group in groups for one, _ in group}
        report |= {"profiles": profiles(wanted, variants, played.rows)}
        _write(asked, report)
    verdict.show(report, console)
    return int(any(_bad(row) for row in played.rows))


def _report(asked: argparse.Namespace, played: Played, taken: float) -> dict[str, Any]:
    return {
        "machine": machine(),
        "quick": asked.quick,
        "minutes": round(taken, 1),
        "rows": played.rows,
        "ratios": verdict.ratios(played.times, judged=not asked.quick),
        "limits": [] if asked.quick else verdict.limits(played.rows),
        "profiles": [],
    }


def _write(asked: argparse.Namespace, report: dict[str, Any]) -> None:
    asked.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if asked.picture:
        draw(report["rows"], asked.picture)
    if asked.markdown:
        asked.markdown.write_text(written(report, _command(asked)), encoding="utf-8")


def machine() -> dict[str, Any]:
    """Features only, no names."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cores": len(os.sched_getaffinity(0)),
        "machine": platform.machine(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "memory_gib": round(pages / 2**30),
        "versions": {name: found for name, found in versions().items() if found},
    }


def _groups(asked: argparse.Namespace) -> list[list[Variant]]:
    """Variants that are interleaved with each other; each group is a session of its own."""
    groups: list[list[Variant]] = []
    for name in asked.workloads:
        variants = WORKLOADS[name].variants(asked.quick)
        groups += [variants] if name in TOGETHER else [[one] for one in variants]
    if asked.picture:
        groups += [[one] for one in (*by_clients(asked.quick), *by_parameters(asked.quick))]
    return groups


def _contenders(variant: Variant, asked: argparse.Namespace) -> list[Any]:
    places = asked.places.split(",") if asked.places else None
    pythons = {"pfl": asked.pfl_python, "fedjax": asked.fedjax_python}
    return contenders(variant, asked.peers, places, pythons)


def _command(asked: argparse.Namespace) -> str:
    """What was typed, with interpreters and files left out."""
    words = [*asked.workloads, "--peers", ",".join(asked.peers)]
    words += ["--places", asked.places] if asked.places else []
    words += ["--picture PATH"] if asked.picture else []
    words += ["--quick"] if asked.quick else []
    return f"python experiments/benchmarks/run.py {' '.join(words)}"


def _bad(row: dict[str, Any]) -> bool:
    if "missing" in row:
        return row["tier"] is not None
    return not row["model_agrees"]


def _peers(text: str) -> list[str]:
    chosen = [word for word in text.split(",") if word]
    for peer in chosen:
        if peer not in PEERS:
            raise argparse.ArgumentTypeError(f"{peer!r} is none of {', '.join(PEERS)}")
    return chosen


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("workloads", nargs="*", choices=[[], *WORKLOADS], metavar="W1..W5")
    parser.add_argument("--peers", type=_peers, default=["loop"], help="of flower, pfl, fedjax, loop")
    parser.add_argument("--pfl-python", help="interpreter of an environment with pfl")
    parser.add_argument("--fedjax-python", help="interpreter of an environment with fedjax")
    parser.add_argument(
        "--places", help=f"backend:workers of ours; default {','.join(PLACES)}, Ray where it tells something"
    )
    parser.add_argument("--out", type=Path, default=Path("benchmark.json"), help="the report")
    parser.add_argument("--markdown", type=Path, help="the report as a page")
    parser.add_argument("--picture", type=Path, help="draw times against clients and parameters")
    parser.add_argument("--profile", action="store_true", help="of every ratio, not only of those missed")
    parser.add_argument("--patience", type=float, default=PATIENCE, help="seconds for one answer of a system")
    parser.add_argument("--quick", action="store_true", help="toy sizes: does everything start?")
    return parser


if __name__ == "__main__":
    sys.exit(main())
