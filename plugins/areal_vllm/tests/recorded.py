"""Answers a vLLM 0.32.0 server really gave, and an `Api` that gives them again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from areal_serving.http import Api, ServerAnswer

ANSWERS = Path(__file__).parent / "answers"


def answer(name: str) -> Any:
    """Return a recorded answer. Any: JSON."""
    return json.loads((ANSWERS / f"{name}.json").read_text())


def metrics() -> str:
    """Return a recorded `/metrics`, cut to the lines that are read and some beside them."""
    return (ANSWERS / "metrics.txt").read_text()


class ScriptedApi(Api):
    """Answers every path from a table, and keeps what was asked.

    A list is given out one answer after another; an exception is raised.
    """

    def __init__(self, table: Mapping[str, Any]) -> None:
        super().__init__("http://127.0.0.1:1", "key")
        self._table = dict(table)
        self.asked: list[tuple[str, Any]] = []

    async def get(self, path: str, *, params: Mapping[str, str] | None = None, timeout_s: float = 60.0) -> Any:
        """Answer a GET."""
        return self._answer(path, params)

    async def text(self, path: str, body: Any = None, *, timeout_s: float = 60.0) -> str:
        """Answer with text."""
        return str(self._answer(path, body))

    async def post(
        self,
        path: str,
        body: Any = None,
        *,
        params: Mapping[str, str] | None = None,
        timeout_s: float | None = 60.0,
    ) -> Any:
        """Answer a POST."""
        return self._answer(path, {**(body or {}), **(params or {})})

    def _answer(self, path: str, asked: Any) -> Any:
        self.asked.append((path, asked))
        given = self._table[path]
        if isinstance(given, list):
            given = given.pop(0)
        if isinstance(given, Exception):
            raise given
        return given


def refused(name: str) -> ServerAnswer:
    """Return a recorded answer that is no success, as `Api` raises it."""
    given = answer(name)
    return ServerAnswer("/", given["status"], json.dumps(given["body"]))
