"""Who may see the page: whoever has the token, from this machine, in a page of ours.

Knows: the token, the cookie it becomes, and the headers of every answer.
Does not know: pages.
"""

from __future__ import annotations

import hmac
from urllib.parse import urlencode

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HOSTS = ("127.0.0.1", "localhost")
"""Names under which a browser on this machine finds us; another one is a page elsewhere whose name was rebound."""
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_REFUSED = "This page needs the whole address that `areal view` printed, with its token.\n"


class Access:
    """Everything the application answers goes through here."""

    def __init__(self, app: ASGIApp, *, token: str, cookie: str) -> None:
        self._app, self._token, self._cookie = app, token, cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse, take the token out of the address, or pass on."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            raise RuntimeError(f"a connection of type {scope['type']} was asked for")  # uvicorn closes it

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        answer = self._refusal(Request(scope))
        await (self._app if answer is None else answer)(scope, receive, guarded)

    def _refusal(self, request: Request) -> Response | None:
        """Return what is answered instead of the page; None for the page."""
        if request.url.hostname not in HOSTS:
            return PlainTextResponse("This is served under 127.0.0.1 only.\n", status_code=421)
        if request.method not in ("GET", "HEAD"):
            return PlainTextResponse("There is nothing to change here.\n", status_code=405)
        given = request.query_params.get("token")
        if given is None:
            known = self._same(request.cookies.get(self._cookie, ""))
            return None if known else PlainTextResponse(_REFUSED, status_code=401)
        if not self._same(given):
            return PlainTextResponse(_REFUSED, status_code=401)
        rest = urlencode([(name, value) for name, value in request.query_params.multi_items() if name != "token"])
        path = "/" + request.url.path.lstrip("/")  # never //host
        answer = RedirectResponse(f"{path}?{rest}" if rest else path, status_code=303)
        answer.set_cookie(self._cookie, self._token, httponly=True, samesite="strict", path="/")
        return answer

    def _same(self, given: str) -> bool:
        """Compare in a time that tells nothing."""
        return hmac.compare_digest(given.encode("utf-8", "replace"), self._token.encode())
