"""The tokenizer of a model folder.

Knows: how transformers loads one from files alone.
Does not know: what is written with it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from areal_core.contract.errors import ModelError


def load_tokenizer(path: Path) -> Any:
    """Return the tokenizer of a model folder. Any: transformers is not typed here.

    Raises:
        ModelError: the folder has no tokenizer transformers can build from its files alone.
    """
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(
            f"the tokenizer of {path} cannot be loaded",
            why=str(error).splitlines()[0] if str(error) else repr(error),
            fix="save it beside the weights: tokenizer.save_pretrained(DIR)",
        ) from error
