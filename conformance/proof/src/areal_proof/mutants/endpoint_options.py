"""Endpoints that take options and do not obey them, or go wrong only where one is set.

Knows: one defect each.
Does not know: the checks beyond their names.
"""

from __future__ import annotations

from typing import Any

import attrs

from areal_agents.endpoint import Endpoint
from areal_agents.endpoint_config import EndpointConfig
from areal_core.contract.errors import CapabilityError
from areal_proof.mutants.rows import breaking, row, then

breaks = breaking("endpoint/http", Endpoint)


class _ReadsNothing:
    """A session whose parser fails as one that is not there. Any: as the session's own."""

    def __init__(self, session: Any) -> None:
        self._session = session

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    async def parse_tool_calls(self, text: str, tools: Any) -> Any:
        try:
            return await self._session.parse_tool_calls(text, tools)
        except Exception as error:
            raise CapabilityError("no parser") from error


ROWS = breaks.rows(
    row("SystemUnsaid", "Takes a system message of the run, and says none.", "endpoint.options.shown",
        __init__=lambda original, config: original(attrs.evolve(config or EndpointConfig(), system=""))),
    row("EachTurnAnewBehindASystem", "Begins every turn anew, where a system message of the run is set.",
        "endpoint.options.checks", _bind=then(lambda self, result: setattr(result, "bridge", lambda *_, **__: None)
            if self._config.system else None)),
    row("ParserNeverFails", "Takes a failure of the fleet while calls are read for an engine that has no parser.",
        "endpoint.errors.reading",
        open=lambda original, session, limits=None: original(_ReadsNothing(session), limits)),
)  # fmt: skip
