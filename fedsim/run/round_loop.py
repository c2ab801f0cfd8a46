"""One round from cohort to record: draw, train, accept, decide, commit, measure.

Everything that a round changes is in the `RunState` it returns, so a run can stop after any round and go
on elsewhere with the same bits.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Protocol, runtime_checkable

import torch

from fedsim.contracts import Decision, Detour, Failure, LocalUpdate, Tensors
from fedsim.federation import EvaluateOrder, Federation, TrainOrder
from fedsim.metrics import merge
from fedsim.params import Layout
from fedsim.run.adversary import Adversary, query
from fedsim.run.assembly import Parts
from fedsim.run.atomic_files import finite
from fedsim.run.attack_record import attack_record
from fedsim.run.checkpoint import RunState
from fedsim.run.clean_twin import CleanTwin
from fedsim.run.cohort import draw_cohort
from fedsim.run.decision import apply, decide, first_state
from fedsim.run.durability import milestones
from fedsim.run.replies import (
    cohort_of,
    enforce_policy,
    integers_of_largest,
    sort_replies,
    split_evaluations,
)
from fedsim.run.results import client_metrics, success_by_camp
from fedsim.run.server_evaluation import ServerEvaluation
from fedsim.run.server_side import ServerSide
from fedsim.run.stopwatch import Stopwatch


@runtime_checkable
class Overheads(Protocol):
    """A federation that knows how long nobody computed, and why."""

    def take_overhead(self) -> dict[str, float]:
        """Seconds since the last call, by phase of the stopwatch."""
        ...


@dataclass(frozen=True)
class RoundLoop:
    """What stays the same over the rounds of a run.

    Attributes:
        parts: experiment, plugins, data.
        federation: how clients are reached.
        server: measures the global model; None: it is not measured.
        adversary: None: everybody is honest.
        twin: the same run without the attack, where it was played before; see `clean_twin`.
        watch: where the time goes.
    """

    parts: Parts
    federation: Federation
    server: ServerEvaluation | None = None
    adversary: Adversary | None = None
    twin: CleanTwin | None = None
    watch: Stopwatch = field(default_factory=Stopwatch)

    @cached_property
    def side(self) -> ServerSide:
        """What the server computes for its rule."""
        return ServerSide(self.parts)

    def start(self) -> RunState:
        """The state before round 1."""
        layout, initial = self.parts.layout, self.parts.initial
        vector = layout.flatten(initial)
        return RunState(
            round=0,
            vector=vector,
            integers=layout.integers_of(initial),
            strategy=first_state(self.parts.plugins.strategy, vector.clone()),
            attack=self.adversary.init() if self.adversary else {},
        )

    def play(self, state: RunState) -> tuple[RunState, dict[str, Any]]:
        """The next round: its state, and its record of JSON values.

        Raises:
            RoundError: too many clients failed, or the rule made no usable model.
            WorkerError: the engine cannot go on.
        """
        return self._play(state, state.round + 1)

    def _play(self, state: RunState, round: int) -> tuple[RunState, dict[str, Any]]:
        asked = self._cohort(round)
        state = self._observed(state, round)
        accepted, failures = self._train(state, round, asked)
        with self.watch.phase("aggregate"):
            after, decision, under_attack = self._aggregate(state, round, accepted)
            self.federation.commit([reply.partition for reply in accepted])
        measured = self._measure(after, asked)
        attacked = {"attack": under_attack} if under_attack else {}
        record = {
            "round": round,
            "cohort": list(asked),
            "accepted": [reply.partition for reply in accepted],
            "examples": sum(reply.examples for reply in accepted),
            "steps": sum(reply.steps for reply in accepted),
            "update_norm": float(torch.linalg.vector_norm(decision.update.double())),
            "weights": None if decision.weights is None else decision.weights.tolist(),
            **attacked,
            "metrics": _means(accepted) | measured.metrics,
            "clients": measured.spread,
            "failures": [asdict(failure) for failure in (*failures, *measured.failures)],
            "detours": detours(accepted),
            "seconds": self.watch.take(),
        }
        return after, finite(record)

    def _observed(self, state: RunState, round: int) -> RunState:
        """The attack watches the model before anybody trains."""
        if self.adversary is None:
            return state
        with self.watch.phase("attack"):
            seen = self.adversary.observe(state.attack, round, state.vector, state.integers)
        return replace(state, attack=seen)

    def _cohort(self, round: int) -> tuple[int, ...]:
        federation = self.parts.experiment.federation
        forced = self.adversary.forced_members(round) if self.adversary else ()
        return draw_cohort(
            self.parts.seed, round, federation.clients, federation.clients_per_round, forced=forced
        )

    def _train(
        self, state: RunState, round: int, asked: Sequence[int]
    ) -> tuple[tuple[LocalUpdate, ...], tuple[Failure, ...]]:
        corruption = self.adversary.corruption(state.attack, round) if self.adversary else None
        order = TrainOrder(round, state.vector, state.integers, state.downlink, corruption)
        with self.watch.phase("train"):
            replies = self.federation.train(order, asked)
        self._tell_overhead("train")
        with self.watch.phase("aggregate"):
            replied = sort_replies(replies, self.parts.layout, round)
        self._enforce(round, asked, replied.failures, "train")
        return replied.accepted, replied.failures

    def _enforce(self, round: int, asked: Sequence[int], failures: Sequence[Failure], what: str) -> None:
        allowed = self.parts.experiment.failures.max_failed_fraction
        enforce_policy(round, len(asked), failures, allowed, what)

    def _aggregate(
        self, state: RunState, round: int, accepted: Sequence[LocalUpdate]
    ) -> tuple[RunState, Decision, dict[str, Any] | None]:
        strategy, cohort = self.parts.plugins.strategy, cohort_of(round, accepted, self.parts.layout)
        server = partial(self.side.of, round, state.vector, state.integers)
        if self.adversary:
            rule = query(strategy, state.strategy, cohort, server)
            cohort = self.adversary.rewrite(state.attack, cohort, state.vector, state.integers, rule)
        remembered, decision = decide(strategy, state.strategy, cohort, server())
        under_attack = None
        if self.adversary and self.adversary.active(round):
            hostile = self.adversary.places(cohort) if self.adversary.hostile else []
            under_attack = attack_record(cohort, hostile, decision)
        after = RunState(
            round=round,
            vector=apply(state.vector, decision, cohort, self.parts.layout),
            integers=integers_of_largest(accepted),
            strategy=remembered,
            downlink=decision.downlink,
            attack=state.attack,
        )
        return after, decision, under_attack

    def _measure(self, state: RunState, asked: Sequence[int]) -> "_Measured":
        """The global model and the clients' own, in the rounds where the experiment asks for it."""
        table, last = self.parts.experiment.evaluate, self.parts.experiment.rounds
        named = milestones(self.adversary.threat.window) if self.adversary else frozenset()
        measured = _Measured({}, {}, ())
        with self.watch.phase("evaluate"):
            if self.server and (state.round % table.every == 0 or state.round in {last, *named}):
                measured.metrics.update(self._measure_server(self.server, state))
            due = state.round % table.clients_every == 0 or state.round == last
            if table.clients != "none" and due:
                everybody = range(self.parts.experiment.federation.clients)
                who = list(asked) if table.clients == "sampled" else list(everybody)
                measured = self._measure_clients(state, who, measured)
        self._tell_overhead("evaluate")
        return measured

    def _measure_server(self, server: ServerEvaluation, state: RunState) -> dict[str, float | None]:
        """The global model, and under attack what the same trigger and round make of a clean model."""
        poison = self.adversary.poison(state.attack) if self.adversary else None
        found = server.measure(tensors_of(state, self.parts.layout), poison)
        if self.twin is not None:
            floor = server.measure(self.twin.tensors(state.round), poison)
            found["clean_test_accuracy"] = floor["test_accuracy"]
            if "attack_success" in floor:
                found["attack_floor"] = floor["attack_success"]
        return found

    def _tell_overhead(self, phase: str) -> None:
        if isinstance(self.federation, Overheads):
            for name, seconds in self.federation.take_overhead().items():
                self.watch.move(phase, name, seconds)

    def _measure_clients(self, state: RunState, who: Sequence[int], measured: "_Measured") -> "_Measured":
        poison = state.attack if self.adversary and self.adversary.measures else None
        order = EvaluateOrder(state.round, state.vector, state.integers, state.downlink, poison=poison)
        evaluations, failures = split_evaluations(self.federation.evaluate(order, who))
        self._enforce(state.round, who, failures, "evaluate")
        pooled, spread = client_metrics(evaluations)
        if self.adversary and self.adversary.measures:
            pooled |= success_by_camp(evaluations, self.adversary.threat.members)
        if self.twin is not None:
            pooled["clean_client_test_accuracy"] = self.twin.client_accuracy(state.round)
        return _Measured(measured.metrics | pooled, spread, tuple(failures))


def detours(accepted: Sequence[LocalUpdate]) -> list[dict[str, Any]]:
    """Why clients that should have run stacked ran by themselves: an entry per reason, with its clients."""
    found: dict[Detour, list[int]] = {}
    for reply in accepted:
        if reply.detour is not None:
            found.setdefault(reply.detour, []).append(reply.partition)
    return [{**asdict(detour), "partitions": partitions} for detour, partitions in found.items()]


@dataclass(frozen=True)
class _Measured:
    """Pooled metrics, the spread over clients, and evaluations that failed."""

    metrics: dict[str, float | None]
    spread: dict[str, Any]
    failures: tuple[Failure, ...]


def _means(accepted: Sequence[LocalUpdate]) -> dict[str, float | None]:
    return {name: value.mean for name, value in merge(reply.metrics for reply in accepted).items()}


def tensors_of(state: RunState, layout: Layout) -> Tensors:
    """The shared model by name."""
    return layout.unflatten(state.vector, state.integers)
