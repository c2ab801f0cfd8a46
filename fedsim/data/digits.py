"""Handwritten digits: 1,797 images of 8x8 pixels that ship with scikit-learn; nothing is downloaded.

Alpaydin and Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository, 1998.
"""

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from sklearn.datasets import load_digits

from fedsim.data.examples import Rows
from fedsim.data.pool import Pool, RowPool
from fedsim.errors import ConfigError

_WHITE = 16.0  # the files count pixels from 0 to 16


@dataclass(frozen=True, kw_only=True)
class Digits:
    """Inputs of shape (1, 8, 8) in [0, 1], ten classes.

    Attributes:
        test_fraction: of the images, held out for the server before the division.
    """

    test_fraction: float = 0.2

    def __post_init__(self) -> None:
        if not 0.0 < self.test_fraction < 1.0:
            raise ConfigError(f"test_fraction must lie between 0 and 1, found {self.test_fraction}.")

    def load(self) -> tuple[Pool, ...]:
        """See `fedsim.data.pool.Source`."""
        data, target = load_digits(return_X_y=True)
        x = torch.from_numpy(data.astype(np.uint8)).reshape(-1, 1, 8, 8)
        y = torch.from_numpy(target.astype(np.int64))
        state = hashlib.sha256(x.numpy().tobytes())
        state.update(y.numpy().tobytes())
        rows = Rows(x, y, mean=torch.zeros(1, 1, 1), std=torch.full((1, 1, 1), _WHITE), white=_WHITE)
        facts = {"source": "scikit-learn", "sha256": {"arrays": state.hexdigest()}}
        pool = RowPool(name="digits", rows=rows, classes=10, test_fraction=self.test_fraction, facts=facts)
        return (pool,)
