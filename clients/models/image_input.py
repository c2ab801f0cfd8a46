"""What image models share: the check of the data's shape, and the memory order that convolutions like."""

from torch import Tensor

from clients.models.checks import require_task
from fedsim.contracts import DataSpec
from fedsim.errors import ConfigError


def image_shape(kind: str, spec: DataSpec, smallest: int) -> tuple[int, int, int]:
    """(channels, height, width) of the data.

    Args:
        kind: the model's name in the experiment file.
        spec: the data at hand.
        smallest: pixels that the height and the width must have at least.

    Raises:
        ConfigError: the data are not images, or smaller.
    """
    require_task(kind, spec, "rows")
    if len(spec.shape) != 3 or min(spec.shape[1:]) < smallest:
        raise ConfigError(
            f'model.kind = "{kind}" needs rows of shape (channels, height, width) with at least '
            f"{smallest} x {smallest} pixels, but the data are rows of shape {spec.shape}: "
            "choose another model.kind or another data set."
        )
    channels, height, width = spec.shape
    return channels, height, width


def channels_last(images: Tensor) -> Tensor:
    """The same [b, c, h, w] with channels innermost in memory: convolution and pooling run faster.

    Written with `permute`, because `torch.func.vmap` knows no memory formats.
    """
    return images.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
