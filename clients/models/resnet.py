"""ResNet-18 for images of about 32 x 32 pixels.

He et al., "Deep Residual Learning for Image Recognition", CVPR 2016: the 18-layer column of table 1,
with a 3x3 stem and no max pooling as for CIFAR-10 (section 4.2), projection shortcuts where shapes change
(option B), and initialisation after He et al., ICCV 2015.

GroupNorm in place of BatchNorm, with 2 groups a layer, follows Reddi et al., "Adaptive Federated
Optimization", ICLR 2021, who cite Hsieh et al., ICML 2020: the statistics of BatchNorm differ between
clients whose labels differ.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from clients.models.checks import at_least
from clients.models.image_input import channels_last, image_shape
from fedsim.contracts import Batch, DataSpec, Tensors
from fedsim.errors import ConfigError

SMALLEST = 8  # pixels: three halvings leave 1 x 1
Norm = Callable[[int], nn.Module]


@dataclass(frozen=True, kw_only=True)
class ResNet18:
    """Four stages of two residual blocks.

    Attributes:
        norm: what normalises after each convolution.
        width: channels of the first stage; each later stage doubles them.
        groups: of each GroupNorm; must divide `width`; of no effect with BatchNorm.
    """

    norm: Literal["group", "batch"] = "group"
    width: int = 64
    groups: int = 2

    def __post_init__(self) -> None:
        at_least("width", self.width, 1)
        at_least("groups", self.groups, 1)
        if self.norm == "group" and self.width % self.groups:
            raise ConfigError(f"groups must divide width, found groups={self.groups} and width={self.width}.")

    def build(self, spec: DataSpec) -> nn.Module:
        """The module for images of at least 8 x 8 pixels.

        Raises:
            ConfigError: the data are no images, or smaller.
        """
        colours, _, _ = image_shape("resnet18", spec, SMALLEST)
        return ResNetModel(colours, spec.classes, self.width, self.normalize)

    def normalize(self, channels: int) -> nn.Module:
        """A fresh normalisation of [b, channels, height, width]."""
        return nn.BatchNorm2d(channels) if self.norm == "batch" else nn.GroupNorm(self.groups, channels)


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut; the first may halve the height and the width."""

    def __init__(self, before: int, after: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)
        self.norm1 = norm(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm2 = norm(after)
        self.shortcut = nn.Sequential()
        if stride > 1 or before != after:
            projection = nn.Conv2d(before, after, 1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(projection, norm(after))

    def forward(self, maps: Tensor) -> Tensor:
        """[b, before, h, w] -> [b, after, h / stride, w / stride], rounded up."""
        residual = self.norm2(self.conv2(self.norm1(self.conv1(maps)).relu()))
        result: Tensor = (residual + self.shortcut(maps)).relu()
        return result


class ResNetModel(nn.Module):
    """[b, colours, height, width] -> [b, classes]."""

    def __init__(self, colours: int, classes: int, width: int, norm: Norm) -> None:
        super().__init__()
        self.conv = nn.Conv2d(colours, width, 3, padding=1, bias=False)
        self.norm = norm(width)
        self.stages = nn.ModuleList(
            nn.Sequential(Block(before, after, stride, norm), Block(after, after, 1, norm))
            for (before, after), stride in zip(
                pairwise((width, width, 2 * width, 4 * width, 8 * width)), (1, 2, 2, 2), strict=True
            )
        )
        self.head = nn.Linear(8 * width, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, batch: Batch, noise: Tensors | None = None) -> Tensor:
        """Logits; there is no noise to apply."""
        maps = self.norm(self.conv(channels_last(batch.x))).relu()
        for stage in self.stages:
            maps = stage(maps)
        logits: Tensor = self.head(maps.mean(dim=(2, 3)))
        return logits

    def draw(self, batch: Batch, rng: torch.Generator) -> dict[str, Tensor]:
        """Nothing is drawn."""
        return {}
