"""The app folder that `flwr run` bundles: fedsim's packages, its pyproject.toml, and one experiment.

Flower 1.42 walks the whole folder it is given, virtual environments and results included, before it picks
the .py, .toml, .md, .yaml and .json files that a bundle may hold (10 MB, ten folders deep); so the
repository's packages are laid out anew, and nothing else.
"""

import shlex
import shutil
import tomllib
from collections.abc import Sequence
from pathlib import Path

import tomli_w

import fedsim
from fedsim.errors import ConfigError

_KINDS = (".py", ".toml")


def source_folder() -> Path:
    """The repository that fedsim is imported from.

    Raises:
        ConfigError: fedsim is installed without its pyproject.toml.
    """
    folder = Path(fedsim.__file__).resolve().parents[1]
    if not (folder / "pyproject.toml").is_file():
        raise ConfigError(
            f"fedsim is imported from {folder}, which has no pyproject.toml: a Flower app is its repository. "
            "Run this in a clone, with fedsim installed by `pip install -e .`."
        )
    return folder


def stage(experiment: Path, overrides: Sequence[str], output: Path, target: Path) -> None:
    """Lay out the app in `target`, with its run configuration.

    Args:
        experiment: the TOML file.
        overrides: `key.path=value` changes.
        output: folder of results.
        target: of the app; is made.
    """
    source = source_folder()
    project = tomllib.loads((source / "pyproject.toml").read_text(encoding="utf-8"))
    for package in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]:
        shutil.copytree(source / package, target / package, ignore=_unwanted)
    # The folder's name stays, because an experiment without a name takes it.
    place = Path("experiments", experiment.resolve().parent.name or "experiment", experiment.name)
    (target / place).parent.mkdir(parents=True)
    shutil.copyfile(experiment, target / place)
    project["tool"]["flwr"]["app"]["config"] = {
        "experiment": place.as_posix(),
        "overrides": shlex.join(overrides),
        "output": str(output.resolve()),
    }
    (target / "pyproject.toml").write_text(tomli_w.dumps(project), encoding="utf-8")


def _unwanted(folder: str, names: list[str]) -> list[str]:
    """Names that do not belong into the bundle, for `copytree`."""
    return [
        name
        for name in names
        if name == "__pycache__" or (Path(folder, name).is_file() and Path(name).suffix not in _KINDS)
    ]
