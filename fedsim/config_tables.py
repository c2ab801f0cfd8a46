"""The tables of an experiment file, except for the file as a whole: see `fedsim.config`."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

Positive = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Statistic = Literal[
    "last",
    "best",
    "validation_selected",
    # of attack_success
    "at_stop",
    "plus_25",
    "plus_50",
    "plus_100",
    "auc50",
    "floor",
    # of attack_lifespan
    "rounds",
    "smoothed",
    # of detector
    "precision",
    "recall",
    "f1",
    "false_positive_rate",
]


class Section(BaseModel):
    """A table of the file whose keys are all known here."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Plugin(BaseModel):
    """A table whose `kind` names a plugin; the other keys belong to that plugin."""

    model_config = ConfigDict(extra="allow", frozen=True)

    kind: str

    @property
    def options(self) -> dict[str, Any]:
        """The plugin's own keys, unchecked."""
        return dict(self.model_extra or {})


class Federation(Section):
    """Who takes part: partitions of the data, and how many of them are asked in a round.

    Attributes:
        clients: partitions, numbered from 0.
        clients_per_round: exactly so many in every round; all of them if not given.
        partition: the plugin that divides the data.
        trusted: training rows that the server holds itself, taken before the division (FLTrust's root data).
        split: fractions of each client's data for training, validation and test, which sum to 1; None: the
            task's own, see `fedsim.data.federate`.
    """

    clients: Positive = 10
    clients_per_round: Positive = Field(default_factory=lambda known: known.get("clients", 10))
    partition: Plugin = Plugin(kind="iid")
    split: tuple[Fraction, Fraction, Fraction] | None = None
    trusted: Annotated[int, Field(ge=0)] = 0

    @field_validator("clients_per_round")
    @classmethod
    def _at_most_all(cls, value: int, info: ValidationInfo) -> int:
        clients = info.data.get("clients", value)
        if value > clients:
            raise ValueError(f"at most federation.clients = {clients}")
        return value

    @field_validator("split")
    @classmethod
    def _sums_to_one(cls, value: tuple[float, float, float] | None) -> tuple[float, float, float] | None:
        if value is not None and (abs(sum(value) - 1) > 1e-9 or value[0] <= 0):
            raise ValueError("three fractions that sum to 1, the first above 0")
        return value


class Attack(Plugin):
    """Who is malicious and when; the plugin's own keys lie beside these.

    Attributes:
        malicious: partitions, or how many of them (drawn by seed).
        participation: `forced` puts every malicious client in every cohort of the window; `random` draws
            them like all others.
        window: first and last round of the attack, counted from 1, inclusive; None: all rounds.
        clean_run: play the same run without the attack first, to tell what the attack costs and how often
            its trigger works by itself; it doubles the time.
    """

    malicious: Annotated[int, Field(ge=0)] | tuple[int, ...] = 1
    participation: Literal["forced", "random"] = "random"
    window: tuple[Positive, Positive] | None = None
    clean_run: bool = True


class Engine(Section):
    """Where and how clients are computed; only `tier`, `dtype`, `device` and `chunk` can touch the numbers.

    Attributes:
        backend: `in-process` (one worker: this process; more: spawned processes) or `ray`.
        workers: how many; None: one per usable core, 8 at most. Results do not depend on it.
        device: `auto` takes CUDA where there is one; else `cpu`, `cuda` or `cuda:N`.
        tier: `T0` sends Flower messages to a ClientApp, `T1` runs clients one after the other, `T2` many at
            once where their programs allow it; `auto` is T1 or T2 by a rule on declared sizes
            (`fedsim.training.tiers`), the same on every machine; `measured` times both before round 1 and
            keeps the faster, also over a resume, so that machines may differ.
        chunk: clients per task, in T2 those computed at once; None: by a rule on declared sizes.
        address: of a running Ray cluster to join.
        gpus_per_worker: share of a card; `auto`: spread evenly, as many on a card as
            its memory was found to hold.
        deadline: seconds that a worker may take for its share of a round; None: no limit.
        dtype: of parameters and inputs.
        private_memory: GiB of private client tensors that the driver keeps in memory; the rest on disk.
    """

    backend: Literal["in-process", "ray"] = "in-process"
    workers: Positive | None = None
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = "auto"
    tier: Literal["auto", "measured", "T0", "T1", "T2"] = "auto"
    chunk: Positive | None = None
    address: str | None = None
    gpus_per_worker: Annotated[float, Field(gt=0, le=1)] | Literal["auto"] = "auto"
    deadline: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    dtype: Literal["float32", "float64"] = "float32"
    private_memory: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 2.0

    @field_validator("address")
    @classmethod
    def _for_ray(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and info.data.get("backend") != "ray":
            raise ValueError('no address unless engine.backend = "ray"')
        return value


class Evaluate(Section):
    """When models are measured; the last round always is.

    Attributes:
        every: rounds between measurements of the global model on the server's test set. Where there is an
            attack, the last round of its window and the 25th, 50th and 100th after it are measured as well.
        clients: whose own models are measured on their own splits.
        clients_every: rounds between those.
    """

    every: Positive = 1
    clients: Literal["all", "sampled", "none"] = "all"
    clients_every: Positive = 5


class Checkpoint(Section):
    """What `--resume` goes on from.

    Attributes:
        every: rounds between checkpoints; 0 writes none.
    """

    every: Annotated[int, Field(ge=0)] = 1


class Failures(Section):
    """When a run gives up.

    Attributes:
        max_failed_fraction: share of a cohort that may fail or be refused; by default nobody may.
    """

    max_failed_fraction: Fraction = 0.0


class Expectation(Section):
    """Bounds on one metric; the run ends with exit code 3 where they are not met.

    Attributes:
        at_least: lower bound, inclusive.
        at_most: upper bound, inclusive.
        statistic: of the metric over rounds; what `attack_success` and other metrics of an attack have beyond
            `last`, `best` and `validation_selected` is told in result.json.
    """

    at_least: Finite | None = None
    at_most: Finite | None = None
    statistic: Statistic = "last"

    @model_validator(mode="after")
    def _some_bound(self) -> "Expectation":
        if self.at_least is None and self.at_most is None:
            raise ValueError("at_least or at_most")
        if self.at_least is not None and self.at_most is not None and self.at_least > self.at_most:
            raise ValueError("at_least no higher than at_most")
        return self
