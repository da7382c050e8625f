"""Model folders as a plan sees them: config.json, the header of the weights, a tokenizer file. No torch."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

MakeFolder = Callable[..., Path]


@pytest.fixture
def make_folder(tmp_path: Path) -> MakeFolder:
    """Return a function that writes a folder of one 4x8 float32 tensor; keywords replace entries of config.json."""

    def make(name: str = "model", *, tokenizer: bool = True, **config: Any) -> Path:  # Any: what json holds
        folder = tmp_path / name
        folder.mkdir()
        whole = {"architectures": ["Qwen3ForCausalLM"], "max_position_embeddings": 256, "vocab_size": 31, **config}
        (folder / "config.json").write_text(json.dumps(whole))
        header = json.dumps({"embed": {"dtype": "F32", "shape": [4, 8], "data_offsets": [0, 128]}}).encode()
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(128))
        if tokenizer:
            (folder / "tokenizer.json").write_text("{}")
        return folder

    return make
