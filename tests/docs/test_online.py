"""The page about live traffic: its tables are those of the code. `tests/end_to_end/test_serve.py` runs its files."""

from __future__ import annotations

import re
from pathlib import Path

import attrs
from starlette.routing import Route

from areal_agents.endpoint import Endpoint
from areal_agents.endpoint_config import EndpointConfig
from areal_agents.serve.app import OnlineApp
from areal_agents.serve.config import OnlineConfig
from areal_agents.serve.reception import Reception

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/how-to/online.md").read_text()


def test_the_options_are_those_there_are() -> None:
    """With their defaults; those of the endpoint are on its page."""
    own = [each for each in attrs.fields(OnlineConfig) if each.name not in attrs.fields_dict(EndpointConfig)]
    told = re.findall(r"^\| `(\w+)` \| ([\w.]+) \|", PAGE, re.MULTILINE)

    assert dict(told) == {each.name: str(each.default).replace("00.0", "00") for each in own}


def test_the_paths_are_those_there_are() -> None:
    """Those of the endpoint are on its page."""
    endpoint = Endpoint()
    app = OnlineApp(Reception(OnlineConfig(), endpoint), endpoint.app(), "key").asgi
    routes = [each for each in app.routes if isinstance(each, Route)]  # type: ignore[attr-defined]

    told = set(re.findall(r"^\| `(\w+ /[^`]+)` \|", PAGE, re.MULTILINE))
    assert told == {f"{method} {each.path}" for each in routes for method in each.methods or () if method != "HEAD"}
