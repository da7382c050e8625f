"""Import the model that is served, and not the two hundred others SGLang knows: most of what a start costs on a CPU.

Knows: SGLang's folder of models, one file each, and the variable that names those to pass over.
Does not know: what is in a model.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

VARIABLE = "SGLANG_DISABLED_MODEL_ARCHS"


def others(model_path: str, folder: Path) -> str:
    """Return the modules of `folder` that are of other models, separated by commas; "" if none has this one."""
    config = Path(model_path, "config.json")
    names = json.loads(config.read_text()).get("architectures") or [] if config.is_file() else []
    has = {file.stem: _defines(file, names) for file in sorted(folder.glob("*.py"))}
    return ",".join(stem for stem, it_does in has.items() if not it_does) if any(has.values()) else ""


def _defines(file: Path, names: Sequence[str]) -> bool:
    text = file.read_text(errors="replace")
    return any(f"class {name}(" in text for name in names)
