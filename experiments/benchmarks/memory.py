"""Peak memory of a process and all its descendants, from Linux's /proc."""

from pathlib import Path

KIB = 1024


def peak_mb(root: int) -> float | None:
    """Megabytes at the peak: each process's own high-water mark, less what they share as of now.

    The marks of different processes may be of different moments, so this is an upper bound.
    """
    processes = _descendants(root)
    marks = sum(_kib(pid, "status", "VmHWM:") for pid in processes)
    counted_twice = sum(
        _kib(pid, "smaps_rollup", "Rss:") - _kib(pid, "smaps_rollup", "Pss:") for pid in processes
    )
    return (marks - counted_twice) * KIB / 1e6 if marks else None


def _descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[1])
        except OSError:  # ended in the meantime
            continue
        children.setdefault(parent, []).append(int(path.parent.name))
    found, queue = [], [root]
    while queue:
        process = queue.pop()
        found.append(process)
        queue += children.get(process, [])
    return found


def _kib(process: int, file: str, key: str) -> int:
    try:
        lines = Path(f"/proc/{process}/{file}").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith(key))
