"""CTO-VPA: coupled trigger optimisation and vulnerable parameter alignment, in three stages A, B, C."""
