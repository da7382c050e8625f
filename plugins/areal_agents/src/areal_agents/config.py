"""Options of the workflow `agent`.

Knows: names and ranges.
Does not know: how an agent is called.
"""

from __future__ import annotations

from attrs import field, frozen, validators

from areal_tasks.datasets.encoding import ChatConfig


@frozen(kw_only=True)
class AgentConfig(ChatConfig):
    """Options under `rollout.workflow.options`.

    Example: AgentConfig(run="my_agent.py:run", turn_discount=0.9)
    """

    run: str = field(validator=validators.matches_re(r".+:[A-Za-z_]\w*"))
    """The agent: FILE.py:FUNCTION or MODULE:FUNCTION, called as run(row, base_url, api_key). It returns the reward, a
    RewardResult, or None where it told the reward to the endpoint or `rollout.reward` is to judge."""
    turn_discount: float = field(default=1.0, validator=[validators.gt(0.0), validators.le(1.0)])
    """The reward of a trajectory that ends n requests before the episode's last one counts this to the power of n."""
    max_requests: int = field(default=64, validator=validators.ge(1))
    """Requests of one episode; one more is refused with 429."""
    concurrency: int = field(default=8, validator=validators.ge(1))
    """Requests of one episode that are generated at once; more wait."""
