"""Everything fedsim raises on purpose.

FedsimError                 one clear line for the user; never a traceback at the command line
├── ConfigError             the experiment file or an override is wrong           exit code 2
│   └── PluginError         a name that resolves to nothing, or to the wrong thing  exit code 2
├── DataError               a data set is missing, malformed or cannot be divided   exit code 2
├── RoundError              a round cannot be carried out as declared              exit code 1
├── WorkerError             the engine lost its workers or a deadline passed        exit code 1
└── CheckpointError         a run directory cannot be continued                     exit code 2
"""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class FedsimError(Exception):
    """Base of every deliberate error; its text says what was asked, found, and what to change."""

    exit_code = 1


class ConfigError(FedsimError):
    """The experiment file, or an override of it, cannot be used."""

    exit_code = 2


class PluginError(ConfigError):
    """A plugin name resolves to nothing, or to an object that breaks its protocol."""


class DataError(FedsimError):
    """A data set is neither in the mirror nor reachable, is malformed, or cannot be divided as asked."""

    exit_code = 2


class RoundError(FedsimError):
    """A round cannot be carried out as declared: too few replies, or nothing left to aggregate."""


class WorkerError(FedsimError):
    """The engine cannot keep its workers alive, or a task passed its deadline."""


class CheckpointError(FedsimError):
    """A run directory does not hold what is needed to continue, or belongs to another experiment."""

    exit_code = 2


@contextmanager
def attributed(what: str, kind: type[FedsimError]) -> Iterator[None]:
    """Run somebody else's code: what it raises becomes one line that names it, the file and the line.

    Args:
        what: whose code runs, such as `strategy.kind: Krum.step`.
        kind: of the error to raise in place of the other; deliberate errors pass as they are.
    """
    try:
        yield
    except FedsimError:
        raise
    except (Exception, SystemExit) as error:  # an exit would end the run as if it had succeeded
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(where.filename).name}, line {where.lineno}"
        raise kind(f"{what} raised {type(error).__name__}: {_text(error)} ({place})") from error


def _text(error: BaseException) -> str:
    try:
        return str(error) or "no message"
    except Exception:
        return "a message that cannot be shown"
