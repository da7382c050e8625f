"""Questions to the hooks in every rank's scheduler, over SGLang's route /weights_checker.

Knows: the route, that answers come as JSON in its message, in the order of ranks.
Does not know: what is asked (`inside.weights`).
"""

from __future__ import annotations

import json
from typing import Any

from areal_serving.http import Api


async def ask(api: Api, action: str) -> list[dict[str, Any]]:
    """Ask every rank. Any: JSON.

    Raises:
        ServerAnswer: the server has no hooks.
    """
    answer = await api.post("/weights_checker", {"action": f"areal.{action}"})
    ranks: list[dict[str, Any]] = json.loads(answer["message"])
    return ranks
