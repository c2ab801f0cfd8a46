import json
from dataclasses import replace

import pytest
import torch

from fedsim.contracts import Cohort, Decision
from fedsim.errors import RoundError
from fedsim.run.adversary import Adversary
from fedsim.run.decision import apply
from fedsim.run.replies import TooManyFailures
from fedsim.run.round_loop import RoundLoop
from fedsim.run.server_evaluation import ServerEvaluation


def play(parts, federation, rounds=1, **options):
    loop = RoundLoop(parts, federation, **options)
    state, records = loop.start(), []
    for _ in range(rounds):
        state, record = loop.play(state)
        records.append(record)
    return state, records


def test_every_round_asks_the_declared_number_from_the_first_on(make_parts, fake_federation):
    parts = make_parts()
    federation = fake_federation(parts)
    _, records = play(parts, federation, rounds=3)
    assert [len(asked) for asked in federation.asked] == [4, 4, 4]
    assert [record["cohort"] for record in records] == [list(asked) for asked in federation.asked]
    assert len(set(federation.asked)) > 1


def test_the_model_moves_by_the_weighted_mean(make_parts, fake_federation):
    parts = make_parts()
    federation = fake_federation(parts)
    before = RoundLoop(parts, federation).start().vector
    state, (record,) = play(parts, federation)
    asked = federation.asked[0]
    # client p sends p + 1 everywhere, with 10 (p + 1) examples
    mean = sum((p + 1) ** 2 for p in asked) / sum(p + 1 for p in asked)
    torch.testing.assert_close(state.vector, before + mean, rtol=1e-6, atol=0)
    assert record["examples"] == 10 * sum(p + 1 for p in asked)
    assert record["metrics"]["train_loss"] == pytest.approx(sum(asked) / 4)
    json.dumps(record, allow_nan=False)


def test_a_refused_client_is_named_left_out_and_not_committed(make_parts, fake_federation):
    parts = make_parts(failures={"max_failed_fraction": 0.5})
    federation = fake_federation(parts)
    asked = RoundLoop(parts, federation)._cohort(1)
    bad = asked[1]
    nan = torch.full((parts.layout.size,), float("nan"))
    federation.replies[bad] = replace(federation.plain(bad), update=nan)
    state, (record,) = play(parts, federation)
    assert bool(torch.isfinite(state.vector).all())
    assert record["accepted"] == [p for p in asked if p != bad]
    assert federation.committed == [tuple(record["accepted"])]
    (failure,) = record["failures"]
    assert (failure["partition"], failure["kind"]) == (bad, "refused")


def test_by_default_one_failed_client_fails_the_run(make_parts, fake_federation, failed):
    parts = make_parts()
    federation = fake_federation(parts)
    first = RoundLoop(parts, federation)._cohort(1)[0]
    federation.replies[first] = failed(first)
    with pytest.raises(
        TooManyFailures, match=rf"1 of 4 clients failed to train \(partitions {first}\)"
    ) as caught:
        play(parts, federation)
    assert caught.value.failures[0].traceback == "Traceback ..."
    assert federation.committed == []


def test_with_nobody_left_the_run_fails_whatever_the_policy(make_parts, fake_federation, failed):
    parts = make_parts(failures={"max_failed_fraction": 1.0})
    federation = fake_federation(parts, {p: failed(p) for p in range(6)})
    with pytest.raises(TooManyFailures, match="no reply is left"):
        play(parts, federation)


def test_the_end_of_an_attack_is_measured_in_any_case(make_parts, fake_federation):
    who = {"kind": "label_flip", "malicious": 1, "window": [1, 2]}
    parts = make_parts(rounds=6, evaluate={"every": 5, "clients": "none"}, attack=who)
    server = ServerEvaluation.of(parts, torch.device("cpu"))
    _, records = play(parts, fake_federation(parts), rounds=6, server=server, adversary=Adversary.of(parts))
    measured = [record["round"] for record in records if "attack_success" in record["metrics"]]
    assert measured == [2, 5, 6]


def test_clients_are_evaluated_every_few_rounds_and_at_the_end(make_parts, fake_federation):
    parts = make_parts(rounds=5, evaluate={"clients_every": 2})
    federation = fake_federation(parts)
    _, records = play(parts, federation, rounds=5)
    assert [round_ for round_, _ in federation.evaluated] == [2, 4, 5]
    assert all(who == tuple(range(6)) for _, who in federation.evaluated)
    assert "client_test_accuracy" in records[1]["metrics"]
    assert "client_test_accuracy" not in records[0]["metrics"]
    assert records[1]["clients"]["client_test_accuracy"]["quantiles"]["1"] == 0.5


@pytest.mark.parametrize(("clients", "calls"), [("none", 0), ("sampled", 1)])
def test_whose_models_are_evaluated(make_parts, fake_federation, clients, calls):
    parts = make_parts(rounds=1, evaluate={"clients": clients})
    federation = fake_federation(parts)
    play(parts, federation)
    assert len(federation.evaluated) == calls
    if calls:
        assert federation.evaluated[0][1] == federation.asked[0]


def test_an_evaluation_that_fails_counts_like_a_training_that_fails(make_parts, fake_federation, failed):
    parts = make_parts(rounds=1)

    class Broken(fake_federation):
        def evaluate(self, order, partitions):
            return [
                failed(p) if p == 2 else r
                for p, r in zip(partitions, super().evaluate(order, partitions), strict=True)
            ]

    with pytest.raises(TooManyFailures, match="1 of 6 clients failed to evaluate"):
        play(parts, Broken(parts))


def cohort(parts):
    layout = parts.layout
    return Cohort(
        round=1,
        partitions=(0,),
        updates=torch.zeros(1, layout.size),
        examples=torch.ones(1, dtype=torch.int64),
        layout=layout,
    )


def test_the_update_is_added_in_float64(make_parts):
    parts = make_parts()
    model = torch.full((parts.layout.size,), 1.0)
    tiny = torch.full((parts.layout.size,), 2.0**-24 * 1.5, dtype=torch.float64)
    assert (apply(model, Decision(update=tiny), cohort(parts), parts.layout) > 1).all()


@pytest.mark.parametrize(
    ("update", "message"),
    [
        (lambda d: torch.zeros(d + 1), "update of shape"),
        (lambda d: torch.full((d,), 1e39, dtype=torch.float64), "not finite"),
    ],
)
def test_a_rule_that_makes_no_model_is_refused(make_parts, update, message):
    parts = make_parts()
    decision = Decision(update=update(parts.layout.size))
    with pytest.raises(RoundError, match=message):
        apply(torch.zeros(parts.layout.size), decision, cohort(parts), parts.layout)
