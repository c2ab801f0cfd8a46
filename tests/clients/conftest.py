import warnings

# PyG compiles a class while it is imported, which torch 2.13 deprecates; tests turn warnings into errors.
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import torch_geometric.nn  # noqa: F401
