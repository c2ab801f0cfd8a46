"""What the commands of `fedsim watermark` do: files in, files and lines of text out."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from fedsim.errors import ConfigError
from fedsim.plugins import build
from fedsim.run.atomic_files import finite, save_tensors
from fedsim.run.threads import one_thread
from fedsim.toml import apply_override, nearest
from fedsim.watermark.answer_server import server
from fedsim.watermark.audit import PARTS, Audit, audit_lines
from fedsim.watermark.checks import check_count, check_file, check_seed
from fedsim.watermark.embedding import Embedding, Mark, accuracy, train
from fedsim.watermark.forgery import Effort
from fedsim.watermark.forward import GraphModel
from fedsim.watermark.key import (
    Key,
    check_commitment,
    read_key,
    read_object,
)
from fedsim.watermark.loss import shares_met
from fedsim.watermark.picture import draw_nulls
from fedsim.watermark.sources import read_graph
from fedsim.watermark.stored_model import (
    build_model,
    file_suspect,
    header,
    read_tensors,
    stored_spec,
    tensors_suspect,
)
from fedsim.watermark.subgraphs import split_nodes
from fedsim.watermark.suspect import Suspect, callable_suspect, http_suspect, is_address, is_callable
from fedsim.watermark.verification import Level, Verdict, verify

Json = dict[str, Any]


def embed(
    keys: Sequence[Path],
    data: str,
    out: Path,
    overrides: Sequence[str] = (),
    *,
    marked: bool = True,
    seed: int = 0,
    mirror: str | None = None,
    as_json: bool = False,
) -> Iterator[str]:
    """Train a model with the keys in it, or the control, and write it; lines that say how it went."""
    check_seed(seed)
    check_file("--out", out)
    found = [read_key(path) for path in keys]
    if len(set(found)) < len(found):
        raise ConfigError("The same key is given twice.")
    table, options = tables(overrides)
    graph = read_graph(data, mirror)
    model = build_model(table, graph.x.shape[1], graph.classes, seed)
    started, split = time.perf_counter(), split_nodes(graph.y, found[0].seed)
    with one_thread():
        tensors = train(model, graph, split, options, keys=found if marked else (), seed=seed)
    seconds = time.perf_counter() - started
    if not all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
        raise ConfigError("Training diverged: lower embedding.optimizer.learning_rate or embedding.strength.")
    save_tensors(out, tensors, header(table, graph.x.shape[1], graph.classes))
    whole = GraphModel(model, graph.x, graph.edge_index)
    accuracies = {
        name: accuracy(whole, tensors, graph.y, getattr(split, name)) for name in ("train", "val", "test")
    }
    judged = []
    for key in found:
        with torch.no_grad():
            mark = Mark.of(model, key, graph)
            met = shares_met(mark.projection, mark.signs, mark.probabilities(tensors))
        verdict = verify(key, graph, tensors_suspect(str(out), model, tensors), null_sets=0)
        judged.append({"owner": key.owner, "marks_met": met, "p": verdict.match.p, "marked": verdict.marked})
    report: Json = {"model": str(out), "seconds": seconds, "accuracy": accuracies, "keys": judged}
    if as_json:
        yield _json(report)
        return
    shown = ", ".join(f"{name} {value:.4f}" for name, value in accuracies.items())
    yield f"{out}: {seconds:.0f} s; accuracy {shown}"
    for one in judged:
        yield f"{one['owner']}: {one['marks_met']:.1%} of the marks met, p = {one['p']:.3g}"


def verify_suspect(
    key_file: Path,
    suspect: str,
    data: str,
    *,
    alpha: float,
    budget: int,
    null_sets: int = 100,
    commitment: Path | None = None,
    picture: Path | None = None,
    overrides: Sequence[str] = (),
    mirror: str | None = None,
    as_json: bool = False,
) -> Iterator[str]:
    """The verdict on a suspect, in lines or as JSON."""
    level, key = Level(alpha=alpha, budget=budget), read_key(key_file)
    if null_sets < 0:
        raise ConfigError(f"--null-sets must be at least 0, found {null_sets}.")
    if picture is not None:
        check_file("--picture", picture)
    if commitment is not None:
        check_commitment(key, read_object(commitment, "a commitment"))
    graph = read_graph(data, mirror)
    key.subgraphs(graph)  # a key for other data is told before the suspect is asked
    if graph.classes != key.classes:
        raise ConfigError(f"The key is for {key.classes} classes, but the data have {graph.classes}.")
    with one_thread():
        verdict = verify(key, graph, suspect_of(suspect, key, overrides), level=level, null_sets=null_sets)
    if picture is not None:
        draw_nulls(verdict, picture)
    if as_json:
        yield _json(verdict.as_json())
    else:
        yield from verdict_lines(verdict)


def suspect_of(text: str, key: Key, overrides: Sequence[str] = ()) -> Suspect:
    """The suspect named on the command line."""
    if is_address(text):
        return http_suspect(text)
    if is_callable(text):
        return callable_suspect(text)
    raw = raw_tables(overrides)
    return file_suspect(Path(text), key.feature_count, key.classes, raw["model"] or None)


def verdict_lines(verdict: Verdict) -> Iterator[str]:
    """The verdict for people."""
    match, level, index = verdict.match, verdict.level, verdict.index
    yield f"suspect   {verdict.suspect}"
    yield f"owner     {verdict.key.owner}, {verdict.key.date}"
    yield (
        f"key       {match.matches} of {match.positions} signs match; keys drawn anew: "
        f"{match.mean:.1f} +- {match.deviation:.1f}; z = {match.z:.2f}, p = {match.p:.3g} (exact)"
    )
    if index is not None:
        yield (
            f"MI        {index.index}; null of {len(index.null)} tuples: "
            f"{index.mean:.1f} +- {index.deviation:.1f}; z = {index.z:.2f}, p = {index.p:.3g} (normal), "
            f"rank p = {index.rank_p:.3g}; decides nothing"
        )
    yield f"level     alpha {level.alpha:g} / {level.budget} keys: p must be at most {level.threshold:.3g}"
    yield f"verdict   {'MARKED: the suspect carries the mark' if verdict.marked else 'NOT PROVEN'}"


def audit(
    data: str,
    parts: Sequence[str],
    overrides: Sequence[str],
    *,
    models: int,
    keys: int,
    sets: int,
    size: int | None,
    effort: Effort,
    seed: int = 0,
    mirror: str | None = None,
    as_json: bool = False,
) -> Iterator[str]:
    """Lines, or JSON, of the parts of an audit."""
    for part in parts:
        if part not in PARTS:
            raise ConfigError(f"--part {part}: is unknown{nearest(part, PARTS)}")
    table, options = tables(overrides)
    plan = Audit(
        graph=read_graph(data, mirror),
        table=table,
        options=options,
        sets=sets,
        size=size,
        models=models,
        keys=keys,
        seed=seed,
        effort=effort,
    )
    with one_thread():
        found = plan.run(parts or PARTS)
    if as_json:
        yield _json(found)
    else:
        yield from audit_lines(found)


def serve(
    path: Path, overrides: Sequence[str], *, host: str, port: int, tell: Callable[[str], object]
) -> None:
    """Answer for a stored model until interrupted."""
    check_count("--port", port, 0, 65535)
    _, metadata = read_tensors(path)
    features, classes = stored_spec(path, metadata)
    suspect = file_suspect(path, features, classes, raw_tables(overrides)["model"] or None)
    try:
        answering = server(suspect.query, port, host)
    except OSError as error:
        raise ConfigError(f"--host {host} --port {port}: cannot listen there: {error.strerror}.") from None
    with answering:
        tell(f"http://{host}:{answering.server_address[1]}/ answers for {path}")
        answering.serve_forever()


def raw_tables(overrides: Sequence[str]) -> dict[str, Json]:
    """The tables `model` and `embedding` that `--set` writes.

    Raises:
        ConfigError: another table.
    """
    raw: Json = {}
    for text in overrides:
        apply_override(raw, text)
    for name, value in raw.items():
        if name not in ("model", "embedding"):
            raise ConfigError(f"unknown table {name!r}{nearest(name, ('model', 'embedding'))}")
        if isinstance(value, str):
            raw[name] = {"kind": value}
        elif not isinstance(value, dict):
            raise ConfigError(f"--set {name}: wanted keys of the table, such as {name}.KEY=VALUE.")
    return {"model": raw.get("model", {}), "embedding": raw.get("embedding", {})}


def tables(overrides: Sequence[str]) -> tuple[Json, Embedding]:
    """(the `[model]` table, how to embed); GraphSAGE with 128 units and 3 layers unless told otherwise."""
    raw = raw_tables(overrides)
    table = {"kind": "sage", **raw["model"]}
    if table["kind"] in ("sage", "gcn", "sgc", "gin"):
        table = {"hidden": 128, "layers": 3, "dropout": 0.1} | table
    options = {**raw["embedding"], "kind": "fedsim.watermark.embedding:Embedding"}
    embedding: Embedding = build("embeddings", options, "embedding")
    return table, embedding


def _json(value: Any) -> str:
    return json.dumps(finite(value), allow_nan=False, ensure_ascii=False, indent=2)
