"""Where tensors lie in a segment."""

from __future__ import annotations

import mmap
from pathlib import Path

from areal_core.contract.weights import TensorSpec, WeightManifest
from areal_local.transports.layout import SegmentLayout, read_layout


def test_a_tensor_beyond_four_gibibytes_lies_where_it_is_said(tmp_path: Path) -> None:
    """No offset or size is cut to 32 bits. The file is as good as empty: only its first and last pages are written."""
    large = TensorSpec(name="large", shape=(2, (1 << 31) + 5), dtype="uint8")
    last = TensorSpec(name="last", shape=(3,), dtype="float32")
    layout = SegmentLayout.of(WeightManifest(version=7, tensors=(large, last)))
    path = tmp_path / "segment"
    with path.open("w+b") as file:
        file.truncate(layout.num_bytes)
        with mmap.mmap(file.fileno(), 0) as mapped:
            layout.write_header(mapped, ticket=3, readable=True)
            layout.view(mapped, last).fill_(0.5)
            layout.view(mapped, large)[1, -1] = 9
            found = read_layout(mapped, 7, 3)
            assert layout.view(mapped, large).shape == (2, (1 << 31) + 5)

    assert found == layout
    assert layout.offsets["last"] > 1 << 32
    with path.open("rb") as file:
        file.seek(layout.offsets["large"] + 2 * ((1 << 31) + 5) - 1)
        assert file.read(1) == b"\x09"
        file.seek(layout.offsets["last"])
        assert file.read() == b"\x00\x00\x00\x3f" * 3
    assert path.stat().st_blocks * 512 < 1 << 20
