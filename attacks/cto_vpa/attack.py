"""CTO-VPA: a backdoor whose trigger and update are coupled to directions that aggregation leaves alone.

After the abstract of an ICML 2026 paper on the durability of backdoors in federated learning ("coupled
trigger optimisation and vulnerable parameter alignment"). What the abstract leaves open is decided here, and
every decision is a key. The stages: A `attacks.cto_vpa.stability`, B `attacks.cto_vpa.coupling`, C
`attacks.cto_vpa.alignment`; below them lies BadNets, which is left when all of them are switched off.

Three arms are told side by side: `CtoVpa` (repaired: all three stages), `Literal` (what the paper's public
code amounts to: DBA whose pixel values were tuned by cross-entropy) and `RandomTrigger` (stage C with the
initial pixels). They differ in defaults alone.

The trigger is a patch of 12 pixels. In the manner of DBA each malicious client stamps one part of it, by
default some of its pixels (three clients: a bar of 4 each); success is measured with all of it. The public
code lets each client change a single colour channel of its pixels, 12 values in all: `split = "values"`.
"""

from dataclasses import dataclass, replace
from typing import Literal as OneOf

import torch

from attacks.badnets import BadNets
from attacks.cto_vpa.alignment import keep_near, median_norm, norms, others, within, without_statistics
from attacks.cto_vpa.checks import (
    check_members,
    check_not_negative,
    check_search,
    check_subset,
    check_upload,
    check_window,
)
from attacks.cto_vpa.search import CoupledSearch, Direction
from attacks.cto_vpa.selection import Selection, Subset, masks_in, moments_in, watched
from attacks.programs import keep_update_in, then_project
from attacks.trigger_search import Search, due
from attacks.triggers import Patch, Trigger
from fedsim.contracts import ClientData, LocalProgram, Matrix, Tensors
from fedsim.threat import Knowledge, Threat, View

START, FIRST = "window/start", "drift/first"  # in the state: a round, and a model [d]


