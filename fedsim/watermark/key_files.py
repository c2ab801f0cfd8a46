"""`fedsim watermark keygen` and `export`: keys and commitments as files."""

import secrets
from collections.abc import Iterator, Sequence
from datetime import date as calendar
from pathlib import Path
from typing import Any

from fedsim import rng
from fedsim.config import load
from fedsim.contracts import ClientInfo
from fedsim.errors import ConfigError
from fedsim.plugins import search_in
from fedsim.run.assembly import assemble
from fedsim.run.atomic_files import save_json
from fedsim.watermark.checks import check_count, check_file, check_seed
from fedsim.watermark.key import SECRET_BYTES, key_text, make_key
from fedsim.watermark.sources import read_graph, write_graph
from fedsim.watermark.statistics import least_p
from fedsim.watermark.subgraphs import draw_sets, set_size, split_nodes
from fedsim.watermark.verification import Level


def keygen(
    data: str,
    out: Path,
    *,
    owner: str,
    date: str | None = None,
    sets: int = 4,
    share: float = 0.005,
    size: int | None = None,
    marks: int | None = None,
    seed: int = 0,
    mirror: str | None = None,
) -> Iterator[str]:
    """Write a key (readable by its owner alone) and its commitment; lines that say what they are."""
    check_seed(seed)
    check_count("--sets", sets, 2)
    if size is not None:
        check_count("--size", size, 2)
    if not 0 < share < 1:
        raise ConfigError(f"--share must be above 0 and below 1, found {share}.")
    check_file("--out", out)
    public = out.with_name(f"{out.stem}.commitment.json")
    for path in (out, public):
        if path.exists():
            raise ConfigError(f"{path}: already exists; a key that is written over is lost.")
    graph = read_graph(data, mirror)
    nodes = split_nodes(graph.y, seed).train
    drawn = draw_sets(nodes, sets, size or set_size(len(nodes), share), rng.stream(seed, "watermark.sets"))
    key = make_key(
        graph,
        drawn,
        owner=owner,
        date=calendar.today().isoformat() if date is None else date,
        secret=secrets.token_hex(SECRET_BYTES),  # the only draw that no seed may repeat
        seed=seed,
        marks=marks,
    )
    _write_private(out, key_text(key))
    save_json(public, key.commitment())
    least = least_p(len(key.features), len(key.features) // 2)
    yield f"{out}: {sets} sets of {drawn.shape[1]} nodes, {len(key.features)} marks. Keep it secret."
    yield f"{public}: publish it now; it binds {owner} and {key.date} to the key."
    if least > Level().threshold:
        asked = f"asked: {Level().threshold:.2g}"
        yield f"So few marks prove little: no model can reach p below {least:.2g} ({asked})."


def export(file: Path, overrides: Sequence[str], out: Path, seed: int | None = None) -> Iterator[str]:
    """Write the keys of an experiment's owners, and their graphs, so that each can verify by itself.

    Raises:
        ConfigError: the experiment's clients own no keys, or the folder holds keys already.
    """
    search_in(file.parent, Path.cwd())
    experiment = load(file, overrides)
    parts = assemble(experiment, experiment.seeds[0] if seed is None else seed)
    method: Any = parts.plugins.method
    if not hasattr(method, "key_of"):
        raise ConfigError(f"{file}: client.kind is no `watermarked`: its clients own no keys.")
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out}: is a file, wanted a folder.")
    out.mkdir(parents=True, exist_ok=True)
    for partition in method.owners:
        if partition >= len(parts.data.clients):
            raise ConfigError(f"{file}: client.owners names {partition}, but the clients are fewer.")
        key, graph = method.key_of(ClientInfo(partition, parts.data.clients[partition]))
        path, data = out / f"key-{partition}.json", out / f"data-{partition}.safetensors"
        if path.exists():
            raise ConfigError(f"{path}: already exists; a key that is written over is lost.")
        _write_private(path, key_text(key))
        save_json(out / f"key-{partition}.commitment.json", key.commitment())
        write_graph(data, graph)
        yield f"{path}: verify with --data {data}"


def _write_private(path: Path, text: str) -> None:
    path.touch(mode=0o600, exist_ok=False)
    path.write_text(text, encoding="utf-8")
