"""Data sets, their division among clients, and what to know before a run."""
