"""Options of the workflow `agent`.

Knows: names, ranges, and that what is named as the agent is there.
Does not know: how an agent is called.
"""

from __future__ import annotations

import re
from pathlib import Path

from attrs import field, frozen, validators

from areal_agents.container import container_program
from areal_agents.endpoint_config import EndpointConfig
from areal_agents.loopback import check_proxies
from areal_agents.programs import absolute
from areal_agents.source import check_agent
from areal_core.contract.errors import ConfigError

_AGENT = re.compile(r".+:[A-Za-z_]\w*")
_VARIABLE = validators.deep_iterable(validators.matches_re(r"[A-Za-z_]\w*"))


@frozen(kw_only=True)
class AgentConfig(EndpointConfig):
    """Options under `rollout.workflow.options`, or `rollout.agent`.

    Example: AgentConfig(run="my_agent.py:run", turn_discount=0.9), AgentConfig(command=["python", "my_agent.py"])
    """

    run: str = ""
    """The agent: FILE.py:FUNCTION or MODULE:FUNCTION, called as run(row, base_url, api_key). It returns the reward, a
    RewardResult, or None where it told the reward to the endpoint or `rollout.reward` is to judge."""
    command: tuple[str, ...] = field(default=(), converter=tuple[str, ...])
    """In place of `run`: a program and its arguments, a process of its own per episode. `{prompt}` in an argument is
    that column of the row; `python` alone is the interpreter of the run."""
    container: str = ""
    """The image in which the command runs, by docker or podman; empty runs it as a process of this machine."""
    environment: tuple[str, ...] = field(default=(), converter=tuple[str, ...], validator=_VARIABLE)
    """Names of environment variables that the command sees beside its own and PATH, LANG, LC_ALL, LC_CTYPE, TZ."""
    log: str = ""
    """A file that the output of every command is appended to, the last 64 KiB of each; empty keeps the last words of
    those that fail, in the error of their episode."""
    processes: int = field(default=16, validator=validators.ge(1))
    """Agents at once where each is a command, or a plain function in a thread; more wait."""
    agent_timeout_s: float = field(default=600.0, validator=validators.gt(0.0))
    """One call of the agent. A command is killed then, with all it started."""
    turn_discount: float = field(default=1.0, validator=[validators.gt(0.0), validators.le(1.0)])
    """The reward of a trajectory that ends n requests before the episode's last one counts this to the power of n."""
    max_requests: int = field(default=64, validator=validators.ge(1))
    """Requests of one episode; one more is refused with 429."""
    concurrency: int = field(default=8, validator=validators.ge(1))
    """Requests of one episode that are generated at once; more wait."""
    endpoint: str = "http"
    """The plugin that answers the agent: `areal backends --role endpoint`."""

    def __attrs_post_init__(self) -> None:
        """Refuse an agent that is not there, while a run is planned."""
        if bool(self.run) == bool(self.command):
            raise ConfigError(
                "run and command are both set" if self.run else "neither run nor command is set",
                why="the workflow agent calls one agent: a function, or a command",
                fix="rollout.agent: my_agent.py:run, or rollout.agent: {command: [python, my_agent.py]}",
            )
        if self.run:
            self._check_run()
            return
        if self.container:
            container_program()
        else:
            absolute(self.command)
        if self.log and not Path(self.log).absolute().parent.is_dir():
            raise ConfigError(
                f"rollout.workflow.options.log={self.log} cannot be written",
                why=f"there is no folder {Path(self.log).parent}",
                fix="make it, or name a file elsewhere",
            )

    def _check_run(self) -> None:
        if _AGENT.fullmatch(self.run) is None:
            raise ConfigError(
                f"rollout.workflow.options.run={self.run} names no function",
                why="it has no :FUNCTION behind the file or the module",
                fix="my_agent.py:run",
            )
        for name in ("container", "environment", "log"):
            if getattr(self, name):
                why, fix = "a function runs in the controller", "name a command in place of run"
                raise ConfigError(f"{name} is set beside run", why=why, fix=fix)
        check_agent(self.run)
        check_proxies()
