"""Graph data sets that PyTorch Geometric can read: from the mirror, or downloaded once.

PyG writes `processed/` next to `raw/`; here it does so in a copy, and only the arrays are kept (features
as sparse rows where that is smaller). The sets' own train/val/test masks are not used: splits are drawn per
client.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch

from fedsim.data.examples import Graphs
from fedsim.data.graph_features import connected, degrees, normalised, unsqueezed
from fedsim.data.pool import GraphPool, NodePool, Pool
from fedsim.data.pyg_files import extracted, parsed, raw_folder
from fedsim.data.store import Arrays, cached, digests, key_of, mirror_folder
from fedsim.errors import ConfigError

_FORMAT = 1  # of the cached arrays


@dataclass(frozen=True, kw_only=True)
class PyG:
    """One or several data sets; several belong with `partition = "per_dataset"`.

    Attributes:
        name: "Family/Name", such as "Planetoid/Cora" or "TUDataset/MUTAG"; "Actor" has no second part.
        mirror: a folder with raw trees, tried first; default: FEDSIM_DATA_MIRROR.
        normalize: "row": features of a node sum to 1 in absolute value; "unit": they have length 1.
        scale: features are multiplied by it after normalising; row-normalised features are tiny, and 10
            is advised for them.
        largest_component: keep the largest connected component of a graph of nodes.
        node_attributes: use the continuous attributes of a TUDataset too, not its node labels alone.
        degree_cap: a TUDataset without features gets one-hot degrees 0..degree_cap, larger ones capped.
    """

    name: str | tuple[str, ...]
    mirror: str | None = None
    normalize: Literal["none", "row", "unit"] = "none"
    scale: float = 1.0
    largest_component: bool = False
    node_attributes: bool = False
    degree_cap: int = 100

    def __post_init__(self) -> None:
        if not self.names:
            raise ConfigError("name must hold at least one data set.")
        if len(set(self.names)) != len(self.names):
            raise ConfigError(f"name holds a data set twice: {', '.join(self.names)}.")
        for name in self.names:
            parsed(name)
        if not 0.0 < self.scale < float("inf"):
            raise ConfigError(f"scale must be above 0, found {self.scale}.")
        if self.degree_cap < 1:
            raise ConfigError(f"degree_cap must be at least 1, found {self.degree_cap}.")

    @property
    def names(self) -> tuple[str, ...]:
        """The data sets, in order."""
        return (self.name,) if isinstance(self.name, str) else tuple(self.name)

    def load(self) -> tuple[Pool, ...]:
        """See `fedsim.data.pool.Source`."""
        return tuple(self._pool(name) for name in self.names)

    def _pool(self, name: str) -> Pool:
        family, short = parsed(name)
        raw, source = raw_folder(family, short, mirror_folder(self.mirror))
        files = digests(raw, [path for path in raw.rglob("*") if path.is_file()])
        arrays = cached(key_of("pyg", _FORMAT, family, short, files), lambda: extracted(family, short, raw))
        facts = {
            "source": source,
            "sha256": files,
            "normalize": self.normalize,
            "scale": self.scale,
        }
        return (
            self._graphs(name, arrays, facts) if "node_ends" in arrays else self._nodes(name, arrays, facts)
        )

    def _nodes(self, name: str, arrays: Arrays, facts: dict[str, Any]) -> NodePool:
        x, edges, y = unsqueezed(arrays), arrays["edge_index"], arrays["y"]
        if self.largest_component:
            before = len(y)
            kept, edges = connected(edges, len(y))
            x, y = x[kept], y[kept]
            facts["outside_largest_component"] = before - len(y)
        return NodePool(
            name=name,
            x=torch.from_numpy(normalised(x, self.normalize, self.scale)),
            edge_index=torch.from_numpy(edges),
            y=torch.from_numpy(y),
            classes=int(arrays["classes"]),
            facts=facts,
        )

    def _graphs(self, name: str, arrays: Arrays, facts: dict[str, Any]) -> GraphPool:
        x = unsqueezed(arrays)
        if not self.node_attributes:
            x = x[:, int(arrays["attributes"]) :]
        if x.shape[1] == 0:
            x = degrees(arrays, self.degree_cap)
            facts["features"] = f"one-hot degrees, capped at {self.degree_cap}"
        graphs = Graphs(
            x=torch.from_numpy(normalised(x, self.normalize, self.scale)),
            edge_index=torch.from_numpy(arrays["edge_index"]),
            y=torch.from_numpy(arrays["y"]),
            node_ends=torch.from_numpy(arrays["node_ends"]),
            edge_ends=torch.from_numpy(arrays["edge_ends"]),
        )
        return GraphPool(name=name, graphs=graphs, classes=int(arrays["classes"]), facts=facts)
