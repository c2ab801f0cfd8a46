"""The only folder that imports flwr."""
