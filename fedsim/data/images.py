"""Encoded images to uint8 arrays."""

import io
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from fedsim.errors import DataError

Pixels = npt.NDArray[np.uint8]
_GREY = ("1", "L")
_CHUNK = 256  # images that a thread decodes in one go


def decoded(columns: list[Any], size: int | None, name: str) -> list[Pixels]:
    """[n, c, h, w] per column of encoded images; c = 1 if all images are grey, else 3.

    Args:
        columns: arrow columns of structs with `bytes` (or a `path` that exists), or of bytes.
        size: resize to size x size pixels; None: all images must have the size of the first.
        name: of the column, for messages.

    Raises:
        DataError: an image is missing, damaged, or of another size.
    """
    encoded = [column.combine_chunks().to_pylist() for column in columns]
    everything = [item for part in encoded for item in part]
    if not everything:
        raise DataError(f"The image column {name!r} is empty.")
    grey = all(_opened(item, name, 0).mode in _GREY for item in everything)
    first = _opened(everything[0], name, 0)
    width, height = (size, size) if size else first.size
    pixels = np.empty((len(everything), 1 if grey else 3, height, width), dtype=np.uint8)

    def decode(start: int) -> None:
        for number in range(start, min(start + _CHUNK, len(everything))):
            pixels[number] = _array(everything[number], name, number, grey, (width, height), size is not None)

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:  # Pillow decodes outside the interpreter's lock
        list(pool.map(decode, range(0, len(everything), _CHUNK)))
    return np.split(pixels, np.cumsum([len(part) for part in encoded])[:-1])


def _opened(item: Any, name: str, number: int) -> Image.Image:
    content = item.get("bytes") if isinstance(item, dict) else item
    path = item.get("path") if isinstance(item, dict) else None
    try:
        if content is not None:
            return Image.open(io.BytesIO(content))
        if path is not None and os.path.isfile(path):
            return Image.open(path)
    except (UnidentifiedImageError, OSError) as error:
        raise DataError(f"Image {number} of column {name!r} cannot be decoded: {error}") from error
    raise DataError(f"Image {number} of column {name!r} holds no bytes.")


def _array(item: Any, name: str, number: int, grey: bool, size: tuple[int, int], resize: bool) -> Pixels:
    """[c, h, w]."""
    with _opened(item, name, number) as image:
        if not resize and image.size != size:
            raise DataError(
                f"Image {number} of column {name!r} has {image.size[0]} x {image.size[1]} pixels, the first "
                f"{size[0]} x {size[1]}: set data.size to resize all."
            )
        try:
            picture = image.convert("L" if grey else "RGB")
        except OSError as error:
            raise DataError(f"Image {number} of column {name!r} cannot be decoded: {error}") from error
    if resize and picture.size != size:
        picture = picture.resize(size, Image.Resampling.BILINEAR)
    array = np.asarray(picture)
    return array[None] if grey else array.transpose(2, 0, 1)
