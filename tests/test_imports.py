"""The import graph is a DAG with the layers that DESIGN section 4 draws, read from the source by `ast`."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("fedsim", "strategies", "clients", "attacks")
SIBLINGS = PACKAGES[1:]
CORE = {"kept_process", "errors", "contracts", "params", "metrics", "rng", "threat", "federation"}
FRAME = {"kept_process", "errors", "toml", "config_tables", "config", "plugins"}


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_of(path): path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))}


def imports(tree: ast.AST, *, everywhere: bool) -> Iterator[str]:
    """Imported modules; without `everywhere` only those that run when the module is imported."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the graph"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        elif everywhere or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from imports(node, everywhere=everywhere)


def found(module: str, *, everywhere: bool = True) -> set[str]:
    return set(imports(ast.parse(FILES[module].read_text(encoding="utf-8")), everywhere=everywhere))


def local(module: str, *, everywhere: bool = True) -> set[str]:
    """Modules of ours that a module imports."""
    names = set()
    for name in found(module, everywhere=everywhere):
        while name and name not in FILES:
            name = name.rpartition(".")[0]
        if name and name != module:
            names.add(name)
    return names


def tops(names: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in names}


@pytest.mark.parametrize("package", SIBLINGS)
def test_siblings_never_import_each_other(package):
    for module in FILES:
        if module.startswith(package):
            assert not tops(local(module)) & (set(SIBLINGS) - {package}) - {"clients"}, module


def test_strategies_and_attacks_do_not_import_clients():
    for module in FILES:
        if module.startswith(("strategies", "attacks")):
            assert "clients" not in tops(local(module)), module


def test_fedsim_names_no_concrete_plugin():
    for module in FILES:
        if module.startswith("fedsim"):
            assert not tops(local(module)) & set(SIBLINGS), module


def test_flwr_is_imported_in_one_folder():
    for module in FILES:
        if not module.startswith("fedsim.flower"):
            assert "flwr" not in tops(found(module)), module


def test_ray_is_imported_in_one_folder_and_lazily():
    for module in FILES:
        if not module.startswith("fedsim.engine"):
            assert "ray" not in tops(found(module)), module
        assert "ray" not in tops(found(module, everywhere=False)), module


def test_the_core_stands_on_itself():
    for name in CORE:
        for imported in local(f"fedsim.{name}"):
            assert imported.split(".")[1] in CORE, (name, imported)


def test_the_frame_of_a_file_stands_on_itself():
    for name in FRAME:
        for imported in local(f"fedsim.{name}"):
            assert imported.removeprefix("fedsim.") in FRAME, (name, imported)


@pytest.mark.parametrize("folder", ["data", "training", "engine"])
def test_folders_below_the_runner_stand_on_the_core(folder):
    allowed = CORE | {folder} | ({"engine"} if folder == "training" else set())
    for module in FILES:
        if module.startswith(f"fedsim.{folder}."):
            for imported in local(module):
                assert imported.split(".")[1] in allowed, (module, imported)


def test_training_knows_only_the_engine_s_contract():
    for module in FILES:
        if module.startswith("fedsim.training"):
            assert {name for name in local(module) if name.startswith("fedsim.engine.")} <= {
                "fedsim.engine.protocols"
            }, module


@pytest.mark.parametrize("package", SIBLINGS)
def test_plugins_stand_on_core_data_and_training(package):
    for module in FILES:
        if module.startswith(package):
            for imported in local(module):
                layer = imported.split(".")[1] if imported.startswith("fedsim.") else None
                assert layer is None or layer in CORE | {"data", "training", "watermark"}, (module, imported)


def test_flower_is_imported_lazily_from_outside():
    for module in FILES:
        if not module.startswith("fedsim.flower"):
            for imported in local(module, everywhere=False):
                assert not imported.startswith("fedsim.flower"), (module, imported)


def test_no_cycles():
    graph = {module: local(module, everywhere=False) for module in FILES}
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join((*path[path.index(module) :], module))
        if module not in done:
            for imported in sorted(graph[module]):
                visit(imported, (*path, module))
            done.add(module)

    for module in graph:
        visit(module, ())


def test_the_command_starts_without_heavy_libraries():
    heavy = {"torch", "flwr", "ray", "numpy", "scipy", "matplotlib", "pydantic", "sklearn"}
    seen, queue = set(), ["fedsim.cli"]
    while queue:
        module = queue.pop()
        if module not in seen:
            seen.add(module)
            assert not tops(found(module, everywhere=False)) & heavy, module
            queue.extend(local(module, everywhere=False))
