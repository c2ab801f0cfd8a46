"""Models, one file each: a table of hyperparameters that builds a module."""
