"""What goes wrong, in the words of the API that was asked.

Knows: status codes, their names, the two shapes of an error.
Does not know: what went wrong, or why.
"""

from __future__ import annotations

from attrs import frozen

from areal_agents.wire.body import Json, event

_OPENAI = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error", 503: "server_error"}
_ANTHROPIC = {
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "api_error",
}
_OTHER = "invalid_request_error"


@frozen(kw_only=True)
class Problem:
    """Why a request is not answered.

    Example: Problem(status=400, message="n: Input should be less than or equal to 16")
    """

    status: int
    message: str
    code: str | None = None
    """OpenAI's, for those that clients look at."""

    def body(self, path: str) -> Json:
        """Return it as those read it who asked a path."""
        if path.startswith("/v1/messages"):
            told = {"type": _ANTHROPIC.get(self.status, _OTHER), "message": self.message}
            return {"type": "error", "error": told, "request_id": None}
        kind = _OPENAI.get(self.status, _OTHER)
        return {"error": {"message": self.message, "type": kind, "param": None, "code": self.code}}

    def event(self, path: str) -> str:
        """Return it as the end of a stream that was begun."""
        if path.startswith("/v1/messages"):
            return event(self.body(path), "error")
        if path.startswith("/v1/responses"):
            told = {"type": "error", "code": self.code, "message": self.message, "param": None, "sequence_number": 0}
            return event(told, "error")
        return event(self.body(path))
