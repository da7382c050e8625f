"""The options every backend with a server of its own has; its config class adds its own.

Knows: names, ranges, what each means.
Does not know: any server.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import StrEnum
from typing import Any

from attrs import Attribute, field, frozen, validators

from areal_core.contract.errors import PlanError


class CacheOnUpdate(StrEnum):
    """What happens to the keys and values of running requests when the weights change."""

    KEEP = "keep"
    """They stay: nothing is computed twice, later tokens attend to keys and values of older weights."""
    RECOMPUTE = "recompute"
    """They are computed again with the new weights before the next token."""


@frozen(kw_only=True)
class ServedOptions:
    """As written under `rollout.options`. Times are seconds."""

    python: str = ""
    """Interpreter of the engine's environment; empty takes the one `areal env create` made."""
    url: str = ""
    """A server that runs already, for example http://10.0.0.7:8000; empty starts one."""
    key_env: str = ""
    """Name of the environment variable that holds that server's API key."""
    kv_on_update: CacheOnUpdate = field(default=CacheOnUpdate.KEEP, converter=CacheOnUpdate)
    """What happens to the keys and values of running requests when the weights change."""
    server_args: tuple[str, ...] = field(default=(), converter=tuple[str, ...])
    """Further arguments of the server's command, one per item: ["--block-size", "32"]."""
    max_restarts: int = field(default=2, validator=validators.ge(0))
    """How often a server that died or hangs is started again before the replica is given up."""
    start_timeout_s: float = field(default=600.0, validator=validators.gt(0.0))
    """From starting the server until it answers."""
    hang_timeout_s: float = field(default=300.0, validator=validators.gt(0.0))
    """A server that has requests and computes no token for this long is killed and started again."""
    direct: bool = False
    """With transport `collective`: the engine's own workers join the group and load in place, without a host copy."""


def none_of(own: Collection[str]) -> Callable[[object, Attribute[Any], tuple[str, ...]], None]:
    """Return a validator for `server_args` that refuses the arguments a plugin gives itself, in any spelling.

    Example: server_args: tuple[str, ...] = field(default=(), converter=tuple[str, ...], validator=none_of({"--port"}))
    """

    def check(_: object, __: Attribute[Any], value: tuple[str, ...]) -> None:  # Any: of any attribute
        for argument in value:
            if argument.partition("=")[0].replace("_", "-") in own:
                raise PlanError(
                    f"rollout.options.server_args holds {argument!r}",
                    why="the plugin sets it itself, or its claims would not hold with it",
                    fix="take it out; dtype, layout, context_length, seed and the options of the plugin say the same",
                )

    return check
