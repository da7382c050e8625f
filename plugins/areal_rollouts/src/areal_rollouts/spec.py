"""What a rollout process is told to make episodes with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import fields, frozen

from areal_core.config.plan import Plan
from areal_core.contract.inference import SamplingParams


@frozen(kw_only=True)
class EpisodeSpec:
    """The part of a plan that makes episodes; plain data and `SamplingParams`, so that it travels. Any: options."""

    workflow_options: Mapping[str, Any]
    reward_name: str
    reward_options: Mapping[str, Any]
    reward_workers: int
    reward_timeout_s: float
    model_path: str
    image_token_id: int | None
    longest: int
    sampling: SamplingParams
    seed: int
    retries: int
    timeout_s: float
    tell: bool
    """Whether the controller keeps episodes, and so hears how each ended."""

    def travelling(self) -> dict[str, Any]:
        """Return the fields, as `WorkflowHost` takes them. Any: plain data."""
        return {field.name: getattr(self, field.name) for field in fields(type(self))}


def episode_spec(plan: Plan) -> EpisodeSpec:
    """Return what each process of a plan is told; the run's reward processes are shared among them."""
    config, rollout, model = plan.config, plan.config.rollout, plan.role("rollout").model
    limits = [role.max_tokens_per_microbatch for role in config.train_roles.values()]
    return EpisodeSpec(
        workflow_options=dict(rollout.workflow.options),
        reward_name=rollout.reward.name,
        reward_options=dict(rollout.reward.options),
        reward_workers=-(-rollout.reward.workers // rollout.processes),
        reward_timeout_s=rollout.reward.timeout_s,
        model_path=str(model.path),
        image_token_id=model.image_token_id,
        longest=min([*limits, model.context_length or limits[0]]),
        sampling=rollout.sampling,
        seed=config.seed,
        retries=rollout.retries,
        timeout_s=rollout.episode_timeout_s,
        tell=bool(config.episodes.keep),
    )
