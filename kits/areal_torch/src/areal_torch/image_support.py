"""What areal-core asks of this kit for policies that take images: rows read, trajectories prepared.

Knows: which of this kit's parts answer, and that members of a group share their row.
Does not know: files (`image_files`) or patches (`prepare_images`).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from areal_torch.image_files import image_file
from areal_torch.single_flight_cache import SingleFlightCache

if TYPE_CHECKING:
    from areal_torch.prepare_images import ImagePreparer


class ImageReader:
    """Satisfies `areal_core.plugins.extensions.ImageReader`."""

    def __init__(self, limit: int) -> None:
        """Keep the files of at most `limit` rows."""
        self._rows: SingleFlightCache[tuple[object, tuple[bytes, ...]]] = SingleFlightCache(limit)

    def read(self, value: object, folder: Path, where: str) -> tuple[bytes, ...]:
        """Return the images of one row as PNG or JPEG files; see `image_files.image_file` for what it raises."""
        several = value if isinstance(value, list | tuple) else [value]
        begin = folder.expanduser()

        def made() -> tuple[object, tuple[bytes, ...]]:
            return value, tuple(image_file(one, begin, f"image {n} {where}") for n, one in enumerate(several))

        # Members share the row. What is kept holds the column, so nothing else has its id meanwhile.
        _, files = self._rows.get(id(value), made)
        return files


class Images:
    """Satisfies `areal_core.plugins.extensions.ImageSupport`."""

    def reader(self, limit: int) -> ImageReader:
        """Return a reader that keeps the images of the last `limit` rows."""
        return ImageReader(limit)

    def preparer(self, folder: Path, *, max_tokens: int) -> ImagePreparer | None:
        """Return the preparer of a model folder, None if the model takes no images."""
        from areal_torch.prepare_images import ImagePreparer

        return ImagePreparer.of(folder, max_tokens=max_tokens)


IMAGES = Images()
