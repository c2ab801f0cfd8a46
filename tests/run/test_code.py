"""Which sources a run's numbers can come from."""

import sys
from pathlib import Path

import pytest

from fedsim.config import parse
from fedsim.run import code


@pytest.fixture
def beside(tmp_path, monkeypatch):
    """A folder for plugins, in which modules are found."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    code._module_digest.cache_clear()
    yield tmp_path
    code._module_digest.cache_clear()


def experiment(kind="fedavg"):
    return parse({"rounds": 1, "strategy": {"kind": kind}})


def digest(kind):
    code._module_digest.cache_clear()
    return code.code_digest(experiment(kind))


def test_the_digest_is_of_the_experiment_s_plugins_and_not_of_its_values(beside):
    (beside / "rule_a.py").write_text("import rule_b\n")
    (beside / "rule_b.py").write_text("one = 1\n")
    (beside / "unused.py").write_text("")
    first = digest("rule_a:Rule")
    assert first == digest("rule_a:Other") != digest("fedavg") == digest("median")
    (beside / "unused.py").write_text("two = 2\n")
    assert digest("rule_a:Rule") == first
    (beside / "rule_b.py").write_text("one = 2\n")  # imported by the rule
    assert digest("rule_a:Rule") != first


def test_a_package_counts_as_a_whole(beside):
    package = beside / "rules_of_a_test"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "rule.py").write_text("")
    first = digest("rules_of_a_test.rule:Rule")
    (package / "maths.py").write_text("two = 2\n")
    assert digest("rules_of_a_test.rule:Rule") != first


def test_broken_and_absent_modules_have_a_digest_too(beside):
    (beside / "broken_of_a_test.py").write_text("def (")
    assert digest("broken_of_a_test:Rule") != digest("nowhere_of_a_test:Rule")


def test_sources_that_change_while_a_process_runs_are_nobody_else_s(monkeypatch):
    monkeypatch.setattr(code, "_AT_START", code.own_digest())
    usual = code.code_digest(experiment())
    assert usual == code.code_digest(experiment(), now=code._AT_START)
    assert usual != code.code_digest(experiment(), now="later")


def test_what_only_shows_results_does_not_count():
    names = [name for name, _ in code._own_sources()]
    assert "fedsim/run/round_loop.py" in names
    assert "strategies/krum.py" in names
    assert not [name for name in names if name.startswith(("fedsim/report/", "fedsim/sweep/"))]
    assert all(Path(path).suffix == ".py" for _, path in code._own_sources())


def test_a_run_that_changed_hands_is_neither_s():
    assert code.joined("a", "a") == "a"
    assert len({code.joined("a", "b"), code.joined("b", "a"), code.joined(None, "b"), "a", "b"}) == 5
