"""What a train engine says to an ability it does not claim: no, and why.

Knows: how each optional ability is asked for.
Does not know: whether it would have worked; the session finds out.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from areal_conformance.benches.train import TrainBench
from areal_conformance.check import Level, check, family
from areal_conformance.outcome import NotRefused
from areal_core.contract.batch import Batch
from areal_core.contract.train import CANDIDATES, ROUTED_EXPERTS, LoraSpec, Output
from areal_torch.testing.batches import make_episode
from areal_torch.testing.images import make_seeing_trajectory
from areal_torch.testing.objectives import PolicyGradient

_check = partial(check, level=Level.SINGLE, law=8, spec="index#optional-abilities")


def _start(bench: TrainBench, claim: str, **fields: Any) -> None:  # Any: the fields of TrainSpec
    engine = bench.fresh()
    spec, context = bench.spec(**fields), bench.rank_context(timeout_s=10.0)
    bench.refuses(claim, lambda: engine.start(spec, context))


@_check("train.refuse.lora", unless=("lora",), since=(1, 1))
def lora(bench: TrainBench) -> None:
    """An adapter is refused at start; training all weights instead would answer another question."""
    _start(bench, "lora", lora=LoraSpec(rank=2, alpha=4.0, targets=("q_proj", "v_proj")))


@_check("train.refuse.experts", unless=("experts.replay",), since=(1, 1))
def experts(bench: TrainBench) -> None:
    """Recorded routes are refused by `forward` and by `train_step`; ignoring them would score another computation."""
    batch = bench.batch([(2, 3), (1, 5)])
    routes = torch.tensor([[[0, 1], [1, 0]]], dtype=torch.int32).expand(batch.num_tokens, 2, 2).contiguous()
    routed = batch.with_tokens(**{ROUTED_EXPERTS: routes})
    unrecorded = batch.with_tokens(**{ROUTED_EXPERTS: torch.full_like(routes, -1)})
    with bench.engine() as engine:
        for given in (routed, unrecorded):
            bench.refuses("experts.replay", lambda given=given: engine.forward(given, frozenset({Output.LOGPROBS})))  # type: ignore[misc]
            bench.refuses("experts.replay", lambda given=given: engine.train_step(given, PolicyGradient()))  # type: ignore[misc]


@_check("train.refuse.images", unless=("images",), since=(1, 2))
def images(bench: TrainBench) -> None:
    """Images are refused by `forward` and by `train_step`; the tokens that stand for them say nothing by themselves."""
    seen = Batch.pack([make_episode(make_seeing_trajectory(vocab_size=60))])
    batch = seen.with_tokens(advantages=seen.tokens["logprobs"])
    with bench.engine() as engine:
        bench.refuses("images", lambda: engine.forward(batch, frozenset({Output.LOGPROBS})))
        bench.refuses("images", lambda: engine.train_step(batch, PolicyGradient()))


@_check("train.refuse.candidates", unless=("candidates",), since=(1, 4))
def candidates(bench: TrainBench) -> None:
    """Log-probs of tokens that were not taken are refused by `forward`."""
    batch = bench.batch()
    batch = batch.with_tokens(**{CANDIDATES: torch.zeros(batch.num_tokens, 2, dtype=torch.int32)})
    with bench.engine() as engine:
        bench.refuses("candidates", lambda: engine.forward(batch, frozenset({Output.CANDIDATE_LOGPROBS})))


@_check("train.refuse.bfloat16", unless=("precision.bfloat16",))
def bfloat16(bench: TrainBench) -> None:
    """bfloat16 is refused at start."""
    _start(bench, "precision.bfloat16", dtype="bfloat16")


@_check("train.refuse.offload", unless=("memory.offload",))
def offload(bench: TrainBench) -> None:
    """A started engine has no `offload` and no `onload`."""
    with bench.engine() as engine:
        if any(hasattr(engine, name) for name in ("offload", "onload")):
            raise NotRefused("memory.offload")


@_check("train.refuse.background", unless=("checkpoint.background",), since=(1, 2))
def background(bench: TrainBench) -> None:
    """A started engine has neither `begin_state` nor `state_written` nor `finish_state`."""
    with bench.engine() as engine:
        if any(hasattr(engine, name) for name in ("begin_state", "state_written", "finish_state")):
            raise NotRefused("checkpoint.background")


LAYOUTS: dict[str, dict[str, int]] = {
    "data": {"d": 2},
    "tensor": {"t": 2},
    "pipeline": {"p": 2},
    "context": {"c": 2},
    "expert": {"d": 1, "e": 2},
}


@family("train.refuse.{axis}", LAYOUTS, unless=("parallel.{axis}",), **_check.keywords)
def axis(bench: TrainBench, layout: dict[str, int]) -> None:
    """A layout with {axis} parallelism is refused at start."""
    claim = next(f"parallel.{name}" for name, one in LAYOUTS.items() if one is layout)
    _start(bench, claim, layout=layout)
