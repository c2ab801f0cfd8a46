"""Pixel triggers as values, stamped in units of brightness, and the poisoning of a batch with one.

A trigger is a mask and a pattern of pixel values in [0, 1], where 0 is black and 1 is white. Batches carry
standardised inputs, so a trigger also knows what black and white are there (`fedsim.threat.Threat.pixels`).
Shapes use c channels, height h, width w, b examples.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedsim.contracts import Batch, DataSpec, Tensors
from fedsim.errors import ConfigError
from fedsim.threat import Threat

PREFIX = "trigger/"
"""Of a trigger's tensors in an attack's state."""


@dataclass(frozen=True)
class Trigger:
    """What is put into an image, and where.

    Attributes:
        mask: [c, h, w] bool, the values that the trigger replaces; a channel may be left alone.
        pattern: [c, h, w] pixel values, 0 black to 1 white; values outside are clamped in use.
        black: [c, 1, 1], a black pixel as a batch carries it.
        white: [c, 1, 1], likewise.
    """

    mask: Tensor
    pattern: Tensor
    black: Tensor
    white: Tensor

    @classmethod
    def of(cls, threat: Threat, mask: Tensor, pattern: Tensor) -> "Trigger":
        """A trigger on the scale of the federation's images.

        Raises:
            ConfigError: the clients have no images, see `image_shape`.
        """
        shape = image_shape(threat)
        if threat.pixels is None:
            raise ConfigError(
                f"attack.kind: {_WANTED}, but the data's rows of shape {shape} have no scale of pixels."
            )
        black, white = threat.pixels
        return cls(mask.expand(shape).clone(), pattern.expand(shape).clone(), black, white)

    def stamp(self, x: Tensor) -> Tensor:
        """[b, c, h, w] -> the same with the trigger; gradients reach the pattern wherever it is in range."""
        value = self.black + self.pattern.clamp(0, 1) * (self.white - self.black)
        return torch.where(self.mask.to(x.device), value.to(x), x)

    def part(self, number: int, parts: int) -> "Trigger":
        """One of `parts` pieces: the masked places in reading order, divided as evenly as possible.

        A place is a pixel with all its masked channels; the first pieces have one place more where the
        number of places does not divide. The union of all pieces is the whole, and no two overlap.

        Args:
            number: which piece, from 0.
            parts: how many; 1 gives the whole.
        """
        places = self.mask.any(dim=0).flatten().nonzero().flatten()
        own = torch.zeros(self.mask[0].numel(), dtype=torch.bool, device=self.mask.device)
        own[torch.tensor_split(places, parts)[number]] = True
        return replace(self, mask=self.mask & own.view(self.mask.shape[1:]))

    @property
    def places(self) -> int:
        """How many pixels the trigger touches."""
        return int(self.mask.any(dim=0).sum())

    def state(self) -> dict[str, Tensor]:
        """The trigger as tensors of an attack's state."""
        return {
            f"{PREFIX}mask": self.mask,
            f"{PREFIX}pattern": self.pattern.detach(),
            f"{PREFIX}black": self.black,
            f"{PREFIX}white": self.white,
        }

    @classmethod
    def from_state(cls, state: Tensors) -> "Trigger":
        """The trigger that `state` wrote."""
        return cls(*(state[f"{PREFIX}{name}"] for name in ("mask", "pattern", "black", "white")))

    def with_pattern(self, pattern: Tensor) -> "Trigger":
        """The same places with other pixel values, [c, h, w]."""
        return replace(self, pattern=pattern)


_WANTED = "a pixel trigger needs images of one size and scale on all clients"


def image_shape(threat: Threat) -> tuple[int, int, int]:
    """(channels, height, width) of the clients' images.

    Raises:
        ConfigError: they have none.
    """
    spec = threat.spec
    if spec is None:
        raise ConfigError(f"attack.kind: {_WANTED}, but clients' inputs differ.")
    if spec.task != "rows" or len(spec.shape) != 3:
        found = f"{spec.task} with inputs of shape {spec.shape}"
        raise ConfigError(f"attack.kind: {_WANTED}, but the data are {found}.")
    channels, height, width = spec.shape
    return channels, height, width


