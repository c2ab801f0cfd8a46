import io
import warnings
from dataclasses import dataclass

import pytest
from rich.console import Console

from fedsim.report.meanings import first_line, meanings
from fedsim.report.plugin_list import _PLATFORM_TABLES, print_plugins

with warnings.catch_warnings():  # PyG uses what its own dependencies deprecate
    warnings.simplefilter("ignore", DeprecationWarning)
    import torch_geometric.nn  # noqa: F401


@dataclass
class Base:
    """A base.

    Attributes:
        first: one line.
        second: two lines, of which this is one
            and this the other.
    """

    first: int = 1
    second: int = 2


@dataclass
class Younger(Base):
    """A younger class.

    Attributes:
        third: its own.
        first: said anew.

    Raises:
        nothing: that would be an entry.
    """

    third: int = 3


def test_meanings_are_inherited_and_replaced():
    assert meanings(Base)["second"] == "two lines, of which this is one and this the other."
    assert meanings(Younger) == {**meanings(Base), "third": "its own.", "first": "said anew."}
    assert first_line(Younger) == "A younger class."


@pytest.fixture(scope="module")
def listed():
    console = Console(file=io.StringIO(), width=100, soft_wrap=True, highlight=False)
    print_plugins(console)
    return console.file.getvalue()


@pytest.mark.parametrize("table", _PLATFORM_TABLES.values(), ids=lambda table: table.__name__)
def test_every_key_of_the_platform_has_a_meaning(table):
    assert set(table.model_fields) - {"kind"} <= set(meanings(table))


def test_tables_have_keys_types_defaults_and_meanings(listed):
    for line in (
        "[engine]  Where and how clients are computed",
        "    backend: 'in-process' | 'ray' = 'in-process'  # `in-process` (one worker: this process;",
        "    rounds: int, required  # of every run.",
        "    workers: int | None = None  # how many;",
        "    clients_per_round: int  # exactly so many in every round;",
        "    partition: Plugin = 'iid'  # the plugin that divides the data.",
        "[expect.METRIC]  Bounds on one metric",
    ):
        assert line in listed


def test_plugins_have_a_line_and_keys_with_meanings(listed):
    assert "  fedavg  " in listed
    assert "      hidden: int = 64  # units of every hidden state" in listed
