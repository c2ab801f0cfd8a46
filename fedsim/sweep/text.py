"""Tables of a sweep as Markdown, for the terminal and for files, and as CSV for programs."""

import csv
from collections.abc import Sequence
from io import StringIO
from typing import Any

from fedsim.sweep.collect import Row
from fedsim.sweep.matched import is_lifespan
from fedsim.sweep.paired import Comparison
from fedsim.sweep.pivot import Pivot, entry, groups
from fedsim.sweep.tuning import Choice

STATISTICS = ("n", "mean", "std", "half_width", "low", "high")


def pivot_markdown(pivot: Pivot) -> str:
    """A title and an aligned table."""
    lines = [[pivot.corner, *pivot.columns]]
    for row in pivot.rows:
        entries = [pivot.entries.get((row, column)) for column in pivot.columns]
        lines.append([row, *("" if one is None else one.text for one in entries)])
    title = f"**{_escaped(pivot.title)}**\n\n" if pivot.title else ""
    return title + table_markdown(lines)


def table_markdown(lines: Sequence[Sequence[str]]) -> str:
    """An aligned table whose first line is the heading; all columns but the first are numbers."""
    cells = [[_escaped(text) for text in line] for line in lines]
    widths = [max(3, *(len(line[column]) for line in cells)) for column in range(len(cells[0]))]

    def shown(line: Sequence[str]) -> str:
        padded = [text.rjust(width) for text, width in zip(line[1:], widths[1:], strict=True)]
        return f"| {' | '.join([line[0].ljust(widths[0]), *padded])} |"

    rule = " | ".join(["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])])
    return "\n".join([shown(cells[0]), f"| {rule} |", *(shown(line) for line in cells[1:])]) + "\n"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def comparisons_markdown(found: Sequence[Comparison], within: float) -> str:
    """One line per comparison, a table per metric; `within` as in `fedsim.sweep.paired.comparisons`."""
    heading = ["value", "against", "where", "pairs", "difference", "p (t)", "Holm", "p (Wilcoxon)", "Holm"]
    parts = []
    for metric in dict.fromkeys(one.metric for one in found):
        chosen = [one for one in found if one.metric == metric]
        lines = [heading, *(_comparison(one) for one in chosen)]
        title = f"**{metric}, paired by seed; Holm over {len(chosen)}**\n\n"
        if is_lifespan(metric):
            title += f"Pairs with success at the stop of at least 0.5 each, at most {within:g} apart.\n\n"
        parts.append(title + table_markdown(lines))
    return "\n".join(parts)


def _comparison(one: Comparison) -> list[str]:
    half = "" if one.half_width is None else f" ± {one.half_width:.4f}"
    pairs = f"{one.pairs}" + (f" of {one.pairs + one.unmatched}" if one.unmatched else "")
    tests = (one.t_test, one.t_test_holm, one.wilcoxon, one.wilcoxon_holm)
    return [
        one.label,
        one.baseline,
        one.place,
        pairs,
        "-" if one.difference is None else f"{one.difference:+.4f}{half}",
        *("-" if p is None else f"{p:.3g}" for p in tests),
    ]


def choices_markdown(choices: Sequence[Choice], by: str) -> str:
    """What was settled on validation data, and among how many settings."""
    lines = [["where", "chosen", by, "of"]]
    for one in choices:
        value = "-" if one.value is None else f"{one.value:.4f}"
        count = f"{one.candidates}" + ("" if one.complete else " (incomplete)")
        lines.append([one.place, one.chosen or "none measured", value, count])
    return f"**Settled by the best mean of {by} over seeds**\n\n" + table_markdown(lines)


def statistics_csv(rows: Sequence[Row], metrics: Sequence[str]) -> str:
    """A line per cell and metric: labels, counts, mean and 95 % interval over seeds."""
    names = list(rows[0].axes) if rows else []
    lines: list[Sequence[Any]] = [[*names, "metric", *STATISTICS, "seeds", "ended", "failed"]]
    for labels, part in groups(rows, names).items():
        for metric in metrics:
            one = entry(part, metric)
            found = one.statistic or {"n": 0}
            numbers = [found.get(name) for name in STATISTICS]
            lines.append([*labels, metric, *numbers, one.seeds, one.ended, one.failed])
    return _csv(lines)


def comparisons_csv(found: Sequence[Comparison]) -> str:
    """A line per comparison."""
    fields = list(Comparison.__dataclass_fields__)
    return _csv([fields, *([getattr(one, name) for name in fields] for one in found)])


def rows_csv(rows: Sequence[Row]) -> str:
    """A line per run: labels, seed, status, reason, every metric."""
    names = list(rows[0].axes) if rows else []
    metrics = list(dict.fromkeys(metric for row in rows for metric in row.metrics))
    heading = [*names, "seed", "status", "reason", "seconds", *metrics]
    return _csv(
        [
            heading,
            *(
                [*row.axes.values(), row.seed, row.status, row.reason, row.seconds]
                + [row.metrics.get(metric) for metric in metrics]
                for row in rows
            ),
        ]
    )


def _csv(lines: Sequence[Sequence[Any]]) -> str:
    stream = StringIO()
    csv.writer(stream, lineterminator="\n").writerows(lines)
    return stream.getvalue()
