"""Operations on rows [n, d] that several rules share; none makes an n x n x d or a second n x d array.

A block is some columns of all rows; with n = 200 it is about 5,000 columns wide.
"""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from fedsim.contracts import Cohort, Matrix, SmallestCohort, Vector
from fedsim.errors import ConfigError, RoundError

Block = Callable[[Tensor, slice], Matrix]

BLOCK_BYTES = 2**23
"""Size of a float64 block, in bytes: small beside the rows, large enough for a fast matrix product."""

CACHED_COLUMNS = 2**16
"""Columns of a sum over rows that stay in a processor's cache, in float64, from one row to the next."""

CANCELLED = 1e-8
"""A squared distance below this share of the squared norms it came from has lost half its digits."""


def column_blocks(updates: Matrix) -> Iterator[slice]:
    """Ranges of columns that cover all of them, each at most BLOCK_BYTES in float64."""
    n, d = updates.shape
    width = max(1, BLOCK_BYTES // (8 * max(1, n)))
    yield from (slice(start, min(start + width, d)) for start in range(0, d, width))


def by_column(updates: Matrix, function: Callable[[Matrix], Vector]) -> Vector:
    """A function of each column alone, applied block by block.

    Args:
        updates: [n, d].
        function: [n, w] -> [w]; it must not change its argument.

    Returns:
        [d] in the type of `updates`.
    """
    result = torch.empty(updates.shape[1], dtype=updates.dtype, device=updates.device)
    for columns in column_blocks(updates):
        result[columns] = function(updates[:, columns])
    return result


def sorted_columns(block: Matrix) -> Matrix:
    """[n, w] -> [n, w], each column in ascending order."""
    if block.device.type != "cpu":
        return block.sort(dim=0).values
    return torch.from_numpy(np.sort(block.numpy(), axis=0))  # torch's own takes 15 times as long


def shares(cohort: Cohort, *, weighted: bool) -> Vector:
    """Each client's share of the examples, or 1/n; [n] float64 with sum 1, where the updates are."""
    counts = cohort.examples.double() if weighted else torch.ones(len(cohort.partitions)).double()
    return (counts / counts.sum()).to(cohort.updates.device)


def combination(updates: Matrix, coefficients: Vector) -> Vector:
    """Sum of the rows times their coefficients, accumulated row by row, some columns at a time.

    Args:
        updates: [n, d].
        coefficients: [n]; rows with coefficient 0 are not read.

    Returns:
        [d] float64.
    """
    total = torch.zeros(updates.shape[1], dtype=torch.float64, device=updates.device)
    pieces = zip(torch.split(total, CACHED_COLUMNS), torch.split(updates, CACHED_COLUMNS, dim=1), strict=True)
    factors = coefficients.tolist()
    for sums, rows in pieces:
        for row, factor in zip(rows, factors, strict=True):
            if factor != 0:
                sums.add_(row, alpha=factor)
    return total


def measured(row: Vector, kept: Tensor | None) -> Vector:
    """The values of [d] by which lengths are taken, [k]; `kept` as in `fedsim.params.Layout.trained`."""
    return row if kept is None else row[kept.to(row.device)]


def norms(updates: Matrix, centre: Vector | None = None, *, kept: Tensor | None = None) -> Vector:
    """Euclidean norm of each row, or its distance from a centre.

    Args:
        updates: [n, d].
        centre: [d], or None for the origin.
        kept: [d] bool, the columns that count; None: all.

    Returns:
        [n] float64.
    """
    if centre is None:
        found = [torch.linalg.vector_norm(measured(row, kept), dtype=torch.float64).item() for row in updates]
    else:  # one buffer for all rows: a new one for each fragments the heap, up to a second [n, d] array
        start = measured(centre, kept).double()
        difference = torch.empty_like(start)
        found = [
            torch.linalg.vector_norm(torch.sub(measured(row, kept), start, out=difference)).item()
            for row in updates
        ]
    return torch.tensor(found, dtype=torch.float64, device=updates.device)


def products(updates: Matrix, vector: Vector) -> Vector:
    """Inner product of each row with a vector [d]; [n] float64."""
    total = torch.zeros(len(updates), dtype=torch.float64, device=updates.device)
    for columns in column_blocks(updates):
        total += updates[:, columns].double() @ vector[columns].double()
    return total


def squared_distances(
    updates: Matrix,
    *,
    shift: Vector | None = None,
    scale: Vector | None = None,
    kept: Tensor | None = None,
) -> Matrix:
    """Squared Euclidean distance of every pair of rows.

    From inner products of centred rows, block by block in float64. Rows that are close to each other but
    far from the centre would lose their digits so; such groups are measured again about their own centre.

    Args:
        updates: [n, d].
        shift: [d], added to every row first.
        scale: [n], every row is multiplied by its entry after that.
        kept: [d] bool, the columns that count; None: all.

    Returns:
        [n, n] float64, symmetric, with zeros on the diagonal.
    """

    def block(rows: Tensor, columns: slice) -> Matrix:
        chosen = updates[rows, columns].double()
        if shift is not None:
            chosen += shift[columns]
        if kept is not None:
            chosen = chosen[:, kept[columns].to(chosen.device)]
        return chosen if scale is None else chosen.mul_(scale[rows, None])

    everyone = torch.arange(len(updates), device=updates.device)
    return _distances(block, list(column_blocks(updates)), everyone)


def cosine_distances(updates: Matrix, *, shift: Vector | None = None, kept: Tensor | None = None) -> Matrix:
    """1 - cos of the angle between every pair of rows; a row of zeros is at 1 from every other.

    Half the squared distance of the rows cut to length 1, which keeps its digits where 1 - cos loses them.

    Args:
        updates: [n, d].
        shift: [d], added to every row first.
        kept: [d] bool, the columns that count; None: all.

    Returns:
        [n, n] float64, symmetric, with zeros on the diagonal.
    """
    lengths = norms(updates, None if shift is None else -shift.double(), kept=kept)
    scale = torch.where(lengths > 0, 1 / lengths, 0.0)
    distances = squared_distances(updates, shift=shift, scale=scale, kept=kept) / 2
    distances[lengths == 0] = 1.0
    distances[:, lengths == 0] = 1.0
    return distances.clamp_(max=2.0).fill_diagonal_(0.0)


def clip_factors(lengths: Vector, bound: float) -> Vector:
    """What cuts each length down to `bound`, and leaves shorter ones: min(1, bound / length); [n] -> [n]."""
    return torch.where(lengths > bound, bound / lengths, 1.0)


def _distances(block: Block, ranges: list[slice], rows: Tensor) -> Matrix:
    """By inner products about the mean of `rows`; [k, k] for k rows."""
    gram = torch.zeros(len(rows), len(rows), dtype=torch.float64, device=rows.device)
    for columns in ranges:
        centred = block(rows, columns)
        centred -= centred.mean(dim=0)
        gram.addmm_(centred, centred.T)
    squares = gram.diagonal()
    sums = squares[:, None] + squares[None, :]
    distances = (sums - (gram + gram.T)).fill_diagonal_(0.0)
    lost = ~(distances > CANCELLED * sums)  # true, too, where a square overflows
    lost.fill_diagonal_(False)
    for group in _connected(lost):
        again = _distances if len(group) < len(rows) else _by_definition
        distances[group[:, None], group] = again(block, ranges, rows[group])
    return distances


def _by_definition(block: Block, ranges: list[slice], rows: Tensor) -> Matrix:
    """Differences first, then squares: slow, and right whatever the values are; [k, k] for k rows."""
    total = torch.zeros(len(rows), len(rows), dtype=torch.float64, device=rows.device)
    for columns in ranges:
        chosen = block(rows, columns)
        for place, row in enumerate(chosen):
            total[place] += (chosen - row).square_().sum(dim=1)
    return total


def _connected(linked: Matrix) -> list[Tensor]:
    """Groups of two or more rows that are linked directly or through others; each [k] int64, ascending."""
    open_rows, groups = set(linked.any(dim=1).nonzero().flatten().tolist()), []
    while open_rows:
        group, edge = set(), {min(open_rows)}
        while edge:
            group |= edge
            edge = set(linked[sorted(edge)].any(dim=0).nonzero().flatten().tolist()) - group
        open_rows -= group
        groups.append(torch.tensor(sorted(group), device=linked.device))
    return groups


def require(holds: bool, complaint: str) -> None:
    """Refuse a value of the rule's table; the complaint begins with the key.

    Raises:
        ConfigError: it does not hold.
    """
    if not holds:
        raise ConfigError(complaint)


def require_byzantine(byzantine: int) -> None:
    """Refuse a negative number of hostile clients."""
    require(byzantine >= 0, f"byzantine must be at least 0, found {byzantine}")


def require_enough(need: SmallestCohort, cohort: Cohort) -> None:
    """Refuse a cohort for which a rule is not defined; see `require_cohort`."""
    require_cohort(need.rule, cohort, need.least, need.change)


def require_cohort(rule: str, cohort: Cohort, least: int, change: str) -> None:
    """Refuse a cohort of fewer than `least` replies.

    Args:
        rule: whose condition it is, with its parameters, such as `krum with byzantine=2`.
        cohort: of the round.
        least: the smallest number of replies for which the rule is defined.
        change: what else would help, such as `lower strategy.byzantine`.

    Raises:
        RoundError: it is smaller.
    """
    n = len(cohort.partitions)
    if n < least:
        raise RoundError(
            f"Round {cohort.round}: {rule} needs at least {least} replies, got {n}: "
            f"{change} or raise federation.clients_per_round."
        )
