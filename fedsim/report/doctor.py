"""`fedsim doctor`: is this machine ready?"""

import importlib.util
import os
import platform
from pathlib import Path

import torch
from rich.console import Console

from fedsim.engine.options import usable_cores
from fedsim.run.provenance import hardware, versions


def print_doctor(console: Console | None = None) -> None:
    """Versions, cores, memory, GPUs, Ray and the mirror, one line each."""
    console = console or Console(soft_wrap=True, highlight=False)
    for name, found in versions().items():
        console.print(f"{name:<18} {found or 'not installed'}")
    facts = hardware()
    console.print(f"{'processor':<18} {facts['machine']}, {facts['cpu_capability']}, {platform.system()}")
    console.print(f"{'cores':<18} {usable_cores()} usable of {facts['cores']}")
    console.print(f"{'memory':<18} {_gigabytes(total_memory())}, {_gigabytes(available_memory())} available")
    console.print(f"{'GPUs':<18} {', '.join(facts['gpus']) or 'none'}")
    console.print(f"{'torch built for':<18} {'CUDA ' + torch.version.cuda if torch.version.cuda else 'CPU'}")
    ray = 'backend = "ray" can be used' if importlib.util.find_spec("ray") else "not installed"
    console.print(f"{'Ray':<18} {ray}")
    console.print(f"{'data mirror':<18} {_mirror()}")


def _mirror() -> str:
    named = os.environ.get("FEDSIM_DATA_MIRROR")
    if not named:
        return "FEDSIM_DATA_MIRROR is not set; data sets other than digits are downloaded"
    folder = Path(named)
    if not folder.is_dir():
        return f"FEDSIM_DATA_MIRROR = {named} is no folder"
    return f"{named} ({len(list(folder.iterdir()))} entries)"


def total_memory() -> int:
    """Bytes of physical memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def available_memory() -> int:
    """Bytes that can be had without swapping, or all of them where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return total_memory()
    values = dict(line.split(":") for line in lines)
    return int(values["MemAvailable"].split()[0]) * 1024


def _gigabytes(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
