"""A run: seeds, rounds, checkpoints, results, and the folder they leave."""
