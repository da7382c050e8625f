"""What every page and every answer with data shares.

Knows: templates, how values look as text, how a query is read.
Does not know: a page.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from datetime import datetime
from importlib.resources import files
from urllib.parse import urlencode

import vl_convert
from fastapi import HTTPException, Response
from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from areal_view.runs import Run, Runs
from areal_view.state import RunState, States

MAX_RUNS = 8
"""Runs side by side: as many as there are colours."""
_LARGEST = 1 << 53


class Site:
    """The runs that are looked at, and how they are shown."""

    def __init__(self, runs: Runs) -> None:
        self.runs, self._states = runs, States()
        self._bundle: bytes | None = None
        self._lock = threading.Lock()
        self._templates = Environment(
            loader=PackageLoader("areal_view"),
            autoescape=True,
            undefined=StrictUndefined,
            finalize=_plain,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters |= {"figure": figure, "clock": clock, "ago": ago, "seconds": seconds}
        self._templates.globals |= {"link": link}

    def run(self, run_id: str) -> Run:
        """Return a run of this page.

        Raises:
            HTTPException: there is none.
        """
        try:
            return self.runs.one(run_id)
        except KeyError:
            raise HTTPException(404, "There is no such run here. It may have been moved.") from None

    def state(self, run: Run) -> RunState:
        """Return what is known of a run, up to date."""
        return self._states.of(run)

    def chosen(self, run_ids: Sequence[str]) -> list[Run]:
        """Return the runs with these ids, in this order, `MAX_RUNS` at most; without ids the newest four."""
        known = {run.id: run for run in self.runs.all()}
        if not run_ids:
            return list(known.values())[:4]
        return [known[run_id] for run_id in dict.fromkeys(run_ids) if run_id in known][:MAX_RUNS]

    def page(self, template: str, *, status_code: int = 200, **values: object) -> Response:
        """Return a page."""
        return HTMLResponse(self._templates.get_template(template).render(**values), status_code=status_code)

    def static(self, name: str) -> tuple[bytes, str]:
        """Return one of the page's own files, and its media type.

        Raises:
            HTTPException: it has no such file.
        """
        if name == "vega.js":
            return self._vega(), "text/javascript"
        kinds = {"style.css": "text/css", "app.js": "text/javascript"}
        if name not in kinds:
            raise HTTPException(404, "There is no such file.")
        return files("areal_view").joinpath("static", name).read_bytes(), kinds[name]

    def prepare(self) -> None:
        """Begin with what takes a second or two, so that the first page need not wait for all of it."""
        threading.Thread(target=self._vega, name="charts", daemon=True).start()

    def _vega(self) -> bytes:
        """Return Vega, Vega-Lite and Vega-Embed as one script, made once."""
        with self._lock:
            if self._bundle is None:
                self._bundle = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;").encode()
            return self._bundle


def answer(value: object) -> Response:
    """Return data. What a browser's JSON has no word for is an error of ours."""
    return Response(json.dumps(value, allow_nan=False), media_type="application/json")


def whole(text: str, name: str) -> int | None:
    """Read a number of a query; None where the field was left empty.

    Raises:
        HTTPException: it is none.
    """
    if not text.strip():
        return None
    if not text.strip().isascii() or not text.strip().isdigit() or len(text) > 16 or int(text) > _LARGEST:
        raise HTTPException(400, f"{name} is {text[:40]!r}; it must be a whole number, 0 or above.")
    return int(text)


def printable(text: str) -> str:
    """Return a text that is shown and obeyed by nobody: control and direction characters become visible."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)


def link(path: str, **query: object) -> str:
    """Return an address; what is empty is left out."""
    asked = [(name, value) for name, value in query.items() if value not in (None, "")]
    return f"{path}?{urlencode(asked, doseq=True)}" if asked else path


def figure(value: object) -> str:
    """Return a number as a person reads it."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "–" if value is None else str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def clock(at: float) -> str:
    """Return a time of this machine's clock."""
    try:
        return datetime.fromtimestamp(at).strftime("%H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return "?"


def ago(at: float) -> str:
    """Return how long ago something was."""
    return f"{seconds(max(0.0, time.time() - at))} ago"


def seconds(value: float) -> str:
    """Return a duration."""
    for limit, unit, name in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if value < limit:
            return f"{value / unit:.3g} {name}"
    return f"{value / 86_400:.3g} days"


def _plain(value: object) -> object:
    return value if isinstance(value, Markup | int | float) else printable(str(value))
