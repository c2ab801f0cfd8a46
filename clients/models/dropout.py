"""Inverted dropout whose masks are drawn outside the model, from a given generator.

Srivastava et al., "Dropout", JMLR 2014, section 10, in the inverted form: what is kept is scaled by
1 / (1 - rate) in training, so that nothing is scaled in evaluation.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from fedsim.contracts import Tensors


def draw_masks(
    widths: Mapping[str, int], rate: float, like: Tensor, rng: torch.Generator
) -> dict[str, Tensor]:
    """One mask per name, 0 with probability `rate` and else 1 / (1 - rate).

    Drawn on the CPU in float32 whatever the device and type of `like`, so that every device and both
    precisions drop the same units.

    Args:
        widths: the width w of each layer that is dropped, by the mask's name.
        rate: 0 gives no masks at all.
        like: [b, ...], the batch's inputs; the masks take its length, device and type.
        rng: a CPU generator, advanced in the order of `widths`.

    Returns:
        [b, w] each.
    """
    if rate == 0:
        return {}
    return {
        name: torch.empty(len(like), width).bernoulli_(1 - rate, generator=rng).to(like).div_(1 - rate)
        for name, width in widths.items()
    }


def drop(hidden: Tensor, noise: Tensors | None, name: str) -> Tensor:
    """`hidden` [b, w] times its mask, or as it is where no mask of this name was drawn."""
    return hidden * noise[name] if noise and name in noise else hidden
