"""Engines that read text as if every token were a letter.

Knows: how the reference generator watches for stop strings.
Does not know: tokenizers, or how it is caught.
"""

from __future__ import annotations

from typing import Any

from areal_proof.mutants.rows import after, breaking, row
from areal_reference.infer.engine import ReferenceInferenceEngine
from areal_serving.stopping import StopStrings


class _TokenByToken(StopStrings):
    def _decode(self, token_ids: list[int]) -> str:
        return "".join(super(_TokenByToken, self)._decode([token]) for token in token_ids)


def _watching(ticket: Any, kind: type[StopStrings]) -> Any:
    if ticket.stop_strings is not None:
        ticket.stop_strings.__class__ = kind
    return ticket


ROWS = breaking("infer/reference", ReferenceInferenceEngine).rows(
    row("SpellsTokensAlone", "Looks for stop strings in the text of tokens decoded one by one.",
        "infer.sampling.stop_spelled.byte_level", "infer.sampling.stop_spelled.pieces",
        "infer.sampling.stop_spelled.old_files",
        ticket_of=after(lambda result: _watching(result, _TokenByToken))),
)  # fmt: skip
