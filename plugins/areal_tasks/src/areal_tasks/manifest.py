"""What the entry points of `areal.workflow`, `areal.dataset` and `areal.reward` name: plain data, nothing imported."""

from __future__ import annotations

from areal_core.plugins.claims import full, not_yet
from areal_core.plugins.manifest import Manifest

_GYM = ("reasoning-gym>=0.1.20",)

SINGLE_TURN = Manifest(
    role="workflow",
    name="single_turn",
    contract=(1, 2),
    factory="areal_tasks.workflows.single_turn:SingleTurnWorkflow",
    config="areal_tasks.workflows.single_turn:SingleTurnConfig",
    devices=("cpu", "cuda", "npu"),
    claims={"images": full()},
    conformance="areal_tasks.conformance:SINGLE_TURN",
    summary="One prompt, one completion, one reward.",
)

CRITIQUE = Manifest(
    role="workflow",
    name="critique",
    contract=(1, 3),
    factory="areal_tasks.workflows.critique:CritiqueWorkflow",
    config="areal_tasks.workflows.critique:CritiqueConfig",
    devices=("cpu", "cuda", "npu"),
    claims={"multi_turn": full(), "adapters": full(), "images": not_yet("the critic would not see them")},
    conformance="areal_tasks.conformance:CRITIQUE",
    summary="Answer, be criticised by an adapter or by the policy, answer again.",
)

SPELL = Manifest(
    role="dataset",
    name="spell",
    contract=(1, 0),
    factory="areal_tasks.datasets.spell:spell",
    config="areal_tasks.datasets.spell:SpellConfig",
    requires=_GYM,
    extra="gym",
    summary="spell one word backwards, characters only: the quickstart's task",
)

LONG_SPELL = Manifest(
    role="dataset",
    name="long_spell",
    contract=(1, 0),
    factory="areal_tasks.datasets.spell:long_spell",
    config="areal_tasks.datasets.spell:SpellConfig",
    requires=_GYM,
    extra="gym",
    summary="spell one to six words backwards: heavy-tailed output lengths",
)

CHAIN_SUM = Manifest(
    role="dataset",
    name="chain_sum",
    contract=(1, 0),
    factory="areal_tasks.datasets.chain_sum:chain_sum",
    config="areal_tasks.datasets.chain_sum:ChainSumConfig",
    requires=_GYM,
    extra="gym",
    summary="small sums after worked examples, for a pretrained model",
)

JSONL = Manifest(
    role="dataset",
    name="jsonl",
    contract=(1, 0),
    factory="areal_tasks.datasets.jsonl:jsonl",
    config="areal_tasks.datasets.jsonl:JsonlConfig",
    summary="a local file with one JSON object per line",
)

HUB = Manifest(
    role="dataset",
    name="hub",
    contract=(1, 0),
    factory="areal_tasks.datasets.hub:hub",
    config="areal_tasks.datasets.hub:HubConfig",
    requires=("datasets>=3",),
    extra="hub",
    summary="a data set of the Hugging Face hub, or one saved to a folder",
)

GYM = Manifest(
    role="dataset",
    name="reasoning_gym",
    contract=(1, 0),
    factory="areal_tasks.datasets.gym:gym",
    config="areal_tasks.datasets.gym:GymConfig",
    requires=_GYM,
    extra="gym",
    summary="any task of reasoning-gym, by its name there",
)

MIXTURE = Manifest(
    role="dataset",
    name="mixture",
    contract=(1, 0),
    factory="areal_tasks.datasets.mixture:mixture",
    config="areal_tasks.datasets.mixture:MixtureConfig",
    summary="several data sets as one, with weights that may change",
)

EXACT_MATCH = Manifest(
    role="reward",
    name="exact_match",
    contract=(1, 0),
    factory="areal_tasks.rewards.exact:ExactMatch",
    config="areal_tasks.rewards.exact:ExactMatchConfig",
    summary="1 where the completion equals the row's answer",
)

REASONING_GYM = Manifest(
    role="reward",
    name="reasoning_gym",
    contract=(1, 0),
    factory="areal_tasks.rewards.gym:ReasoningGym",
    config="areal_tasks.rewards.gym:ReasoningGymConfig",
    requires=_GYM,
    extra="gym",
    summary="reasoning-gym's own score of its own items",
)

JUDGE = Manifest(
    role="reward",
    name="judge",
    contract=(1, 0),
    factory="areal_tasks.rewards.judge:Judge",
    config="areal_tasks.rewards.judge:JudgeConfig",
    summary="what a language model behind an OpenAI-compatible URL says the answer is worth",
)

REGEX = Manifest(
    role="reward",
    name="regex",
    contract=(1, 0),
    factory="areal_tasks.rewards.regex:Regex",
    config="areal_tasks.rewards.regex:RegexConfig",
    summary="1 where a regular expression is found, or finds the row's answer",
)

FORMAT = Manifest(
    role="reward",
    name="format",
    contract=(1, 0),
    factory="areal_tasks.rewards.format:Format",
    config="areal_tasks.rewards.format:FormatConfig",
    summary="1 for <think>...</think><answer>...</answer>, or other tags",
)

COMPOSED = Manifest(
    role="reward",
    name="composed",
    contract=(1, 0),
    factory="areal_tasks.rewards.composed:Composed",
    config="areal_tasks.rewards.composed:ComposedConfig",
    summary="a weighted sum of rewards, each a part with a name",
)

REMOTE = Manifest(
    role="reward",
    name="remote",
    contract=(1, 0),
    factory="areal_tasks.rewards.remote:Remote",
    config="areal_tasks.rewards.remote:RemoteConfig",
    summary="what a server behind a URL answers, for one completion or several at once",
)

MATH_VERIFY = Manifest(
    role="reward",
    name="math_verify",
    contract=(1, 0),
    factory="areal_tasks.rewards.mathematics:MathVerify",
    config="areal_tasks.rewards.mathematics:MathVerifyConfig",
    requires=("math-verify>=0.7",),
    extra="hub",
    summary="1 where the final answer is mathematically the row's answer",
)
