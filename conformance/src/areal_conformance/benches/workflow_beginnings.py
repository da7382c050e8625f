"""A tokenizer that puts a token before every text that is encoded alone, as Llama's do, and whose template writes it.

Knows: where that token comes from.
Does not know: who encodes what.
"""

from __future__ import annotations

import copy
import functools
from typing import Any

from tokenizers.processors import TemplateProcessing

from areal_conformance.benches.workflow import TEMPLATE, drifting_tokenizer

BEGINNING = "<bos>"


@functools.cache
def beginning_tokenizer() -> Any:
    """Return the suite's tokenizer with a beginning. Any: transformers is not typed here."""
    made = copy.deepcopy(drifting_tokenizer())
    made.add_special_tokens({"bos_token": BEGINNING})
    made.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{BEGINNING} $A", special_tokens=[(BEGINNING, made.bos_token_id)]
    )
    made.chat_template = "{{ bos_token }}" + TEMPLATE
    return made
