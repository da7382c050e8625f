"""The application: pages, data, files of its own, and what is said when something is not there.

Knows: which parts there are.
Does not know: what they show.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from areal_core.contract.errors import ArealError
from areal_view.access import Access
from areal_view.data import Data
from areal_view.pages import Pages
from areal_view.runs import Runs
from areal_view.site import Site, answer


def make_app(root: Path, *, token: str, cookie: str = "areal_view") -> ASGIApp:
    """Return the application for the runs below a folder, or for the one run the folder is."""
    site = Site(Runs(root))

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        site.prepare()
        yield

    # Off even where the environment names a collector: nothing of a page leaves this machine.
    app = FastAPI(
        openapi_url=None, lifespan=lifespan, telemetry={"auto_configure": False, "exclude": lambda scope: True}
    )
    app.include_router(Data(site).router)
    app.include_router(Pages(site).router)

    @app.get("/static/{name}")
    def static(name: str) -> Response:
        body, kind = site.static(name)
        return Response(body, media_type=kind, headers={"Cache-Control": "private, max-age=600"})

    async def refused(request: Request, error: Exception) -> Response:
        return _refused(site, request, error)

    for kind in (ArealError, HTTPException, RequestValidationError, sqlite3.Error, OSError):
        app.add_exception_handler(kind, refused)
    return Access(app, token=token, cookie=cookie)


def _refused(site: Site, request: Request, error: Exception) -> Response:
    """Say what happened in words, as a page or as data."""
    status, what, why = 404, str(error), ""
    if isinstance(error, HTTPException):
        status, what = error.status_code, str(error.detail)
    elif isinstance(error, RequestValidationError):
        status, what = 400, "This address asks for something that is no number."
    elif isinstance(error, sqlite3.Error):
        what, why = "The store of episodes cannot be read.", str(error)
    if request.url.path.startswith("/data/"):
        response = answer({"error": what})
        response.status_code = status
        return response
    return site.page("error.html", status_code=status, code=status, what=what, why=why)
