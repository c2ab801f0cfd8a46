"""Raw files of PyTorch Geometric's data sets: found or downloaded, and read by PyG in a copy."""

import contextlib
import difflib
import io
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import numpy as np
import numpy.typing as npt

from fedsim.data.graph_features import squeezed
from fedsim.data.store import copied, downloads_folder, placed, reachable
from fedsim.errors import ConfigError, DataError

_SPARSE = 0.25  # features with a smaller fraction of non-zero values are kept as sparse rows


@dataclass(frozen=True)
class _Family:
    """One class of `torch_geometric.datasets`: its names (None: any) and where it looks for raw files."""

    names: tuple[str, ...] | None
    raw: Callable[[str], str]


_FAMILIES = {
    "Planetoid": _Family(("Cora", "CiteSeer", "PubMed"), lambda name: f"{name}/raw"),
    "Amazon": _Family(("Computers", "Photo"), lambda name: f"{name}/raw"),
    "Coauthor": _Family(("CS", "Physics"), lambda name: f"{name}/raw"),
    "CitationFull": _Family(
        ("Cora", "Cora_ML", "CiteSeer", "DBLP", "PubMed"), lambda name: f"{name.lower()}/raw"
    ),
    "WikipediaNetwork": _Family(("chameleon", "squirrel"), lambda name: f"{name}/geom_gcn/raw"),
    "WebKB": _Family(("Cornell", "Texas", "Wisconsin"), lambda name: f"{name.lower()}/raw"),
    "Actor": _Family((), lambda name: "raw"),
    "HeterophilousGraphDataset": _Family(
        ("Roman-empire", "Amazon-ratings", "Minesweeper", "Tolokers", "Questions"),
        lambda name: f"{name.lower().replace('-', '_')}/raw",
    ),
    "TUDataset": _Family(None, lambda name: f"{name}/raw"),
}


def parsed(name: str) -> tuple[str, str]:
    """(family, name), with the family's own spelling of the name.

    Raises:
        ConfigError: PyG has no such family or name; says the nearest.
    """
    family, _, short = name.partition("/")
    if family not in _FAMILIES:
        raise ConfigError(f"name {name!r}: no family {family!r}{_other_family(family)}")
    names = _FAMILIES[family].names
    if names is None:
        if not short or Path(short).name != short:
            raise ConfigError(f"name {name!r} must be {family}/NAME, such as TUDataset/MUTAG.")
        return family, short
    if not names:
        if short not in ("", family):
            raise ConfigError(f"name {name!r}: {family} is a single data set; write {family!r}.")
        return family, family
    for known in names:
        if known.lower() == short.lower():
            return family, known
    raise ConfigError(f"name {name!r}: {family} has no {short!r}{_nearest(short, names)}")


def _other_family(word: str) -> str:
    """What to write where `word` is no family, but perhaps a data set's name."""
    whole = [
        f"{family}/{name}"
        for family, entry in _FAMILIES.items()
        for name in entry.names or ()
        if name.lower() == word.lower()
    ]
    return f"; did you mean {' or '.join(map(repr, whole))}?" if whole else _nearest(word, tuple(_FAMILIES))


def _nearest(word: str, known: tuple[str, ...]) -> str:
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(known)}."


def raw_folder(family: str, name: str, mirror: Path | None) -> tuple[Path, str]:
    """The folder of raw files and where it was found: "mirror", "cache" or "download".

    Raises:
        DataError: it is in neither place and cannot be downloaded.
    """
    below = Path(family) / _FAMILIES[family].raw(name)
    places = [(mirror / below, "mirror")] if mirror else []
    places.append((downloads_folder() / below, "cache"))
    for folder, source in places:
        if folder.is_dir():
            return folder, source
    tried = ", ".join(str(folder) for folder, _ in places)
    _download(family, name, places[-1][0], tried)
    return places[-1][0], "download"


def _download(family: str, name: str, target: Path, tried: str) -> None:
    host = _host(family)
    missing = f"The data set {family}/{name} is not in {tried}, and"
    if not reachable(host):
        raise DataError(f"{missing} {host} cannot be reached: set FEDSIM_DATA_MIRROR or data.mirror.")
    with tempfile.TemporaryDirectory() as root, placed(target) as folder:
        try:
            _opened(family, name, Path(root), offline=None)
        except Exception as error:  # whatever PyG's downloaders raise
            raise DataError(f"{missing} its download from {host} failed: {_line(error)}") from error
        copied(Path(root) / _FAMILIES[family].raw(name), folder)


def extracted(family: str, name: str, raw: Path) -> dict[str, npt.NDArray[Any]]:
    """What PyG reads from a folder of raw files, which is left untouched.

    Raises:
        DataError: PyG cannot read it.
    """
    with tempfile.TemporaryDirectory() as root:
        copied(raw, Path(root) / _FAMILIES[family].raw(name))
        try:
            dataset = _opened(family, name, Path(root), offline=raw)
        except DataError:
            raise
        except Exception as error:  # a malformed file shows in any way
            raise DataError(
                f"The files of {family}/{name} in {raw} cannot be read: {_line(error)}"
            ) from error
        return _graph_arrays(dataset) if family == "TUDataset" else _node_arrays(dataset)


def _opened(family: str, name: str, root: Path, offline: Path | None) -> Any:
    """PyG's data set; `offline`: never download, and name that folder where files are missing."""
    kind = _class(family)

    def refuse(self: Any) -> None:
        raise DataError(f"{offline} lacks some of {', '.join(map(str, self.raw_file_names))}.")

    if offline is not None:
        kind = type(kind.__name__, (kind,), {"download": refuse})
    arguments: dict[str, Any] = {"use_node_attr": True} if family == "TUDataset" else {}
    with _quiet():
        return kind(str(root), **arguments) if family == "Actor" else kind(str(root), name, **arguments)


def _class(family: str) -> Any:
    with _quiet():
        import torch_geometric.datasets  # seconds of import, only where it is needed
    return getattr(torch_geometric.datasets, family)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """PyG reports progress on stderr and warns of its own age; neither is for the user."""
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def _node_arrays(dataset: Any) -> dict[str, npt.NDArray[Any]]:
    data = dataset[0]
    return {
        **squeezed(data.x.numpy().astype(np.float32), _SPARSE),
        "edge_index": data.edge_index.numpy().astype(np.int64),
        "y": data.y.numpy().astype(np.int64),
        "classes": np.array(int(data.y.max()) + 1),
    }


def _graph_arrays(dataset: Any) -> dict[str, npt.NDArray[Any]]:
    graphs = list(dataset)
    nodes = [graph.num_nodes for graph in graphs]
    edges = [graph.num_edges for graph in graphs]
    bare = graphs[0].x is None
    x = np.zeros((sum(nodes), 0)) if bare else np.concatenate([graph.x.numpy() for graph in graphs])
    labels = np.concatenate([graph.y.numpy().astype(np.int64) for graph in graphs])
    return {
        **squeezed(x.astype(np.float32), _SPARSE),
        "edge_index": np.concatenate([graph.edge_index.numpy() for graph in graphs], axis=1),
        "y": labels,
        "node_ends": np.cumsum([0, *nodes]).astype(np.int64),
        "edge_ends": np.cumsum([0, *edges]).astype(np.int64),
        "classes": np.array(int(labels.max()) + 1),
        "attributes": np.array(dataset.num_node_attributes),
    }


def _host(family: str) -> str:
    kind = _class(family)
    return urlparse(getattr(kind, "url", None) or kind.processed_url).hostname or "github.com"


def _line(error: Exception) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0] if text else 'no message'}"
