"""A small convolutional network for images: two convolutions with pooling, one dense layer.

The shape of the CNN of McMahan et al., AISTATS 2017, section 3 (two convolutions, each followed by
2x2 max pooling, then a dense layer and softmax). There the kernels are 5x5 and the dense layer has 512
units; `Cnn(kernel=5, hidden=512)` is that network. The defaults are lighter.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from clients.models.checks import at_least, is_rate
from clients.models.dropout import draw_masks, drop
from clients.models.image_input import channels_last, image_shape
from fedsim.contracts import Batch, DataSpec, Tensors
from fedsim.errors import ConfigError

SMALLEST = 8  # pixels: two poolings leave 2 x 2


@dataclass(frozen=True, kw_only=True)
class Cnn:
    """Two convolutions and a dense layer.

    Attributes:
        channels: of the first and the second convolution.
        kernel: side of both kernels in pixels, odd; borders are padded with zeros.
        hidden: units of the dense layer.
        dropout: share of the dense layer's units dropped in training.
    """

    channels: tuple[int, int] = (32, 64)
    kernel: int = 3
    hidden: int = 128
    dropout: float = 0.0

    def __post_init__(self) -> None:
        for width in self.channels:
            at_least("channels", width, 1)
        at_least("kernel", self.kernel, 1)
        if self.kernel % 2 == 0:
            raise ConfigError(f"kernel must be odd, found {self.kernel}.")
        at_least("hidden", self.hidden, 1)
        is_rate("dropout", self.dropout)

    def build(self, spec: DataSpec) -> nn.Module:
        """The module for images of at least 8 x 8 pixels.

        Raises:
            ConfigError: the data are no images, or smaller.
        """
        return CnnModel(self, image_shape("cnn", spec, SMALLEST), spec.classes)


class CnnModel(nn.Module):
    """[b, channels, height, width] -> [b, classes]."""

    def __init__(self, table: Cnn, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        colours, height, width = shape
        first, second = table.channels
        self.conv1 = nn.Conv2d(colours, first, table.kernel, padding=table.kernel // 2)
        self.conv2 = nn.Conv2d(first, second, table.kernel, padding=table.kernel // 2)
        self.dense = nn.Linear(second * (height // 4) * (width // 4), table.hidden)
        self.head = nn.Linear(table.hidden, classes)
        self.dropout = table.dropout
        self.masks = {"dropout": table.hidden}

    def forward(self, batch: Batch, noise: Tensors | None = None) -> Tensor:
        """Logits, with the mask of `noise` after the dense layer."""
        maps = functional.max_pool2d(self.conv1(channels_last(batch.x)), 2).relu()
        maps = functional.max_pool2d(self.conv2(maps), 2).relu()
        hidden = drop(self.dense(maps.flatten(1)).relu(), noise, "dropout")
        logits: Tensor = self.head(hidden)
        return logits

    def draw(self, batch: Batch, rng: torch.Generator) -> dict[str, Tensor]:
        """The mask [b, hidden] of the dense layer."""
        return draw_masks(self.masks, self.dropout, batch.x, rng)
