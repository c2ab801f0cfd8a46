"""What every test shares: one torch thread, as in a worker, and no telemetry."""

import os

import torch

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
torch.set_num_threads(1)
