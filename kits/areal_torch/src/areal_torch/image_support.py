"""What areal-core asks of this kit for policies that take images: plans checked, rows read, trajectories prepared.

Knows: which of this kit's parts answer, and that members of a group share their row.
Does not know: files (`image_files`) or patches (`prepare_images`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from areal_core.plugins.extensions import ImageModel
from areal_core.plugins.registry import Registry
from areal_torch.image_files import image_file
from areal_torch.image_parts import Message, with_image_parts
from areal_torch.image_plan import check_processor, check_role
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

    def check_role(
        self, name: str, role: str, backend: str, model: ImageModel, registry: Registry, device: str
    ) -> None:
        """Refuse a backend that cannot take the images a model takes; see `image_plan.check_role`."""
        check_role(name, role, backend, model, registry, device)

    def check_processor(self, model: ImageModel) -> None:
        """Refuse a model whose images could not be prepared; see `image_plan.check_processor`."""
        check_processor(model)

    def parts(self, messages: Sequence[Message], count: int, marker: str) -> list[Message]:
        """Return a conversation that says where its images stand; see `image_parts.with_image_parts`."""
        return with_image_parts(messages, count, marker)

    def reader(self, limit: int) -> ImageReader:
        """Return a reader that keeps the images of the last `limit` rows."""
        return ImageReader(limit)

    def preparer(self, folder: Path, *, max_tokens: int) -> ImagePreparer | None:
        """Return the preparer of a model folder, None if the model takes no images."""
        from areal_torch.prepare_images import ImagePreparer

        return ImagePreparer.of(folder, max_tokens=max_tokens)


IMAGES = Images()
