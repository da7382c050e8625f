"""Images as data sets hold them become PNG or JPEG files that every engine reads alike."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from areal_core.contract.errors import DatasetError
from areal_torch.image_files import decoded, image_file
from areal_torch.image_support import ImageReader

RED = (200, 10, 30)


def file_of(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    """Return the bytes of a file. Any: options of pillow's."""
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def plain(width: int = 4, height: int = 2) -> Image.Image:
    return Image.new("RGB", (width, height), RED)


def taken(value: object, folder: Path = Path()) -> bytes:
    return image_file(value, folder, "image 0 in the row of train/0/3")


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_a_plain_file_stays_as_it_is_however_the_row_holds_it(tmp_path: Path, kind: str) -> None:
    """Bytes, a path, a path within the folder, and what the library `datasets` stores: the very same bytes."""
    file = file_of(plain(), kind)
    (tmp_path / "red").write_bytes(file)
    held: list[object] = [
        file,
        bytearray(file),
        tmp_path / "red",
        "red",
        {"bytes": file, "path": None},
        {"bytes": file, "path": "nowhere"},
        {"bytes": None, "path": "red"},
        {"path": str(tmp_path / "red")},
    ]

    assert [taken(value, tmp_path) for value in held] == [file] * len(held)


def test_a_picture_in_memory_becomes_a_png_of_its_pixels() -> None:
    """As data sets with decoded images hold it; grey ones too."""
    for mode in ("RGB", "L", "P", "CMYK"):
        picture = plain().convert(mode)
        made = Image.open(io.BytesIO(taken(picture)))
        assert (made.format, made.mode, made.tobytes()) == ("PNG", "RGB", picture.convert("RGB").tobytes()), mode


def test_other_kinds_of_file_become_png() -> None:
    """Engines take PNG and JPEG."""
    for kind in ("GIF", "BMP", "WEBP"):
        made = Image.open(io.BytesIO(taken(file_of(plain(), kind, **({"lossless": True} if kind == "WEBP" else {})))))
        assert (made.format, made.getpixel((0, 0))) == ("PNG", RED), kind


def test_a_turned_image_is_turned_for_good() -> None:
    """Some engines read the tag, others do not; after that there is nothing to read differently."""
    exif = Image.Exif()
    exif[0x0112] = 6
    file = file_of(plain(4, 2), "JPEG", exif=exif)

    made = Image.open(io.BytesIO(taken(file)))
    assert (made.size, made.getexif().get(0x0112, 1)) == ((2, 4), 1)
    assert decoded(file).size == (2, 4)


def test_transparency_is_laid_over_white() -> None:
    """Engines do so or cut it off; a pixel nobody sees must not become a colour."""
    clear = Image.new("RGBA", (2, 2), (0, 0, 0, 0))
    clear.putpixel((0, 0), (*RED, 255))
    palette = Image.new("P", (1, 1), 0)
    palette.putpalette([9, 9, 9])

    for value in (clear, file_of(clear)):
        made = Image.open(io.BytesIO(taken(value)))
        assert (made.mode, made.getpixel((0, 0)), made.getpixel((1, 1))) == ("RGB", RED, (255, 255, 255))
    assert decoded(file_of(clear)).getpixel((1, 1)) == (255, 255, 255)
    assert decoded(file_of(palette, transparency=0)).getpixel((0, 0)) == (255, 255, 255)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b"no image", r"cannot be read(.|\n)*UnidentifiedImageError"),
        ("nowhere.png", r"cannot be read(.|\n)*nowhere.png(.|\n)*image_folder"),
        (5, r"is of type int(.|\n)*a PIL image"),
        ({"name": "x"}, "is of type NoneType"),
        (file_of(plain(64, 64), "GIF")[:60], "cannot be read"),
    ],
)
def test_what_is_no_image_is_named_with_its_row(value: object, message: str) -> None:
    """The error says which image of which row, and what is wrong with it."""
    with pytest.raises(DatasetError, match=rf"image 0 in the row of train/0/3 {message}"):
        taken(value)


def test_a_torn_file_is_no_image() -> None:
    """Its beginning alone is one."""
    noise = Image.effect_noise((40, 40), 60)
    with pytest.raises(ValueError, match="truncated"):
        decoded(file_of(noise)[:-200])


def test_rows_that_come_and_go_are_never_taken_for_one_another() -> None:
    """Also where a row lies in memory where another lay."""
    reader = ImageReader(limit=4)
    files = [file_of(plain(width)) for width in range(1, 9)]

    seen = [reader.read([file], Path(), "a row") for file in files for _ in range(3)]

    assert seen == [(file,) for file in files for _ in range(3)]


def test_a_row_that_several_read_is_read_once(tmp_path: Path) -> None:
    """Members of a group share it: its file may even be gone."""
    reader, row = ImageReader(limit=4), ["red.png"]
    (tmp_path / "red.png").write_bytes(file_of(plain()))

    first = reader.read(row, tmp_path, "a row")
    (tmp_path / "red.png").unlink()

    assert reader.read(row, tmp_path, "a row") == first
