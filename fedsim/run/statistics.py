"""What result.json tells of a metric over the rounds of a run."""

from collections.abc import Sequence

from fedsim.run.durability import LATER

STATISTICS = ("last", "best", "validation_selected")
COUNTS = ("true_positives", "false_positives", "false_negatives", "true_negatives")
DETECTOR = ("precision", "recall", "f1", "false_positive_rate", "weight_kept", *COUNTS)
LIFESPAN = ("rounds", "smoothed", "still_alive", "smoothed_still_alive")
DURABILITY = ("at_stop", "auc50", "auc_rounds", "floor", "floor_at_stop")


def statistics_of(metric: str, after: int) -> Sequence[str]:
    """Names of what is told of a metric.

    Args:
        metric: as result.json names it.
        after: rounds that the run goes on after an attack's last.
    """
    later = tuple(f"plus_{rounds}" for rounds in LATER if rounds <= after)
    own: dict[str, Sequence[str]] = {
        "detector": DETECTOR,
        "attack_lifespan": LIFESPAN,
        "attack_success": (*STATISTICS, *DURABILITY, *later),
    }
    return own.get(metric, STATISTICS)
