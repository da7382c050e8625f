"""Endpoints that take options and do not obey them, or go wrong only where one is set.

Knows: one defect each.
Does not know: the checks beyond their names.
"""

from __future__ import annotations

import attrs

from areal_agents.endpoint import Endpoint
from areal_agents.endpoint_config import EndpointConfig
from areal_proof.mutants.rows import breaking, row, then

breaks = breaking("endpoint/http", Endpoint)

ROWS = breaks.rows(
    row("SystemUnsaid", "Takes a system message of the run, and says none.", "endpoint.options.shown",
        __init__=lambda original, config: original(attrs.evolve(config or EndpointConfig(), system=""))),
    row("EachTurnAnewBehindASystem", "Begins every turn anew, where a system message of the run is set.",
        "endpoint.options.checks", _bind=then(lambda self, result: setattr(result, "bridge", lambda *_, **__: None)
            if self._config.system else None)),
)  # fmt: skip
