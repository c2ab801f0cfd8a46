"""Which columns of a hub data set are image, label, features and ids."""

import json
from dataclasses import dataclass
from typing import Any

import pyarrow as arrow

from fedsim.errors import DataError

_LABELS = ("label", "labels", "target", "class", "y")


@dataclass(frozen=True)
class Columns:
    """The columns in use.

    Attributes:
        label: always.
        image: or None for a tabular set.
        features: empty for images.
        id_column: or None.
        declared: the hub's own description of each column, such as class names; may be empty.
    """

    label: str
    image: str | None
    features: tuple[str, ...]
    id_column: str | None
    declared: dict[str, Any]

    @property
    def used(self) -> tuple[str, ...]:
        """All columns that must be present in every split (ids only in the first)."""
        return (self.label, *((self.image,) if self.image else ()), *self.features)

    def names(self, column: str) -> list[str] | None:
        """The class names that the hub declares for a column, or None."""
        feature = self.declared.get(column)
        if isinstance(feature, dict) and feature.get("_type") == "ClassLabel":
            return feature.get("names")
        return None


def chosen_columns(
    table: arrow.Table,
    image: str | None,
    label: str | None,
    features: tuple[str, ...] | None,
    drop: tuple[str, ...],
    id_column: str | None,
) -> Columns:
    """Declared columns as declared, the others as detected.

    Raises:
        DataError: a declared column does not exist, or none or several fit.
    """
    given = (image, label, id_column, *(features or ()), *drop)
    for name in given:
        if name is not None and name not in table.column_names:
            raise DataError(f"There is no column {name!r}; there are {', '.join(table.column_names)}.")
    text = (table.schema.metadata or {}).get(b"huggingface", b"{}")
    declared = json.loads(text).get("info", {}).get("features", {})
    label = label or _label(table, declared)
    images = [field.name for field in table.schema if _is_image(field, declared) and field.name not in drop]
    if image is None and features is None and images:
        if len(images) > 1:
            raise DataError(f"There are several image columns ({', '.join(images)}): set data.image.")
        image = images[0]
    if image is not None:
        return Columns(label, image, (), id_column, declared)
    rest = [name for name in table.column_names if name not in (label, id_column, *drop)]
    features = features if features is not None else tuple(rest)
    if not features:
        raise DataError(f"No feature columns are left beside the label {label!r}: set data.features.")
    return Columns(label, None, features, id_column, declared)


def _label(table: arrow.Table, declared: dict[str, Any]) -> str:
    classes = [
        name
        for name, feature in declared.items()
        if isinstance(feature, dict) and feature.get("_type") == "ClassLabel"
    ]
    usual = [name for name in table.column_names if name.lower() in _LABELS]
    candidates = classes if len(classes) == 1 else [name for name in usual if not classes or name in classes]
    if len(candidates) == 1:
        return candidates[0]
    found = candidates or classes or table.column_names
    raise DataError(f"The label column is not clear; set data.label to one of {', '.join(found)}.")


def _is_image(field: arrow.Field, declared: dict[str, Any]) -> bool:
    feature = declared.get(field.name)
    if isinstance(feature, dict) and feature.get("_type") == "Image":
        return True
    kind = field.type
    return bool(arrow.types.is_struct(kind) and kind.get_field_index("bytes") >= 0)
