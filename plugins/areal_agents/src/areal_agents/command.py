"""An agent that is a command: a process of its own for every episode, in a folder of its own.

What the command sees of this process's environment is `PASSED` and what `environment` names; its home and its working
folder are private and go with the episode.

Knows: the variables an agent finds its endpoint and its row by, and where its reward comes from.
Does not know: how a process is ended (`process`), or what the agent asks.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from areal_agents.config import AgentConfig
from areal_agents.container import Container, container_program
from areal_agents.process import Said, run_command
from areal_agents.programs import absolute
from areal_core.contract.errors import EpisodeFailed
from areal_core.plugins.redact import REDACTED, redact

PASSED = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ")
"""All that a command sees of this process's environment unless `environment` names more."""
_KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY")
_STDIN = ("/bin/sh", "-c", 'exec "$@" <"$AREAL_ROW"', "sh")
_COLUMN = re.compile(r"\{(\w+)\}")
_MOST_REWARD_BYTES = 65_536
_MAX_LOGGED_BYTES = 65_536
_MAX_TOLD = 4096
"""Characters of what a command wrote that stand in an error."""
_REMOVE_TIMEOUT_S = 30.0


class CommandAgent:
    """Calls a command with a row, a base URL and a key, and returns what it wrote as its reward."""

    def __init__(self, config: AgentConfig, environ: Mapping[str, str] | None = None) -> None:
        """Take programs and files by their whole paths: a command runs in another folder."""
        self._config = config
        self._environ = os.environ if environ is None else environ
        self._command = config.command if config.container else absolute(config.command)
        self._program = container_program() if config.container else ""
        self._places = asyncio.Semaphore(config.processes)

    async def __call__(self, row: Mapping[str, Any], base_url: str, api_key: str, episode: str) -> object:
        """Run it once, for an episode of that name. Any: a row is the data set's.

        Raises:
            EpisodeFailed: it ended with another exit code than 0, took too long, or wrote something as its reward that
                is no JSON.
        """
        async with self._places, _private_folder() as folder:
            (folder / "row.json").write_text(json.dumps(row, default=str), encoding="utf-8")
            environment = {**self._environment(folder, base_url, api_key), "AREAL_EPISODE": episode}
            said, how = Said(_MAX_LOGGED_BYTES), "cancelled"
            try:
                code = await self._run([_filled(word, row) for word in self._command], environment, folder, said)
                how = self._ended(code)
            except (OSError, ValueError) as error:
                raise _not_started(error) from error
            finally:
                words = redact(str(said).replace(api_key, REDACTED).strip())
                await self._log(episode, how, words)
            if code != 0:
                raise _failed(code, how, words)
            return _written(folder / "reward.json", words)

    async def _run(
        self, command: Sequence[str], environment: Mapping[str, str], folder: Path, said: Said
    ) -> int | None:
        work, timeout_s = folder / "work", self._config.agent_timeout_s
        if not self._config.container:
            whole = [*_STDIN, *command]
            return await run_command(whole, environment=environment, folder=work, timeout_s=timeout_s, said=said)
        secret = [*_KEYS, *(name for name in self._config.environment if name in self._environ)]
        seen = {name: value for name, value in environment.items() if name not in (*PASSED, *secret)}
        container = Container(
            program=self._program, image=self._config.container, folder=folder, variables=seen, secret=secret
        )
        # The program that runs containers is the user's own: it finds its images and its daemon by their environment.
        theirs = {**self._environ, **{name: environment[name] for name in (*secret, "AREAL_ROW")}}
        inside = [*_STDIN, *container.run(command, work)]
        try:
            return await run_command(inside, environment=theirs, folder=work, timeout_s=timeout_s, said=said)
        finally:
            remove = container.remove()
            await run_command(remove, environment=theirs, folder=work, timeout_s=_REMOVE_TIMEOUT_S)

    def _environment(self, folder: Path, base_url: str, api_key: str) -> dict[str, str]:
        """Return all that the command sees."""
        for name in ("work", "tmp"):
            (folder / name).mkdir()
        private = {"HOME": str(folder / "work"), "TMPDIR": str(folder / "tmp"), "NO_PROXY": "127.0.0.1,localhost"}
        passed = {name: self._environ[name] for name in (*PASSED, *self._config.environment) if name in self._environ}
        return {
            **private,
            **passed,
            "OPENAI_BASE_URL": base_url,
            "OPENAI_API_BASE": base_url,
            "OPENAI_API_KEY": api_key,
            "ANTHROPIC_BASE_URL": base_url.removesuffix("/v1"),
            "ANTHROPIC_API_KEY": api_key,
            "AREAL_ROW": str(folder / "row.json"),
            "AREAL_REWARD": str(folder / "reward.json"),
            "AREAL_REWARD_URL": f"{base_url}/reward",
        }

    def _ended(self, code: int | None) -> str:
        if code is None:
            return f"was not done after {self._config.agent_timeout_s:g} s, and killed"
        return f"ended with exit code {code}" if code < 128 else f"ended with signal {code - 128}"

    async def _log(self, episode: str, how: str, said: str) -> None:
        """Append what a command wrote to the file of the options, in one piece."""
        if self._config.log:
            await asyncio.to_thread(_append, Path(self._config.log), f"==== {episode}: {how}\n{said}\n")


def _append(path: Path, text: str) -> None:
    with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
        file.write(text)


def _not_started(error: Exception) -> EpisodeFailed:
    fix = "have it read its row from standard input: an argument has at most 128 KiB, and no NUL"
    return EpisodeFailed("the agent's command could not be started", why=str(error), fix=fix)


def _failed(code: int | None, how: str, said: str) -> EpisodeFailed:
    why = f"the last it wrote:\n{said[-_MAX_TOLD:]}" if said else "it wrote nothing"
    fix = "have it end with 0 where its answers count"
    if code is None:
        fix = "make it faster, or raise agent_timeout_s"
    return EpisodeFailed(f"the agent's command {how}", why=why, fix=fix)


def _filled(word: str, row: Mapping[str, Any]) -> str:
    """Put columns of the row where an argument names one: {prompt}; what is no text as JSON."""

    def value(name: str, else_: str) -> str:
        found = row.get(name, else_)
        return found if isinstance(found, str) else json.dumps(found, default=str)

    return _COLUMN.sub(lambda found: value(found[1], found[0]), word)


def _written(path: Path, said: str) -> object:
    """Return what a command wrote as its reward, None if it wrote none."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        text = file.read(_MOST_REWARD_BYTES).decode(errors="replace")
    try:
        return json.loads(text) if text.strip() else None
    except ValueError as error:
        raise EpisodeFailed(
            f"the agent's command wrote {text[:60]!r} as its reward",
            why=f"it is no JSON: {error}" + (f"; the last it wrote:\n{said[-_MAX_TOLD:]}" if said else ""),
            fix='write a number, or an object {"reward": 0.5, "form": 1.0}, to the file $AREAL_REWARD',
        ) from None


@asynccontextmanager
async def _private_folder() -> AsyncIterator[Path]:
    """Yield a new folder for this user alone; it is gone afterwards, with whatever is in it."""
    folder = tempfile.TemporaryDirectory(prefix="areal-agent-", ignore_cleanup_errors=True)
    try:
        yield Path(folder.name)
    finally:
        await asyncio.to_thread(folder.cleanup)
