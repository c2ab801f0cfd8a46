"""FedJAX: `federated_averaging` with its `jit` backend, on one CPU device.

Runs in an environment of its own (fedjax 0.0.17 with the jax it pins), so it imports nothing of ours.
"""

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fedjax
import jax
import jax.numpy as jnp
import numpy as np
from fedjax.algorithms import fed_avg
from peers.conductor import Conductor
from peers.planned import Planned


@dataclass(frozen=True)
class PlannedClient:
    """What `federated_averaging` asks of a client's data set; the batches are the plan's."""

    x: Any
    y: Any
    batch: int

    def __len__(self) -> int:
        return len(self.y)

    def shuffle_repeat_batch(self, hparams: Any) -> Iterable[dict[str, Any]]:
        for start in range(0, len(self.y), self.batch):
            stop = start + self.batch
            yield {"x": self.x[start:stop], "y": self.y[start:stop]}


def logits(network: str, params: dict[str, Any], x: Any) -> Any:
    """The plan's tensors in the plan's order: (weight, bias) of layer after layer, torch's shapes."""
    values = list(params.values())
    layers = list(zip(values[::2], values[1::2], strict=True))
    if network == "cnn":
        for weight, bias in layers[:2]:
            x = jax.lax.conv(x, weight, (1, 1), "SAME") + bias[:, None, None]
            x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
            x = jax.nn.relu(x)
        layers, x = layers[2:], x.reshape(len(x), -1)
    for weight, bias in layers[:-1]:
        x = jax.nn.relu(x @ weight.T + bias)
    weight, bias = layers[-1]
    return x @ weight.T + bias


def main(folder: Path) -> None:
    conductor, plan = Conductor(), Planned(folder)
    kind, rate, batch = plan.known["network"], plan.known["learning_rate"], plan.known["batch"]

    def loss(params: dict[str, Any], one: dict[str, Any], rng: Any) -> Any:
        chosen = jax.nn.log_softmax(logits(kind, params, one["x"]))
        return -jnp.take_along_axis(chosen, one["y"][:, None], axis=1).mean()

    names = [name for name, _ in plan.known["tensors"]]
    order = [f"{place:03d} {name}" for place, name in enumerate(names)]  # jax sorts the keys of a mapping
    values = plan.tensors(plan.initial).values()
    algorithm = fed_avg.federated_averaging(
        jax.grad(loss),
        fedjax.optimizers.sgd(learning_rate=rate),
        fedjax.optimizers.sgd(learning_rate=1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=batch),
    )
    state = algorithm.init({name: jnp.asarray(one) for name, one in zip(order, values, strict=True)})
    conductor.vector = lambda: np.concatenate([np.asarray(state.params[name]).ravel() for name in order])
    number, key = 0, jax.random.PRNGKey(0)
    while conductor.wants_round():
        number += 1
        cohort = [
            (str(client), PlannedClient(*plan.rows(number, place), batch), key)
            for place, client in enumerate(plan.cohort(number))
        ]
        state, _ = algorithm.apply(state, cohort)
        jax.block_until_ready(state.params)
        conductor.round_done()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
