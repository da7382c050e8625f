"""The function that is an agent, and how it is called.

Knows: its arguments, and what to say where there is none.
Does not know: files and modules (`areal_agentic.user_function`), or what the function does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from areal_agentic.user_function import check_function, user_function

ARGUMENTS = ("row", "base_url", "api_key")
_FIX = (
    "name a function of a file, my_agent.py:run, or of an installed module; it is called as run(row, base_url, api_key)"
)


def check_agent(name: str) -> None:
    """Tell while planning that `options.run` names something that is there; runs no file of the user's.

    Raises:
        ConfigError: there is no such file, module or function, or the file is no Python.
    """
    check_function(name, what=_what(name), fix=_FIX)


def agent_function(name: str) -> Callable[..., Any]:  # Any: the user's own
    """Return the function that `options.run` names.

    Raises:
        ConfigError: there is no such file or function, it raises when it is imported, or takes other arguments.
    """
    return user_function(name, what=_what(name), fix=_FIX, takes=ARGUMENTS)


def _what(name: str) -> str:
    return f"rollout.workflow.options.run={name} is no agent"
