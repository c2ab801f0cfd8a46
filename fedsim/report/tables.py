"""A finished run as tables for a terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from fedsim.run.runner import Outcome

SEED_COLUMNS = 5
Summary = Mapping[str, Any]


def print_outcomes(console: Console, outcomes: Sequence[Outcome], summary: Summary | None) -> None:
    """Metrics, faults, hashes and folders of all seeds."""
    ended = [outcome for outcome in outcomes if outcome.status != "failed"]
    if ended:
        console.print(seed_table(ended[0]) if len(outcomes) == 1 else seeds_table(ended, summary or {}))
    for outcome in outcomes:
        _print_faults(console, outcome)
    for outcome in ended:
        seed = f"  seed {outcome.seed}" if len(outcomes) > 1 else ""
        console.print(f"model_sha256 {outcome.result['model_sha256']}{seed}", soft_wrap=True, highlight=False)


def seed_table(outcome: Outcome) -> Table:
    """One row per metric: last, best and validation-selected value, and the spread over clients."""
    table = _table(f"seed {outcome.seed}, {outcome.result['rounds']} rounds")
    for heading in ("last", "best (round)", "selected (round)", "clients 10/50/90 %"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, metric in outcome.result["metrics"].items():
        table.add_row(
            name,
            number(metric["last"]["value"]),
            _at_round(metric["best"]),
            _at_round(metric["validation_selected"]),
            _quantiles(metric["last"].get("quantiles")),
        )
    return table


def seeds_table(outcomes: Sequence[Outcome], summary: Summary) -> Table:
    """One row per metric: the last value of each seed, and their mean with its 95 % interval."""
    table = _table(f"last round of {len(outcomes)} seeds")
    shown = outcomes[:SEED_COLUMNS] if len(outcomes) > SEED_COLUMNS else outcomes
    for outcome in shown:
        table.add_column(f"seed {outcome.seed}", justify="right", no_wrap=True)
    if len(shown) < len(outcomes):
        table.add_column("...")
    table.add_column("mean ± 95 %", justify="right", no_wrap=True)
    for name, metric in summary["metrics"].items():
        last = metric["last"]
        cells = [number(last["values"].get(str(outcome.seed))) for outcome in shown]
        gap = [""] if len(shown) < len(outcomes) else []
        table.add_row(name, *cells, *gap, mean_and_interval(last))
    return table


def _table(title: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("metric", no_wrap=True)
    return table


def _print_faults(console: Console, outcome: Outcome) -> None:
    failures = outcome.result["failures"]
    if failures:
        first = failures[0]
        console.print(
            f"seed {outcome.seed}: {len(failures)} failed or refused replies; first: round {first['round']}, "
            f"client {first['partition']}, {first['kind']}: {first['message']}",
            soft_wrap=True,
            highlight=False,
            markup=False,
        )
    if not outcome.result["reproducible"]:
        causes = ", ".join(outcome.result["not_reproducible_because"])
        console.print(f"seed {outcome.seed}: not reproducible to the bit ({causes}).", highlight=False)


def number(value: float | None) -> str:
    """Four decimals below 10, else four digits; a dash where nothing was measured."""
    if value is None:
        return "-"
    return f"{value:.4f}" if abs(value) < 10 else f"{value:.4g}"


def mean_and_interval(statistic: Mapping[str, Any]) -> str:
    """`0.9312 ± 0.0041`, or the mean alone where there is no interval."""
    half = statistic["half_width"]
    return number(statistic["mean"]) + ("" if half is None else f" ± {number(half)}")


def _at_round(point: Mapping[str, Any] | None) -> str:
    return "-" if point is None else f"{number(point['value'])} ({point['round']})"


def _quantiles(quantiles: Mapping[str, float] | None) -> str:
    if not quantiles:
        return ""
    return "/".join(f"{quantiles[level]:.2f}" for level in ("0.1", "0.5", "0.9"))
