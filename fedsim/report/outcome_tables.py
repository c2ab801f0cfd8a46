"""A finished run as tables for a terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from fedsim.run.incidents import spelt
from fedsim.run.outcome import Outcome
from fedsim.run.results import MEAN

SEED_COLUMNS = 5
MOST_EVENTS = 3  # that are spelt out for each seed
Summary = Mapping[str, Any]


def print_outcomes(console: Console, outcomes: Sequence[Outcome], summary: Summary | None) -> None:
    """Metrics, faults, hashes and folders of all seeds."""
    ended = [outcome for outcome in outcomes if outcome.status != "failed"]
    if ended:
        console.print(seed_table(ended[0]) if len(outcomes) == 1 else seeds_table(ended, summary or {}))
    for outcome in outcomes:
        _print_attack(console, outcome)
        _print_faults(console, outcome)
    for outcome in ended:
        seed = f"  seed {outcome.seed}" if len(outcomes) > 1 else ""
        console.print(f"model_sha256 {outcome.result['model_sha256']}{seed}", soft_wrap=True, highlight=False)


def seed_table(outcome: Outcome) -> Table:
    """One row per metric: last, best and validation-selected value, and the spread over clients."""
    table = _table(f"seed {outcome.seed}, {outcome.result['rounds']} rounds")
    for heading in ("last", "best (round)", "selected (round)", "clients 10/50/90 %"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, metric in _in_table(outcome.result["metrics"]):
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
    table.add_column(f"{len(outcomes)} other seeds", justify="right", no_wrap=True)
    for name, metric in _in_table(summary["metrics"]):
        last = metric["last"]
        cells = [number(last["values"].get(str(outcome.seed))) for outcome in shown]
        gap = [""] if len(shown) < len(outcomes) else []
        table.add_row(name, *cells, *gap, mean_and_interval(last), _pair(last["again"]))
    return table


def _in_table(metrics: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Without the plain means over clients, which result.json tells and few read beside the pooled ones."""
    measured = [(name, metric) for name, metric in metrics.items() if metric and metric.get("last")]
    return [(name, metric) for name, metric in measured if not name.startswith(MEAN)]


def _print_attack(console: Console, outcome: Outcome) -> None:
    """Durability and detection, and whether the rule did anything at all."""
    metrics, lines = outcome.result["metrics"], []
    if success := metrics.get("attack_success"):
        told = (
            f"{name} {number(success[name])}" for name in ("at_stop", "floor", "auc50", "plus_25", "plus_50")
        )
        few = "" if success["auc_rounds"] in (0, 51) else f" (auc50 over {success['auc_rounds']} rounds only)"
        lines.append("attack success " + ", ".join(told) + few)
    if life := metrics.get("attack_lifespan"):
        more = " or more" if life["still_alive"] else ""
        lines.append(f"attack lifespan {life['rounds']}{more} rounds after the stop")
    if scores := metrics.get("detector"):
        names = ("precision", "recall", "f1", "false_positive_rate", "weight_kept")
        lines.append("rule as detector " + ", ".join(f"{name} {number(scores[name])}" for name in names))
    hostile = not scores or scores["recall"] is not None
    if outcome.result.get("defence_active") is False and hostile:
        lines.append("the rule equalled the plain mean in every round under attack: it defended nothing")
    if empty := outcome.result.get("empty_selections"):
        lines.append(
            f"the rule trusted nobody in {len(empty)} rounds, first in round {empty[0]}: the model stayed"
        )
    for line in lines:
        console.print(f"seed {outcome.seed}: {line}", soft_wrap=True, highlight=False)


def _table(title: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("metric", no_wrap=True)
    return table


def _print_faults(console: Console, outcome: Outcome) -> None:
    failures = outcome.result["failures"]
    if failures:
        first = failures[0]
        _say(
            console,
            f"seed {outcome.seed}: {len(failures)} failed or refused replies; first: round {first['round']}, "
            f"client {first['partition']}, {first['kind']}: {first['message']}",
        )
    events = outcome.result.get("events", ())
    for event in events[:MOST_EVENTS]:
        _say(console, f"seed {outcome.seed}: event: {spelt(event)}")
    if len(events) > MOST_EVENTS:
        _say(console, f"seed {outcome.seed}: and {len(events) - MOST_EVENTS} more events, see result.json")
    for detour in outcome.result.get("detours", ()):
        since, clients = detour["since_round"], detour["clients"]
        _say(
            console,
            f"seed {outcome.seed}: since round {since}, {clients} clients in all ran one at a time, not "
            f"stacked: {detour['reason']}",
        )
    if not outcome.result["reproducible"]:
        causes = ", ".join(outcome.result["not_reproducible_because"])
        _say(console, f"seed {outcome.seed}: not reproducible to the bit ({causes}).")


def _say(console: Console, line: str) -> None:
    console.print(line, soft_wrap=True, highlight=False, markup=False)


def number(value: float | None) -> str:
    """Four decimals below 10, else four digits; a dash where nothing was measured."""
    if value is None:
        return "-"
    return f"{value:.4f}" if abs(value) < 10 else f"{value:.4g}"


def mean_and_interval(statistic: Mapping[str, Any]) -> str:
    """`0.9312 ± 0.0041`, or the mean alone where there is no interval."""
    half = statistic["half_width"]
    return number(statistic["mean"]) + ("" if half is None else f" ± {number(half)}")


def _pair(bounds: Sequence[float] | None) -> str:
    return "" if bounds is None else f"{number(bounds[0])} to {number(bounds[1])}"


def _at_round(point: Mapping[str, Any] | None) -> str:
    return "-" if point is None else f"{number(point['value'])} ({point['round']})"


def _quantiles(quantiles: Mapping[str, float] | None) -> str:
    if not quantiles:
        return ""
    return "/".join(f"{quantiles[level]:.2f}" for level in ("0.1", "0.5", "0.9"))
