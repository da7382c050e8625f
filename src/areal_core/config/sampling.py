"""Whether a run's sampling can be done, and trained on.

Knows: the ranges of sampling parameters, the model's context.
Does not know: what the inference backend claims (`plan`).
"""

from __future__ import annotations

import math

from attrs import evolve

from areal_core.config.model_folder import ModelFolder
from areal_core.config.schema import RunConfig
from areal_core.contract.abilities import asked_of_sampling
from areal_core.contract.errors import PlanError
from areal_core.contract.inference import SamplingParams
from areal_core.plugins.structure import structure, unstructure

_RESHAPED = (
    "{what}: behaviour log-probs are of the distribution {what} leaves, the trainer's are of the whole one; "
    "set algorithm.proximal=recompute with a behaviour weight, or sample without {what}"
)
_RESHAPING = {
    "sampling.top_p": "top_p",
    "sampling.top_k": "top_k",
    "sampling.min_p": "min_p",
    "sampling.penalties": "penalties",
    "sampling.repetition_penalty": "repetition_penalty",
}


def check_sampling(config: RunConfig, model: ModelFolder) -> list[str]:
    """Refuse sampling that cannot be done or learnt from; return warnings.

    Raises:
        PlanError: names the key, its value, and what to set.
    """
    sampling = config.rollout.sampling
    _check_ranges(sampling, "rollout.sampling")
    _check_context(config, model, sampling.max_new_tokens, "rollout.sampling")
    _check_evaluation(config, model)
    _check_microbatches(config)
    if sampling.temperature == 0:
        raise PlanError(
            "rollout.sampling.temperature=0 cannot be trained on",
            why="greedy samples of a group are all alike, and ratios to a greedy policy are undefined",
            fix="set rollout.sampling.temperature=1.0; evaluation has a temperature of its own",
        )
    reshaped = "/".join(_RESHAPING[word] for word in asked_of_sampling(sampling) if word in _RESHAPING)
    return [_RESHAPED.format(what=reshaped)] if reshaped else []


def evaluation_sampling(config: RunConfig, name: str = "") -> SamplingParams:
    """Return how an evaluation samples, or one of its further sets.

    Raises:
        UnknownKey, WrongType: names the key of the set.
    """
    own = evolve(config.rollout.sampling, temperature=config.evaluation.temperature)
    if not name:
        return own
    keys = {**unstructure(own), **config.evaluation.sets[name].sampling}
    return structure(SamplingParams, keys, f"evaluation.sets.{name}.sampling")


def _check_ranges(sampling: SamplingParams, at: str) -> None:
    longest = sampling.max_new_tokens
    wrong = {
        ("max_new_tokens", longest, "at least 1", "256"): longest < 1,
        ("min_new_tokens", sampling.min_new_tokens, f"between 0 and max_new_tokens, {longest}", "0"): (
            not 0 <= sampling.min_new_tokens <= longest
        ),
        ("temperature", sampling.temperature, "above 0", "1.0"): not 0 <= sampling.temperature < math.inf,
        ("top_p", sampling.top_p, "above 0 and at most 1", "1.0"): not 0 < sampling.top_p <= 1,
        ("top_k", sampling.top_k, "at least 0", "0, which takes all tokens"): sampling.top_k < 0,
        ("min_p", sampling.min_p, "between 0 and 1", "0, which takes all tokens"): not 0 <= sampling.min_p <= 1,
        ("frequency_penalty", sampling.frequency_penalty, "between -2 and 2", "0"): (
            not -2 <= sampling.frequency_penalty <= 2
        ),
        ("presence_penalty", sampling.presence_penalty, "between -2 and 2", "0"): (
            not -2 <= sampling.presence_penalty <= 2
        ),
        ("repetition_penalty", sampling.repetition_penalty, "above 0 and at most 2", "1"): (
            not 0 < sampling.repetition_penalty <= 2
        ),
    }
    for (name, value, allowed, example), is_wrong in wrong.items():
        if is_wrong:
            key = f"{at}.{name}"
            raise PlanError(f"{key} is {value}", why=f"it must be {allowed}", fix=f"set {key} to {example}")


def _check_evaluation(config: RunConfig, model: ModelFolder) -> None:
    if config.evaluation.temperature < 0:
        raise PlanError(
            f"evaluation.temperature is {config.evaluation.temperature}",
            why="it must be at least 0",
            fix="set evaluation.temperature to 0, which is greedy",
        )

    for name, each in config.evaluation.sets.items():
        sampling, at = evaluation_sampling(config, name), f"evaluation.sets.{name}"
        _check_ranges(sampling, f"{at}.sampling")
        _check_context(config, model, sampling.max_new_tokens, f"{at}.sampling")
        if each.samples > 1 and sampling.temperature == 0:
            raise PlanError(
                f"{at}.samples={each.samples} at temperature 0",
                why="greedy answers to a prompt are all alike",
                fix=f"set {at}.sampling.temperature, for example 0.6, or samples to 1",
            )


def _check_context(config: RunConfig, model: ModelFolder, longest: int, at: str) -> None:
    wanted = config.rollout.context_length
    if wanted and model.context_length and wanted > model.context_length:
        raise PlanError(
            f"rollout.context_length={wanted} exceeds what the model was made for",
            why=f"config.json of {str(model.path)!r} says {model.context_length} positions",
            fix=f"set rollout.context_length to {model.context_length} or less, or 0 for the model's own",
        )
    context = wanted or model.context_length
    if context and longest >= context:
        raise PlanError(
            f"{at}.max_new_tokens={longest} leaves no room for a prompt",
            why=f"the context holds {context} tokens",
            fix=f"set {at}.max_new_tokens below {context}",
        )


def _check_microbatches(config: RunConfig) -> None:
    longest = config.rollout.sampling.max_new_tokens
    for name, role in (("actor", config.actor), ("critic", config.critic), ("reference", config.reference)):
        if role is not None and longest >= role.max_tokens_per_microbatch:
            raise PlanError(
                f"{name}.max_tokens_per_microbatch={role.max_tokens_per_microbatch} cannot hold a whole answer",
                why=f"rollout.sampling.max_new_tokens={longest}, the prompt comes on top, and a sequence is never cut",
                fix=f"set {name}.max_tokens_per_microbatch above {longest} plus the longest prompt",
            )