@dataclass(frozen=True, kw_only=True)
class Patch:
    """A rectangle of one colour.

    Attributes:
        row: its top; negative counts from the bottom edge, -1 is the last row.
        column: its left; negative counts from the right edge.
        height: in pixels.
        width: in pixels.
        colour: brightness of each channel, 0 black to 1 white; one value serves all channels.
        gap: rows and columns left out in the middle, so that four corners remain, as the bars of DBA.
    """

    row: int = 0
    column: int = 0
    height: int = 4
    width: int = 4
    colour: tuple[float, ...] = (1.0,)
    gap: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        for key, size, gap in (("height", self.height, self.gap[0]), ("width", self.width, self.gap[1])):
            if size < 1:
                raise ConfigError(f"{key} must be at least 1, found {size}.")
            if not (0 <= gap < size and (gap == 0 or (size - gap) % 2 == 0)):
                raise ConfigError(f"gap must leave equal halves of {key} = {size}, found {gap}.")
        if not self.colour or not all(0 <= value <= 1 for value in self.colour):
            raise ConfigError(f"colour must be values from 0 to 1, one per channel, found {self.colour}.")

    def mask(self, shape: tuple[int, int, int]) -> Tensor:
        """[c, h, w] bool.

        Raises:
            ConfigError: the patch does not fit into the image.
        """
        rows = _span("row", self.row, self.height, self.gap[0], shape[1])
        columns = _span("column", self.column, self.width, self.gap[1], shape[2])
        return (rows[:, None] & columns).expand(shape).clone()

    def pattern(self, shape: tuple[int, int, int]) -> Tensor:
        """[c, h, w] float64, the colour everywhere.

        Raises:
            ConfigError: there are more or fewer colours than channels.
        """
        if len(self.colour) not in (1, shape[0]):
            raise ConfigError(
                f"attack.patch.colour has {len(self.colour)} values, but the images have {shape[0]} "
                f"channels: give 1 value or {shape[0]}."
            )
        return torch.tensor(self.colour, dtype=torch.float64).view(-1, 1, 1).expand(shape).clone()

    def trigger(self, threat: Threat) -> Trigger:
        """The patch on the federation's images; errors are those of `mask`, `pattern`, `image_shape`."""
        shape = image_shape(threat)
        return Trigger.of(threat, self.mask(shape), self.pattern(shape))


def _span(key: str, start: int, size: int, gap: int, whole: int) -> Tensor:
    """[whole] bool, True from `start` for `size` pixels except for `gap` in their middle."""
    first = start + whole if start < 0 else start
    if first < 0 or first + size > whole:
        raise ConfigError(
            f"attack.patch.{key} = {start} with {size} pixels does not fit into images of {whole} pixels."
        )
    span = torch.zeros(whole, dtype=torch.bool)
    span[first : first + size] = True
    half = (size - gap) // 2
    span[first + half : first + half + gap] = False
    return span


def poisoned_count(fraction: float, examples: int) -> int:
    """round(fraction * examples), halves up: 8 of 32 at 0.25, 1 of 2 at 0.25, 0 of 1 at 0.25."""
    return math.floor(fraction * examples + 0.5)


def poison_batch(batch: Batch, trigger: Trigger, target: int, fraction: float = 1.0) -> Batch:
    """Some examples of a batch with the trigger and the target's label; the others and the order as before.

    Examples of the target class are never touched: the trigger on them would teach nothing, and counts
    nothing in success. Of the rest the first `poisoned_count(fraction, b)` are taken, b being the whole
    batch, or all of them where there are fewer. Batches are shuffled before, so the first are random ones;
    but a batch of all a client has comes in the order of its data, and the same ones are taken every time.

    Args:
        batch: rows, x [b, c, h, w].
        trigger: what to stamp.
        target: the wanted label.
        fraction: of the batch.
    """
    other = batch.y != target
    chosen = other & (other.cumsum(0) <= poisoned_count(fraction, len(batch.y)))
    x = torch.where(chosen.view(-1, 1, 1, 1), trigger.stamp(batch.x), batch.x)
    return batch._replace(x=x, y=batch.y.masked_fill(chosen, target))


def check_target(target: int, spec: DataSpec | None, key: str = "target") -> None:
    """Refuse a label that the data lack.

    Raises:
        ConfigError: naming `key`.
    """
    if spec is not None and not 0 <= target < spec.classes:
        raise ConfigError(f"attack.{key} must be a label from 0 to {spec.classes - 1}, found {target}.")
