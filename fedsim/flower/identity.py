"""Whose messages these are: Flower 1.42 asks every process that makes a message for its task, run and node.

Flower sets this in the processes that it starts. In any other (`fedsim run` with a stock strategy, tests)
the numbers mean nothing, so they are 1.
"""

from flwr.supercore.task_identity import TaskIdentity


def ensure_identity() -> None:
    """Give this process an identity unless it has one."""
    for name in ("task_id", "run_id", "node_id"):
        try:
            getattr(TaskIdentity, name)
        except RuntimeError:
            setattr(TaskIdentity, name, 1)
