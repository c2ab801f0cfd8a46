"""Templates: modules built once per process, with weights that depend on the seed alone."""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from fedsim import rng
from fedsim.contracts import DataSpec, ModelBuilder
from fedsim.errors import ConfigError, PluginError


@dataclass(frozen=True)
class SeededModel:
    """A model builder whose modules start from the experiment's seed.

    Weights are drawn in float32 and then cast, so that runs of other types start from the same numbers.

    Attributes:
        builder: the `[model]` table; hashable, as frozen dataclasses of plain values are.
        seed: of the run.
        dtype: of the module's floating-point tensors.
    """

    builder: ModelBuilder
    seed: int
    dtype: torch.dtype = torch.float32

    def build(self, spec: DataSpec) -> nn.Module:
        """The template for this data, cached per process: never change it, call it functionally.

        Raises:
            ConfigError: the builder has a field, such as a list, that cannot be hashed.
        """
        try:
            hash(self.builder)
        except TypeError as error:
            name = type(self.builder).__name__
            raise ConfigError(
                f"model {name} must be hashable (tuples in place of lists): {error}."
            ) from error
        return _template(self, spec)


@lru_cache(maxsize=256)
def _template(model: SeededModel, spec: DataSpec) -> nn.Module:
    with rng.seeded_globals(rng.derive(model.seed, "model")):
        module = model.builder.build(spec)
    name = type(model.builder).__name__
    if not isinstance(module, nn.Module):
        raise PluginError(f"model.kind: {name}.build returned {type(module).__name__}, wanted an nn.Module.")
    if any(is_lazy(tensor) for tensor in (*module.parameters(), *module.buffers())):
        raise PluginError(f"model.kind: {name}.build left lazy parameters: give every layer its sizes.")
    return module.to(model.dtype)
