"""Somebody else's Flower app, unmodified, on our engine (`fedsim app PATH`)."""
