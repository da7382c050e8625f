"""Import the model that is served, and not the two hundred others SGLang knows: most of what a start costs on a CPU.

Knows: SGLang's folder of models, one file or package each, and the variable that names those to pass over.
Does not know: what is in a model.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

VARIABLE = "SGLANG_DISABLED_MODEL_ARCHS"


def others(model_path: str) -> str:
    """Return the modules of other models, separated by commas; "" if no module says it has this one."""
    config = Path(model_path, "config.json")
    names = json.loads(config.read_text()).get("architectures") or [] if config.is_file() else []
    spec = find_spec("sglang.srt.models")
    folders = spec.submodule_search_locations if spec else None
    files = sorted(file for folder in folders or () for file in Path(folder).glob("*.py"))
    has = {file.stem: any(f"class {name}(" in file.read_text(errors="replace") for name in names) for file in files}
    return ",".join(stem for stem, it_is in has.items() if not it_is) if any(has.values()) else ""
