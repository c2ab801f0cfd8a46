"""Everything fedsim raises on purpose.

FedsimError                 one clear line for the user; never a traceback at the command line
├── ConfigError             the experiment file or an override is wrong           exit code 2
│   └── PluginError         a name that resolves to nothing, or to the wrong thing  exit code 2
├── DataError               a data set is missing, malformed or cannot be divided   exit code 2
├── RoundError              a round cannot be carried out as declared              exit code 1
├── WorkerError             the engine lost its workers or a deadline passed        exit code 1
└── CheckpointError         a run directory cannot be continued                     exit code 2
"""


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
