"""What every model asks of its table and of the data."""

from fedsim.contracts import DataSpec, Task
from fedsim.errors import ConfigError


def at_least(key: str, value: int, minimum: int) -> None:
    """Refuse an integer of the model's table below `minimum`.

    Raises:
        ConfigError: it is smaller.
    """
    if value < minimum:
        raise ConfigError(f"{key} must be at least {minimum}, found {value}.")


def is_rate(key: str, value: float) -> None:
    """Refuse a dropout rate outside [0, 1).

    Raises:
        ConfigError: it is negative, 1 or more, or not a number.
    """
    if not 0 <= value < 1:
        raise ConfigError(f"{key} must be at least 0 and below 1, found {value}.")


def require_task(kind: str, spec: DataSpec, *tasks: Task) -> None:
    """Refuse data of a task that the model cannot serve.

    Args:
        kind: the model's name in the experiment file.
        spec: the data at hand.
        tasks: what the model can serve.

    Raises:
        ConfigError: `spec.task` is another one, or there are fewer than 2 classes.
    """
    if spec.task not in tasks:
        raise ConfigError(
            f'model.kind = "{kind}" serves {" and ".join(tasks)}, but the data are {spec.task} '
            f"of shape {spec.shape}: choose another model.kind or another data set."
        )
    if spec.classes < 2:
        raise ConfigError(f'model.kind = "{kind}" needs at least 2 classes, the data have {spec.classes}')
