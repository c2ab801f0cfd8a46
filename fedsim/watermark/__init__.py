"""Ownership of a graph model, marked into its explanations and proved from its answers.

Downer, Shi, Liu, Wang and Wang, "Watermarking Graph Neural Networks via Explanations for Ownership
Protection", ICML 2026. What differs from the paper is said where it differs: the verdict rests on the
matches with a key that is drawn after the sets and features it refers to, not on the paper's matching index.
"""
