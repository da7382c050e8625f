"""Let a grammar go on where an earlier part of the request left it.

Knows: a request's grammar object, the tokens an earlier part generated.
Does not know: grammars.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang.srt.constrained.base_grammar_backend import InvalidGrammarObject

from areal_sglang.inside.ends import prior_tokens

Original = Callable[..., Any]  # Any: SGLang's own


def found(original: Original, manager: Any, req: Any) -> bool:
    """Hook of GrammarManager.process_req_with_grammar: a grammar that was there already."""
    waits = bool(original(manager, req))
    if not waits:
        _go_on(req)
    return waits


def made(original: Original, manager: Any) -> list[Any]:
    """Hook of GrammarManager.get_ready_grammar_requests: grammars that were waited for."""
    reqs: list[Any] = original(manager)
    for req in reqs:
        _go_on(req)
    return reqs


def _go_on(req: Any) -> None:
    if req.grammar is None or req.to_finish or req.finished() or isinstance(req.grammar, InvalidGrammarObject):
        return
    for token in prior_tokens(req):
        try:
            req.grammar.accept_token(token)
        except ValueError:
            req.set_finish_with_abort("the tokens of earlier parts do not fit the structure asked for")
            return
