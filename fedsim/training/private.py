"""A client's private tensors: what it starts with, and the optimiser state kept among them."""

from collections.abc import Sequence

from torch import Tensor

from fedsim import rng
from fedsim.contracts import ClientInfo, ClientMethod, LocalProgram, Tensors
from fedsim.errors import RoundError
from fedsim.training.functional import model_tensors
from fedsim.training.trained import Run, Trained

OPTIMIZER_PREFIX = "optimizer/"
"""Reserved: `optimizer/PHASE/GROUP/NAME` is state that `keep_optimizer` carries between rounds."""


def private_tensors(
    method: ClientMethod,
    client: ClientInfo,
    program: LocalProgram,
    kept: Tensors | None,
    seed: int,
) -> dict[str, Tensor]:
    """The private tensors at the start of a round, without optimiser state.

    Private model tensors first, in the model's order, then the additional ones by name.

    Args:
        method: asked for its `init` where nothing was kept.
        client: whose tensors.
        program: says which model tensors are private.
        kept: what the client's last round left; None at first use.
        seed: of the run.

    Raises:
        RoundError: a tensor is shared, misshapen, or has a reserved name.
    """
    if kept is None:
        found = method.init(client, rng.stream(seed, "init", 0, client.partition))
    else:
        found = {name: value for name, value in kept.items() if not name.startswith(OPTIMIZER_PREFIX)}
    template = model_tensors(program.model)
    _check(found, template, program)
    own = {name: found.get(name, value) for name, value in template.items() if not program.is_shared(name)}
    return own | {name: found[name] for name in sorted(found) if name not in own}


def saved_optimizer(kept: Tensors | None, phase: int) -> list[dict[str, Tensor]]:
    """The optimiser state of one phase, an entry per group of trained tensors; empty if none was kept."""
    groups: dict[int, dict[str, Tensor]] = {}
    prefix = f"{OPTIMIZER_PREFIX}{phase}/"
    for name, value in (kept or {}).items():
        if name.startswith(prefix):
            group, key = name.removeprefix(prefix).split("/", 1)
            groups.setdefault(int(group), {})[key] = value
    return [groups[number] for number in sorted(groups)]


def optimizer_state(trained: Sequence[Trained]) -> dict[str, Tensor]:
    """The optimisers' tensors after a round, under reserved names, by phase; [c, ...] of a stack."""
    return {
        f"{OPTIMIZER_PREFIX}{phase}/{group}/{key}": value
        for phase, one in enumerate(trained)
        for group, run in enumerate(one.runs)
        for key, value in _state(run).items()
    }


def _state(run: Run) -> dict[str, Tensor]:
    """Of a stack, with scalars [c, 1] as [c] again."""
    if run.values.dim() == 1:
        return run.state
    of_one = run.optimizer.init(run.values[0])
    return {key: value.view(len(value), *of_one[key].shape) for key, value in run.state.items()}


def refuse_reserved(private: Tensors) -> None:
    """Refuse private tensors of a method that are named like optimiser state.

    Raises:
        RoundError: with the first such name.
    """
    for name in private:
        if name.startswith(OPTIMIZER_PREFIX):
            raise RoundError(f"Private tensor {name!r}: names under {OPTIMIZER_PREFIX!r} are reserved.")


def _check(found: Tensors, template: Tensors, program: LocalProgram) -> None:
    refuse_reserved(found)
    for name, value in found.items():
        if name not in template:
            continue
        if program.is_shared(name):
            raise RoundError(f"Tensor {name!r} is private to the client, but its program shares it.")
        if value.shape != template[name].shape or value.dtype != template[name].dtype:
            raise RoundError(
                f"Private tensor {name!r} should be {template[name].dtype} {tuple(template[name].shape)}, "
                f"found {value.dtype} {tuple(value.shape)}."
            )
