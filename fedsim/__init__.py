"""Federated-learning simulation on Flower: simulate, deploy, and benchmark attacks against defences."""

import os

os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # torch: memory of large tensors in large pages

__version__ = "0.1.0"