@dataclass(frozen=True, kw_only=True)
class CtoVpa(BadNets):
    """The repaired arm; see `BadNets` for `target`, `poison_fraction` and `patch`.

    Attributes:
        initial: pixel values before any search: "random" in [0, 1], "saturated" (random, rounded to 0
            or 1), or the patch's "colour".
        split: what one malicious client stamps: some "pixels", all of them in one of the "channels" (its
            number modulo the channels), "values" (some pixels in one channel; the trigger has no others),
            or "none": the whole.
        subset: V by "score", at "random", by the "lowest" score, or "none": all parameters.
        rho: share of each layer's units in V.
        drift_rounds: models whose drift is observed, the last of them the one that opens the window.
        force_target_row: put the target's row of the last layer into V, in place of the lowest ranked.
        reselect: rounds after which V is chosen anew in the window, from all drift so far; 0: never.
        direction: u_V: "ones", the same in all of V, or "drift", the model's mean drift on V.
        search_steps: of stage B; 0: no search.
        search: Adam, or steps of equal size against the gradient's sign.
        search_rate: size of a step, in units of brightness.
        search_batch: images per step.
        search_device: where stage B computes, such as "cuda".
        repeat: rounds after which the search goes on, on the current model; 0: once, as the window opens.
        coupling: a, weight of the cosine.
        feature: b, weight of the squared distance to the target's features.
        project: malicious training moves V alone.
        proximal: weight of the distance to the received model in malicious training; the losses weigh the
            rest.
        reset_statistics: send the received buffers back, such as BatchNorm's statistics.
        epochs: local epochs of malicious clients; unset: as honest ones.
        rate: factor on their learning rates.
        gamma: factor of the update.
        radius: largest norm of the update after that, in parameter units; "median": the median norm of the
            other clients' updates in the same round, which takes knowledge of EVERYTHING; unset: no bound.
            BatchNorm's statistics count in neither norm.
        fill: scale shorter updates up to the radius.
    """

    target: int = 2
    patch: Patch = Patch(height=3, width=4)  # noqa: RUF009 - frozen
    initial: OneOf["random", "saturated", "colour"] = "random"
    split: OneOf["pixels", "channels", "values", "none"] = "pixels"
    subset: Subset = "score"
    rho: float = 0.3
    drift_rounds: int = 10
    force_target_row: bool = False
    reselect: int = 0
    direction: Direction = "ones"
    search_steps: int = 500
    search: Search = "adam"
    search_rate: float = 0.2
    search_batch: int = 64
    search_device: str = "cpu"
    repeat: int = 0
    coupling: float = 1.0
    feature: float = 0.0
    project: bool = True
    proximal: float = 0.3
    reset_statistics: bool = True
    epochs: int | None = 4
    rate: float = 0.5
    gamma: float = 1.0
    radius: float | OneOf["median"] | None = 1.0
    fill: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_subset(self.rho, self.drift_rounds, self.reselect)
        check_search(self.search_steps, self.search_rate, self.search_batch, self.search_device)
        check_not_negative(repeat=self.repeat, coupling=self.coupling, feature=self.feature)
        check_upload(self.proximal, self.gamma, self.radius, self.fill)

    @property
    def knows(self) -> Knowledge:  # type: ignore[override]
        """The colluders' data; with `radius = "median"` everybody's updates."""
        return Knowledge.EVERYTHING if self.radius == "median" else Knowledge.COLLUDERS

    @property
    def couples(self) -> bool:
        """Does stage B read V?"""
        return self.search_steps > 0 and self.coupling > 0

    @property
    def selection(self) -> Selection:
        """Stage A."""
        return Selection(self.subset, self.rho, self.target if self.force_target_row else None)

    def init(self, threat: Threat, rng: torch.Generator) -> Tensors:
        """The initial trigger, and when the window opens.

        Raises:
            ConfigError: see `BadNets.init`; or the window opens before enough drift could be observed.
        """
        state = {**super().init(threat, rng), START: torch.tensor(threat.window[0])}
        if self._watches or self._needs_start:
            check_window(self.drift_rounds, threat.window[0])
        trigger, members = Trigger.from_state(state), len(threat.members)
        check_members(self.split, members, trigger)
        if self.split == "values" and members:
            pieces = [self._piece(trigger, member, members).mask for member in range(members)]
            trigger = replace(trigger, mask=torch.stack(pieces).any(dim=0))
        if self.initial != "colour":
            drawn = torch.rand(trigger.pattern.shape, generator=rng, dtype=trigger.pattern.dtype)
            trigger = trigger.with_pattern(drawn.round() if self.initial == "saturated" else drawn)
        return {**state, **trigger.state()}

    def own_trigger(self, state: Tensors, member: int) -> Trigger:
        """Some pixels, one channel, both, or all of it."""
        return self._piece(Trigger.from_state(state), member, int(state["members"]))

    def _piece(self, trigger: Trigger, member: int, members: int) -> Trigger:
        if self.split in ("pixels", "values"):
            trigger = trigger.part(member, members)
        if self.split in ("pixels", "none"):
            return trigger
        channel = torch.zeros_like(trigger.mask)
        channel[member % len(channel)] = True
        return replace(trigger, mask=trigger.mask & channel)

    def observe(self, state: Tensors, view: View, rng: torch.Generator) -> Tensors:
        """Watch the drift; as the window opens, and later if asked, choose V and search the trigger."""
        since = view.round - int(state[START])
        if since <= -self.drift_rounds:
            return state
        state = self._watched(state, view, since)
        if (self.project or self.couples) and due(since, self.reselect):
            state = {**state, **self.selection.masks(view, moments_in(state), rng)}
        if self.search_steps and due(since, self.repeat):
            before = Trigger.from_state(state)
            found = self._search.run(before, view, masks_in(state), state.get(FIRST), rng)
            state = {**state, **found.state()}
        return state

    def corrupt(
        self, state: Tensors, member: int, program: LocalProgram, data: ClientData
    ) -> tuple[LocalProgram, ClientData]:
        """Train on partly poisoned batches, near the received model and inside V."""
        program, data = super().corrupt(state, member, program, data)
        if self.proximal or self.reset_statistics:
            program = keep_near(program, self.proximal, buffers=not self.reset_statistics)
        if self.project and self.subset != "none":
            program = then_project(program, keep_update_in(masks_in(state)))
        return program, data

    def craft(self, state: Tensors, view: View, rng: torch.Generator) -> Matrix:
        """The updates times gamma, within the radius."""
        own: Matrix = view.own  # type: ignore[assignment]  # never None after training
        rows = own if self.gamma == 1 else own * self.gamma
        if self.radius is None:
            return rows
        radius = self.radius
        if radius == "median":
            rest = others(view.updates, view.places)  # type: ignore[arg-type]
            if not len(rest):
                return rows
            radius = median_norm(without_statistics(rest, view.layout))
        lengths = norms(without_statistics(rows, view.layout))
        return within(rows, radius, fill=self.fill, lengths=lengths)

    def _watched(self, state: Tensors, view: View, since: int) -> Tensors:
        """The state after this round's model was seen, where drift is wanted."""
        if self._needs_start and FIRST not in state:
            state = {**state, FIRST: view.model}
        if self._watches and (since <= 0 or self.reselect):
            state = {**state, **watched(state, view)}
        return state

    @property
    def _watches(self) -> bool:
        return (self.project or self.couples) and self.selection.ranks

    @property
    def _needs_start(self) -> bool:
        return self.couples and self.direction == "drift"

    @property
    def _search(self) -> CoupledSearch:
        return CoupledSearch(
            target=self.target,
            coupling=self.coupling,
            feature=self.feature,
            direction=self.direction,
            steps=self.search_steps,
            search=self.search,
            rate=self.search_rate,
            batch=self.search_batch,
            device=torch.device(self.search_device),
        )


@dataclass(frozen=True, kw_only=True)
class Literal(CtoVpa):
    """The arm of the public code: pixel values tuned by cross-entropy, then DBA.

    Its mask on gradients never acts, its distance carries no gradient and its weight term does not reach
    the trigger, so none of them is here.
    """

    subset: Subset = "none"
    coupling: float = 0.0
    project: bool = False
    proximal: float = 0.0
    reset_statistics: bool = False
    epochs: int | None = None
    rate: float = 1.0
    radius: float | OneOf["median"] | None = None


@dataclass(frozen=True, kw_only=True)
class RandomTrigger(CtoVpa):
    """The arm without stage B: stage C with the initial random pixels."""

    search_steps: int = 0
