"""What the commands refuse before they work: numbers without meaning, files that cannot be written."""

import os
from pathlib import Path

from fedsim.errors import ConfigError

MOST = 1_000_000  # of anything that is counted; more is a slip of the finger
_LARGEST_SEED = 2**63 - 1


def check_count(name: str, value: int, least: int, most: int = MOST) -> None:
    """Refuse a count outside [least, most].

    Raises:
        ConfigError: it is.
    """
    if value < least:
        raise ConfigError(f"{name} must be at least {least}, found {value}.")
    if value > most:
        raise ConfigError(f"{name} must be at most {most}, found {value}.")


def check_seed(seed: int) -> None:
    """Refuse a seed that other parts of the program would refuse.

    Raises:
        ConfigError: it is negative or above 2^63 - 1.
    """
    check_count("--seed", seed, 0, _LARGEST_SEED)


def check_file(option: str, path: Path) -> None:
    """Refuse a file that cannot be written, before minutes are spent on what it shall hold.

    Raises:
        ConfigError: it is a folder, its folder does not exist, or one may not write there.
    """
    if path.is_dir():
        raise ConfigError(f"{option} {path}: is a folder, wanted a file.")
    folder = path.absolute().parent
    if not folder.is_dir():
        raise ConfigError(f"{option} {path}: the folder {folder} does not exist.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"{option} {path}: the folder {folder} cannot be written to.")
