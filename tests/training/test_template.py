import pickle
from dataclasses import dataclass, field

import pytest
import torch
from torch import nn

from fedsim.contracts import DataSpec
from fedsim.errors import ConfigError
from fedsim.training.template import SeededModel

SPEC = DataSpec("rows", (4,), 3)


@dataclass(frozen=True)
class Linear:
    sizes: list[int] = field(default_factory=list)

    def build(self, spec: DataSpec) -> nn.Module:
        return nn.Linear(*self.sizes)


def test_same_seed_same_weights_in_whatever_state_the_global_generator_is(tiny):
    first = tiny.seeded(hidden=6).build(SPEC)
    torch.manual_seed(99)
    before = torch.get_rng_state()
    other = SeededModel(tiny.TwoLayerBuilder(hidden=6), tiny.SEED + 1, torch.float64).build(SPEC)
    assert torch.equal(torch.get_rng_state(), before)
    again = tiny.seeded(hidden=6, dropout=0.1).build(SPEC)  # another template, the same draws
    assert torch.equal(first.body.weight, again.body.weight)
    assert not torch.equal(first.body.weight, other.body.weight)


def test_double_precision_starts_from_the_single_precision_draws(tiny):
    single = tiny.seeded(torch.float32, norm=True).build(SPEC)
    double = tiny.seeded(torch.float64, norm=True).build(SPEC)
    for name, value in single.state_dict().items():
        found = double.state_dict()[name]
        assert torch.equal(found, value.double() if value.is_floating_point() else value)
        assert found.dtype == (torch.float64 if value.is_floating_point() else torch.int64)


def test_a_template_is_built_once_per_process(tiny):
    model = tiny.seeded()
    assert model.build(SPEC) is pickle.loads(pickle.dumps(tiny.seeded())).build(DataSpec("rows", (4,), 3))
    assert model.build(SPEC) is not model.build(DataSpec("rows", (5,), 3))


def test_a_builder_that_cannot_be_hashed_is_refused():
    with pytest.raises(ConfigError, match="model Linear must be hashable"):
        SeededModel(Linear([4, 3]), 0).build(SPEC)


@dataclass(frozen=True)
class Odd:
    lazy: bool

    def build(self, spec: DataSpec) -> nn.Module | None:
        return nn.LazyLinear(3) if self.lazy else None


def test_a_builder_that_makes_no_usable_module_is_refused():
    with pytest.raises(ConfigError, match=r"Odd\.build left lazy parameters"):
        SeededModel(Odd(True), 0).build(SPEC)
    with pytest.raises(ConfigError, match=r"Odd\.build returned NoneType, wanted an nn.Module"):
        SeededModel(Odd(False), 0).build(SPEC)
