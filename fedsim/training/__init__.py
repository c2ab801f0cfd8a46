"""Runs local programs on one client's data."""
