"""A view shows what was granted and nothing else."""

import pytest
import torch

from fedsim.errors import RoundError
from fedsim.params import Layout
from fedsim.threat import Knowledge, Passive, View, overrides


def view(knows: Knowledge) -> View:
    rows = torch.arange(6.0).view(3, 2)
    return View(
        knows=knows,
        round=4,
        clients=3,
        malicious=1,
        model=torch.zeros(2),
        integers={},
        layout=Layout.of({"w": torch.zeros(2)}),
        program=None,
        own=rows[:1],
        updates=rows,
        places=(0,),
        rule=lambda updates: updates.mean(dim=0),
    )


@pytest.mark.parametrize("name", ["updates", "places", "rule"])
@pytest.mark.parametrize("knows", [Knowledge.OWN_DATA, Knowledge.COLLUDERS])
def test_reading_beyond_the_grant_names_the_field_and_the_level(name, knows):
    with pytest.raises(RoundError, match=rf"view\.{name}, which needs knowledge EVERYTHING.*{knows.name}"):
        getattr(view(knows), name)


@pytest.mark.parametrize("knows", list(Knowledge))
def test_own_fields_are_open_at_every_level(knows):
    seen = view(knows)
    assert (seen.round, seen.clients, seen.malicious) == (4, 3, 1)
    assert torch.equal(seen.own, torch.tensor([[0.0, 1.0]]))


def test_everything_is_open_at_the_highest_level():
    seen = view(Knowledge.EVERYTHING)
    assert torch.equal(seen.rule(seen.updates), torch.tensor([2.0, 3.0]))


def test_levels_nest():
    assert Knowledge.OWN_DATA < Knowledge.COLLUDERS < Knowledge.EVERYTHING


def test_what_is_not_granted_is_not_even_stored():
    assert vars(view(Knowledge.COLLUDERS))["updates"] is None
    assert vars(view(Knowledge.EVERYTHING))["updates"] is not None


def before_training(knows, data=None):
    return View(
        knows=knows,
        round=1,
        clients=3,
        malicious=2,
        model=torch.zeros(2),
        integers={},
        layout=Layout.of({"w": torch.zeros(2)}),
        program=None,
        data=data,
    )


@pytest.mark.parametrize("name", ["own", "examples", "updates", "places", "rule"])
def test_before_training_there_are_no_updates(name):
    with pytest.raises(RoundError, match=rf"view\.{name}, which does not exist before training"):
        getattr(before_training(Knowledge.EVERYTHING), name)


def test_nobody_speaks_for_clients_that_do_not_collude():
    with pytest.raises(RoundError, match=r"needs knowledge COLLUDERS, but it declares OWN_DATA"):
        before_training(Knowledge.OWN_DATA).data  # noqa: B018


def test_an_attack_that_overrides_nothing_is_passive():
    assert not any(overrides(Passive(), hook) for hook in ("observe", "corrupt", "craft", "poison"))
