"""What a plan refuses of sampling that could never be trained on."""

from __future__ import annotations

import pytest

from areal_core.config.model_folder import ModelFolder, inspect_model
from areal_core.config.sampling import check_sampling
from areal_core.config.schema import RoleConfig, RolloutConfig, RunConfig
from areal_core.contract.errors import PlanError
from areal_core.contract.inference import SamplingParams

from .conftest import MakeFolder


@pytest.fixture
def model(make_folder: MakeFolder) -> ModelFolder:
    """A folder with a context of 4096."""
    return inspect_model(str(make_folder(max_position_embeddings=4096)))


@pytest.mark.parametrize("role", ["actor", "critic", "reference"])
@pytest.mark.parametrize("budget", [511, 512])
def test_an_answer_that_fits_no_microbatch_is_refused_before_any_is_made(
    role: str, budget: int, model: ModelFolder
) -> None:
    """Otherwise the run ends at the first long answer, hours later."""
    rollout = RolloutConfig(sampling=SamplingParams(max_new_tokens=512))
    config = RunConfig(rollout=rollout, **{role: RoleConfig(max_tokens_per_microbatch=budget)})

    with pytest.raises(PlanError, match=f"{role}.max_tokens_per_microbatch={budget} cannot hold a whole answer"):
        check_sampling(config, model)


def test_an_answer_that_may_fit_is_not_refused(model: ModelFolder) -> None:
    """How long prompts are is not known yet."""
    rollout = RolloutConfig(sampling=SamplingParams(max_new_tokens=512))

    assert check_sampling(RunConfig(rollout=rollout, actor=RoleConfig(max_tokens_per_microbatch=513)), model) == []


@pytest.mark.parametrize(
    ("sampling", "told"),
    [
        ({"top_p": 0.9}, "top_p"),
        ({"top_k": 5, "min_p": 0.1}, "top_k/min_p"),
        ({"presence_penalty": -0.5}, "penalties"),
        ({"repetition_penalty": 1.1}, "repetition_penalty"),
    ],
)
def test_sampling_from_another_distribution_than_the_trainer_s_is_warned_of(
    sampling: dict[str, float], told: str, model: ModelFolder
) -> None:
    """Ratios of the two are wrong without a behaviour weight."""
    rollout = RolloutConfig(sampling=SamplingParams(max_new_tokens=512, **sampling))  # type: ignore[arg-type]

    (warning,) = check_sampling(RunConfig(rollout=rollout), model)

    assert warning.startswith(f"{told}: behaviour log-probs are of the distribution {told} leaves")
