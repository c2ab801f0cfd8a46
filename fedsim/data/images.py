"""Encoded images to uint8 arrays."""

import io
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from fedsim.errors import ConfigError, DataError

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
    first = _opened(everything[0], name, 0)
    shape = (size, size) if size else (first.height, first.width)
    try:
        pixels = _pixels(everything, name, shape, grey=first.mode in _GREY, resize=size is not None)
    except _ColourError:  # the first image was grey, a later one is not
        pixels = _pixels(everything, name, shape, grey=False, resize=size is not None)
    return np.split(pixels, np.cumsum([len(part) for part in encoded])[:-1])


def pooled(pixels: Pixels, side: int) -> Pixels:
    """[n, c, h, w] -> [n, c, h / side, w / side]: means of side x side blocks, halves rounded to even.

    Raises:
        ConfigError: the images cannot be cut into such blocks.
    """
    n, channels, height, width = pixels.shape
    if height % side or width % side:
        raise ConfigError(f"data.pool = {side} must divide the images' height {height} and width {width}.")
    small = np.empty((n, channels, height // side, width // side), dtype=np.uint8)
    for start in range(0, n, _CHUNK):  # the means of all images at once would take eight times their memory
        part = pixels[start : start + _CHUNK]
        blocks = part.reshape(len(part), channels, height // side, side, width // side, side)
        small[start : start + _CHUNK] = np.rint(blocks.mean(axis=(3, 5)))
    return small


class _ColourError(Exception):
    """An image has colours although the first one is grey."""


def _pixels(items: list[Any], name: str, shape: tuple[int, int], *, grey: bool, resize: bool) -> Pixels:
    pixels = np.empty((len(items), 1 if grey else 3, *shape), dtype=np.uint8)

    def decode(start: int) -> None:
        for number in range(start, min(start + _CHUNK, len(items))):
            with _opened(items[number], name, number) as image:
                pixels[number] = _array(image, f"Image {number} of column {name!r}", shape, grey, resize)

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:  # Pillow decodes outside the interpreter's lock
        list(pool.map(decode, range(0, len(items), _CHUNK)))
    return pixels


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


def _array(image: Image.Image, which: str, shape: tuple[int, int], grey: bool, resize: bool) -> Pixels:
    """[c, h, w]."""
    if grey and image.mode not in _GREY:
        raise _ColourError
    if not resize and (image.height, image.width) != shape:
        raise DataError(
            f"{which} has {image.width} x {image.height} pixels, the first {shape[1]} x {shape[0]}: "
            "set data.size to resize all."
        )
    try:
        picture = image.convert("L" if grey else "RGB")
    except (OSError, SyntaxError) as error:  # Pillow's PNG reader raises SyntaxError on damage
        raise DataError(f"{which} cannot be decoded: {error}") from error
    if picture.size != shape[::-1]:
        picture = picture.resize(shape[::-1], Image.Resampling.BILINEAR)
    array = np.asarray(picture)
    return array[None] if grey else array.transpose(2, 0, 1)
