"""Refusals of illegal keys; every message begins with the key."""

from math import isfinite

from attacks.programs import check_above_zero
from attacks.trigger_search import check_device
from attacks.triggers import Trigger
from fedsim.errors import ConfigError

FEWEST = 3  # models, so that their differences vary


def check_subset(rho: float, drift_rounds: int, reselect: int) -> None:
    """Stage A."""
    if not 0 < rho <= 1:
        raise ConfigError(f"rho must be above 0 and at most 1, found {rho}.")
    if drift_rounds < FEWEST:
        raise ConfigError(f"drift_rounds must be at least {FEWEST}, found {drift_rounds}.")
    check_not_negative(reselect=reselect)


def check_search(steps: int, rate: float, batch: int, device: str) -> None:
    """Stage B."""
    check_not_negative(search_steps=steps)
    check_above_zero("search_rate", rate)
    if batch < 1:
        raise ConfigError(f"search_batch must be at least 1, found {batch}.")
    check_device("search_device", device)


def check_upload(proximal: float, gamma: float, radius: float | str | None, fill: bool) -> None:
    """Stage C."""
    if not 0 <= proximal < 1:
        raise ConfigError(f"proximal must be at least 0 and below 1, found {proximal}.")
    check_above_zero("gamma", gamma)
    if isinstance(radius, int | float):
        check_above_zero("radius", radius)
    if fill and radius is None:
        raise ConfigError("fill needs a radius up to which to scale: set radius, or leave fill out.")


def check_not_negative(**values: float) -> None:
    """Finite numbers of at least 0."""
    for key, value in values.items():
        if not (value >= 0 and isfinite(value)):
            raise ConfigError(f"{key} must be at least 0 and finite, found {value}.")


def check_window(drift_rounds: int, opens: int) -> None:
    """There must be enough rounds before the attack."""
    if opens < drift_rounds:
        raise ConfigError(
            f"attack.window opens in round {opens}, but drift_rounds = {drift_rounds} models are to be "
            "observed up to then: open it later, or lower drift_rounds."
        )


def check_members(split: str, members: int, trigger: Trigger) -> None:
    """Somebody must train every part of the trigger that success is measured with."""
    if members and split == "channels" and members < len(trigger.mask):
        raise ConfigError(
            f'split = "channels": {members} malicious clients cannot stamp {len(trigger.mask)} channels: '
            'raise attack.malicious, or set split = "pixels" or "none".'
        )
    if split in ("pixels", "values") and members > trigger.places:
        raise ConfigError(
            f'split = "{split}": {trigger.places} pixels cannot be divided over {members} malicious clients: '
            "enlarge patch, or lower attack.malicious."
        )
