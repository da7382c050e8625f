"""Environments of the library verifiers: the data set and the workflow `verifiers`.

A row says which environment it is of, so the workflow needs no options, and a `mixture` may hold several.

Knows: how an environment is named, and that it is loaded once.
Does not know: its classes (`verifiers_v0`, `verifiers_v1`).
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from typing import Any, Protocol

from attrs import Factory, field, frozen, validators

from areal_core.contract.errors import ConfigError, DatasetError
from areal_core.contract.workflow import RewardResult
from areal_core.plugins.blame import told
from areal_environments.played import PlayedConfig, PlayedWorkflow, Row
from areal_environments.source import module_of
from areal_tasks.datasets.rows import LazyRows

KEY = "data.options.environment"
_FIX = "name an installed environment, FILE.py with a taskset, or FILE.py:FUNCTION that returns an environment"
_OLDER = re.compile(r"module 'verifiers' has no attribute|from 'verifiers'|No module named 'verifiers\.(?!v1)")
"""What Python says of an environment that the installed library has grown out of."""
COLUMN = "environment"


class Loaded(Protocol):
    """An environment, whichever version of the library it is written for."""

    def count(self, split: str, size: int) -> int:
        """Return how many rows there are, `size` at most; 0 is all of them."""

    def row(self, split: str, index: int) -> Row:
        """Return a row as JSON, with its `prompt`."""

    async def play(self, row: Row, base_url: str, api_key: str, *, raised_is_zero: bool) -> RewardResult:
        """Return what one rollout was worth; raises EpisodeFailed if it failed."""


@frozen(kw_only=True)
class VerifiersRows:
    """Options of the data set `verifiers`.

    Example: VerifiersRows(environment="my_environment.py:load_environment", arguments={"difficulty": 2})
    """

    environment: str = field(validator=validators.min_len(1))
    """An installed environment by its id, FILE.py with a taskset, or FILE.py:FUNCTION (MODULE:FUNCTION)."""
    arguments: Mapping[str, Any] = Factory(dict)  # Any: the environment's own
    """Arguments of the function; of a taskset, the keys of its environment: `taskset`, `agent`."""
    split: str = field(default="train", validator=validators.in_(("train", "eval")))
    """Rows to train on, or the environment's own to evaluate on, if it has such."""
    size: int = field(default=0, validator=validators.ge(0))
    """Rows at most; 0 takes all."""


@frozen(kw_only=True)
class VerifiersConfig(PlayedConfig):
    """Options of the workflow `verifiers`.

    Example: VerifiersConfig(raised_is_zero=True, max_requests=20)
    """

    raised_is_zero: bool = False
    """Take a reward function that raised for a reward of 0, as environments up to 0.3 are used to; else the episode
    has failed."""


def rows(config: VerifiersRows) -> LazyRows:
    """Return the environment's rows: the data set `verifiers`.

    Raises:
        ConfigError: there is no such environment, or it cannot be loaded.
        DatasetError: it has no rows, or no end of them.
    """
    named = {"name": config.environment, "arguments": dict(config.arguments)}
    environment = loaded(named)
    count = environment.count(config.split, config.size)
    if not count:
        raise DatasetError(f"{config.environment} has no rows", why=f"split={config.split}", fix="set options.split")
    return LazyRows(count, lambda index: {COLUMN: named, **environment.row(config.split, index)})


def workflow(config: VerifiersConfig) -> PlayedWorkflow:
    """Return the workflow `verifiers`: an episode is a rollout of the row's environment, scored by its rubric."""

    async def play(row: Row, base_url: str, api_key: str) -> RewardResult:
        if COLUMN not in row:
            fix = "data.name: verifiers"
            raise DatasetError(f"a row has no column {COLUMN!r}", why="it says what to play", fix=fix)
        environment = loaded(row[COLUMN])
        return await environment.play(row, base_url, api_key, raised_is_zero=config.raised_is_zero)

    return PlayedWorkflow(config, play)


def loaded(named: Mapping[str, Any]) -> Loaded:
    """Return the environment of a row, the same for the same name and arguments."""
    return _loaded(named["name"], json.dumps(named["arguments"], sort_keys=True))


@functools.cache
def _loaded(name: str, arguments: str) -> Loaded:
    from areal_environments import verifiers_v0, verifiers_v1

    given = json.loads(arguments)
    try:
        made = _made(name, given)
    except Exception as error:  # whatever an environment raises
        why = str(error.why) if isinstance(error, ConfigError) else told(error)
        fix = "it is of an earlier version: pip install 'verifiers<0.4'" if _OLDER.search(why) else _FIX
        raise ConfigError(f"{KEY}={name} cannot be loaded", why=why, fix=fix) from error
    if hasattr(made, "run_rollout"):
        return verifiers_v0.Environment(made)
    if hasattr(made, "run_episode"):
        return verifiers_v1.Environment(made)
    raise ConfigError(f"{KEY}={name} is no environment", why=f"it gives a {type(made).__name__}", fix=_FIX)


def _made(name: str, arguments: Mapping[str, Any]) -> object:
    from areal_environments import verifiers_v0, verifiers_v1

    where, colon, function = name.rpartition(":")
    module = module_of(where if colon else verifiers_v1.module_name(name), KEY, _FIX)
    maker = getattr(module, function if colon else "load_environment", None)
    if maker is not None:
        with verifiers_v0.signals_kept():
            return maker(**arguments)
    if colon:
        raise ConfigError(f"{KEY}={name} cannot be loaded", why=f"{where} has no {function}", fix=_FIX)
    return verifiers_v1.load(module.__name__, arguments)
