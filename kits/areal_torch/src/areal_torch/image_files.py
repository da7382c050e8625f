"""Images as data sets hold them, made into the files a request carries: whole PNG or JPEG files that read one way.

Knows: bytes, paths, records of both, PIL images; what engines read differently.
Does not know: models, or how many tokens an image takes (`areal_torch.prepare_images`).
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from areal_core.contract.errors import DatasetError, EngineMissing
from areal_core.plugins.install import pip_install

_AS_THEY_ARE = ("PNG", "JPEG")
_ORIENTATION = 0x0112
"""The EXIF tag that says an image is shown turned."""


def image_file(value: object, folder: Path, where: str) -> bytes:
    """Return one image of a row as a PNG or JPEG file.

    A file that is one already stays as it is, byte for byte. Others become PNG, and so do images that are shown
    turned by a tag or have transparency: engines read those differently. They are turned, and laid over white.

    Args:
        value: bytes of a file, a path, {"bytes": .., "path": ..} as the library `datasets` stores it, or a PIL image.
        folder: where relative paths begin.
        where: names the image in errors.

    Raises:
        DatasetError: of another type, missing, or no image.
        EngineMissing: pillow is not installed.
    """
    library = pillow()
    if isinstance(value, library.Image):
        return _png(_plain(value))
    data = _bytes(value, folder, where)
    try:
        with library.open(io.BytesIO(data)) as image:
            if image.format in _AS_THEY_ARE and not _is_transparent(image) and not _is_turned(image):
                return data
            return _png(_plain(image))
    except (OSError, ValueError, SyntaxError, library.DecompressionBombError) as error:
        raise DatasetError(
            f"{where} cannot be read", why=f"{type(error).__name__}: {error}", fix="give a whole image file"
        ) from error


def decoded(data: bytes) -> Any:
    """Return the pixels of a file: a PIL image of mode RGB, turned as its tag says, laid over white.

    Any: pillow is not typed here.

    Raises:
        ValueError: the bytes are no whole image.
        EngineMissing: pillow is not installed.
    """
    library = pillow()
    try:
        with library.open(io.BytesIO(data)) as image:
            return _plain(image)
    except (OSError, SyntaxError, library.DecompressionBombError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def pillow() -> Any:
    """Return the module PIL.Image. Any: it is not typed here.

    Raises:
        EngineMissing: pillow is not installed.
    """
    try:
        import PIL.Image
    except ImportError as error:
        raise EngineMissing(
            "images need the library pillow", why=str(error), fix=pip_install("areal-torch[images]")
        ) from error
    return PIL.Image


def _bytes(value: object, folder: Path, where: str) -> bytes:
    if isinstance(value, Mapping):
        value = value["bytes"] if value.get("bytes") is not None else value.get("path")
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if not isinstance(value, str | Path):
        raise DatasetError(
            f"{where} is of type {type(value).__name__}",
            why="an image is the bytes of a file, a path, {'bytes': .., 'path': ..}, or a PIL image",
            fix="check the data set",
        )
    path = folder / Path(value).expanduser()
    try:
        return path.read_bytes()
    except OSError as error:
        raise DatasetError(
            f"{where} cannot be read",
            why=str(error),
            fix="correct the path, or name the folder relative paths begin in: image_folder of single_turn",
        ) from error


def _is_transparent(image: Any) -> bool:  # Any: pillow is not typed here
    return image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info


def _is_turned(image: Any) -> bool:  # Any: pillow is not typed here
    return bool(image.getexif().get(_ORIENTATION, 1) != 1)


def _plain(image: Any) -> Any:  # Any: pillow is not typed here
    """Return an RGB image that looks the same over white, loaded."""
    from PIL import ImageOps

    image = ImageOps.exif_transpose(image)
    if not _is_transparent(image):
        return image.convert("RGB")
    clear = image.convert("RGBA")
    flat = pillow().new("RGB", clear.size, (255, 255, 255))
    flat.paste(clear, mask=clear.getchannel("A"))
    return flat


def _png(image: Any) -> bytes:  # Any: pillow is not typed here
    file = io.BytesIO()
    image.save(file, "PNG", compress_level=1)
    return file.getvalue()
