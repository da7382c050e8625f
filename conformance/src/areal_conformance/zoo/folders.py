"""A drawn model as a folder: config.json as it was drawn, random weights in one file or several, what else lies there.

Knows: files of a model folder, and weights by which every part of a configuration shows.
Does not know: families, or who loads it.
"""

from __future__ import annotations

import functools
import json
import tempfile
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers import logging as transformers_logging

from areal_conformance.benches.models import one_thread, quiet, store
from areal_conformance.zoo.architectures import config_of
from areal_conformance.zoo.traits import Drawn
from areal_torch.testing.models import fill
from areal_torch.tokenizers import SPECIAL_TOKENS, character_tokenizer

GENERATION = {
    "do_sample": True,
    "temperature": 0.3,
    "top_k": 2,
    "top_p": 0.4,
    "repetition_penalty": 1.7,
    "max_new_tokens": 3,
    "pad_token_id": 0,
    "eos_token_id": 1,
}
"""What a maker recommends for chats. Nothing of it but the ends may reach a run."""
_SHARD_BYTES = "16KB"


def folder_of(drawn: Drawn) -> Path:
    """Return the folder of a drawn model, written once per process; nobody may change it."""
    return _written(drawn.architecture, tuple(drawn.values.items()), drawn.seed, drawn.head_dim)


@functools.cache
def _written(architecture: str, values: tuple[tuple[str, str], ...], seed: int, head_dim: int) -> Path:
    path = Path(tempfile.mkdtemp(prefix="zoo-", dir=store()))
    return write(path / architecture, Drawn(architecture, dict(values), seed, head_dim))


def write(path: Path, drawn: Drawn) -> Path:
    """Write a drawn model to `path`, the same bytes for the same model; return `path`."""
    one_thread()
    quiet()
    path.mkdir(parents=True)
    config = config_of(drawn)
    (path / "config.json").write_text(json.dumps(config))
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()  # what is odd in a drawn configuration is meant
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(drawn.seed)
            model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(path), dtype=torch.float32)
        fill(model, int(config.get("hidden_size") or config["n_embd"]), drawn.seed, spread=0.25)
        model.save_pretrained(path, max_shard_size=_SHARD_BYTES if drawn["files"] == "several" else "1GB")
    finally:
        transformers_logging.set_verbosity(verbosity)
    (path / "config.json").write_text(json.dumps({**config, "dtype": "float32"}, indent=2))
    if drawn["generation"] == "sampling":
        (path / "generation_config.json").write_text(json.dumps(GENERATION))
    else:
        (path / "generation_config.json").unlink(missing_ok=True)
    letters = "".join(map(chr, range(0x61, 0x61 + int(config["vocab_size"]) - len(SPECIAL_TOKENS))))
    character_tokenizer(letters).save_pretrained(path)
    return path
