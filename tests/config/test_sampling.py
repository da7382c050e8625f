"""What a plan refuses of sampling that could never be trained on."""

from __future__ import annotations

import pytest

from areal_core.config.model_folder import ModelFolder, inspect_model
from areal_core.config.sampling import check_sampling, evaluation_sampling
from areal_core.config.schema import EvaluationConfig, EvaluationSetConfig, RoleConfig, RolloutConfig, RunConfig
from areal_core.contract.errors import ArealError, PlanError
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


def with_set(temperature: float = 0.0, **keys: object) -> RunConfig:
    """Return a run with one further set of held-out prompts."""
    sets = {"hard": EvaluationSetConfig(**keys)}  # type: ignore[arg-type]
    rollout = RolloutConfig(sampling=SamplingParams(max_new_tokens=512, temperature=0.9))
    return RunConfig(rollout=rollout, evaluation=EvaluationConfig(temperature=temperature, sets=sets))


def test_a_set_is_sampled_as_the_run_but_for_its_own_keys() -> None:
    """Its temperature is the evaluation's, unless it has one."""
    sampling = evaluation_sampling(with_set(sampling={"max_new_tokens": 64}), "hard")
    warm = evaluation_sampling(with_set(sampling={"temperature": 0.6}), "hard")

    assert sampling == SamplingParams(max_new_tokens=64, temperature=0.0)
    assert warm == SamplingParams(max_new_tokens=512, temperature=0.6)


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"sampling": {"temperatur": 1}}, "evaluation.sets.hard.sampling.temperatur"),
        ({"sampling": {"temperature": -1.0}}, "evaluation.sets.hard.sampling.temperature is -1.0"),
        ({"sampling": {"top_p": 0.0}}, "evaluation.sets.hard.sampling.top_p is 0.0"),
        ({"sampling": {"max_new_tokens": 4096}}, "evaluation.sets.hard.sampling.max_new_tokens=4096 leaves no room"),
        ({"samples": 4}, "evaluation.sets.hard.samples=4 at temperature 0"),
    ],
)
def test_a_set_that_cannot_be_sampled_is_refused_by_its_key(
    keys: dict[str, object], told: str, model: ModelFolder
) -> None:
    with pytest.raises(ArealError) as caught:
        check_sampling(with_set(**keys), model)

    assert told in str(caught.value)
