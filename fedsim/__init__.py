"""Federated-learning simulation on Flower: simulate, deploy, and benchmark attacks against defences."""

__version__ = "0.1.0"
