"""Claim `candidates`: log-probs of tokens that were not taken, those a batch names or the most probable ones.

Knows: drawn candidates, what a row of -1 asks for, the gradient of an objective over them.
Does not know: what an objective makes of them.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from areal_conformance.benches.train import TrainBench
from areal_conformance.check import Level, check
from areal_conformance.checks.train.forward import shapes_drawn
from areal_conformance.checks.train.step_numbers import one_step
from areal_conformance.oracles.train import Oracle
from areal_conformance.oracles.train_compare import close
from areal_conformance.oracles.train_objectives import OfCandidates
from areal_conformance.outcome import expect, raises
from areal_conformance.zoo.folders import folder_of
from areal_conformance.zoo.sample import with_biased_heads
from areal_core.contract.batch import Batch
from areal_core.contract.errors import BatchError
from areal_core.contract.train import CANDIDATES, Output
from areal_torch.testing.batches import VOCAB_SIZE
from areal_torch.testing.objectives import PolicyGradient

_check = partial(check, level=Level.SINGLE, spec="train#candidates", requires=("candidates",), since=(1, 4))
ASKED = frozenset({Output.LOGPROBS, Output.CANDIDATE_LOGPROBS})
_ATOL = 5e-5


def naming(batch: Batch, count: int, seed: int = 0) -> Batch:
    """Return the batch with `count` drawn candidates at each token, the one that was taken among them now and then."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(0, VOCAB_SIZE, (batch.num_tokens, count), generator=generator, dtype=torch.int32)
    taken = torch.rand(batch.num_tokens, generator=generator) < 0.5
    drawn[taken, -1] = batch.tokens["input_ids"][taken].to(torch.int32)
    return batch.with_tokens(**{CANDIDATES: drawn})


def asking(batch: Batch, count: int) -> Batch:
    """Return the batch with a row of -1 at each token."""
    return batch.with_tokens(**{CANDIDATES: torch.full((batch.num_tokens, count), -1, dtype=torch.int32)})


@_check("train.candidates.given", law=6)
def given(bench: TrainBench) -> None:
    """The log-prob of each token that a row names is the model's, at any temperature, in any order, twice if twice."""
    model = bench.model(hidden=32)
    for temperature, count, budget in ((1.0, 1, 16384), (0.6, 5, 12), (1.7, 3, 25)):
        batch = naming(bench.batch([*shapes_drawn(count, 6), "0101", "0"], seed=count), count, seed=count)
        wanted = Oracle(model, temperature=temperature).columns(batch)
        fields = {"temperature": temperature, "max_tokens_per_microbatch": budget}
        with bench.engine("candidates", model=model, **fields) as engine:
            got = engine.forward(batch, ASKED)
        for name in sorted(ASKED):
            close(bench, f"{name} of {count} candidates at {temperature}", got.tokens[name], wanted[name], atol=_ATOL)
        expect(
            torch.equal(got.tokens[CANDIDATES], batch.tokens[CANDIDATES]), "tokens that were named came back changed"
        )


@_check("train.candidates.most_probable", law=6)
def most_probable(bench: TrainBench) -> None:
    """A row of -1 on the mask comes back with the most probable tokens, the first first; other rows as they were."""
    cases = [(bench.model(hidden=32), count, budget) for count, budget in ((1, 16384), (4, 13), (VOCAB_SIZE, 30))]
    cases += [(folder_of(drawn), 5, 30) for drawn in with_biased_heads(bench.target)]
    for model, count, budget in cases:
        oracle = Oracle(model)
        batch = asking(bench.batch([*shapes_drawn(7 + count, 6), "00110"], seed=count), count)
        kept = naming(batch, count, seed=count).tokens[CANDIDATES]
        some = torch.arange(batch.num_tokens) % 3 == 0
        batch = batch.with_tokens(**{CANDIDATES: torch.where(some[:, None], kept, batch.tokens[CANDIDATES])})
        given = batch.tokens[CANDIDATES].clone()
        with bench.engine("candidates", model=model, max_tokens_per_microbatch=budget) as engine:
            got = engine.forward(batch, ASKED)
        expect(torch.equal(batch.tokens[CANDIDATES], given), "what was found was written into the batch that was given")
        found = got.tokens[CANDIDATES]
        expect(found.dtype == torch.int32, f"the candidates found are {found.dtype}, expected torch.int32")
        free = batch.tokens["loss_mask"] & (batch.positions > 0) & ~some
        same = torch.equal(found[~free], batch.tokens[CANDIDATES][~free])
        expect(same, "a row that names its tokens, or is off the mask, came back changed")
        _is_most_probable(bench, oracle, batch, found, free)
        judged = oracle.columns(batch.with_tokens(**{CANDIDATES: found}))[Output.CANDIDATE_LOGPROBS]
        what = f"log-probs of the {count} most probable tokens"
        close(bench, what, got.tokens[Output.CANDIDATE_LOGPROBS], judged, atol=_ATOL)


def _is_most_probable(bench: TrainBench, oracle: Oracle, batch: Batch, found: Tensor, free: Tensor) -> None:
    """Compare by log-prob: of tokens that are equally probable within rounding any may come first."""
    count = found.shape[1]
    best = oracle.most_probable(batch, count).to(torch.int32)
    for row in free.nonzero()[:, 0].tolist():
        names = found[row].tolist()
        expect(len(set(names)) == count and min(names) >= 0, f"the most probable tokens at {row} are {names[:8]}")
    for ids, what in ((found, "found"), (best, "wanted")):
        batch = batch.with_tokens(**{what: torch.where(free[:, None], ids, 0)})
    got, wanted = (
        oracle.columns(batch.with_tokens(**{CANDIDATES: batch.tokens[what]}))[Output.CANDIDATE_LOGPROBS]
        for what in ("found", "wanted")
    )
    close(bench, f"the {count} highest log-probs, in order", got[free], wanted[free], atol=_ATOL)


@_check("train.candidates.gradient", law=6)
def gradient(bench: TrainBench) -> None:
    """A step on an objective over candidates, with entropy and without, has the gradient of plain autograd."""
    for kind in bench.target.adapter.models:
        batch = naming(bench.batch(), 4, seed=1)
        one_step(bench, bench.model(kind=kind), batch, OfCandidates())
    for temperature, budget in ((0.7, 12), (1.3, 25)):
        batch = naming(bench.batch([*shapes_drawn(budget, 6), "01"], seed=budget), 3, seed=budget)
        fields = {"temperature": temperature, "max_tokens_per_microbatch": budget}
        one_step(bench, bench.model(hidden=32), batch, OfCandidates(own=0.0), **fields)
        one_step(bench, bench.model(hidden=32), batch, OfCandidates(entropy=0.5), **fields)


@_check("train.candidates.off_mask", law=6)
def off_mask(bench: TrainBench) -> None:
    """Off the mask nothing is judged, and what stands there, -1 or no token at all, is nobody's business."""
    batch = naming(bench.batch([*shapes_drawn(3, 5), "0010"]), 3)
    mask = batch.tokens["loss_mask"]
    with bench.engine("candidates") as engine:
        for odd in (-1, 10**9, -7):
            there = torch.where(mask[:, None], batch.tokens[CANDIDATES], odd)
            got = engine.forward(batch.with_tokens(**{CANDIDATES: there}), ASKED)
            expect(
                not bool(got.tokens[Output.CANDIDATE_LOGPROBS][~mask].any()), f"with {odd} off the mask: judged there"
            )
            expect(torch.equal(got.tokens[CANDIDATES], there), f"with {odd} off the mask the column came back changed")
            told = engine.train_step(batch.with_tokens(**{CANDIDATES: there}), OfCandidates())
            expect(told.stepped, f"with {odd} off the mask the step was not made")


@_check("train.candidates.refused", law=8)
def refused(bench: TrainBench) -> None:
    """What names no tokens is refused before anything is computed, and the next call is answered."""
    batch = naming(bench.batch(), 3)
    there, (first, *_) = batch.tokens[CANDIDATES], batch.tokens["loss_mask"].nonzero()[1].tolist()
    odd_ids = (VOCAB_SIZE, VOCAB_SIZE + 1000, -2)
    unfit = {f"a candidate {odd}": there.clone() for odd in odd_ids}
    for odd, column in zip(odd_ids, unfit.values(), strict=True):
        column[first, 1] = odd
    unfit["a row that is -1 in part"] = there.clone()
    unfit["a row that is -1 in part"][first, 1] = -1
    unfit["int64"], unfit["one column"] = there.long(), there[:, 0].contiguous()
    with bench.engine("candidates") as engine:
        for what, column in unfit.items():
            bad = batch.with_tokens(**{CANDIDATES: column})
            raises(BatchError, f"forward with {what}", partial(engine.forward, bad, ASKED))
            raises(BatchError, f"train_step with {what}", partial(engine.train_step, bad, OfCandidates()))
        raises(BatchError, "forward without the column", partial(engine.forward, bench.batch(), ASKED))
        free = asking(batch, 3)
        raises(BatchError, "train_step with rows of -1", partial(engine.train_step, free, OfCandidates()))
        told = engine.train_step(batch, OfCandidates())
        expect(told.stepped, "the step after refusals was not made")
        told = engine.train_step(bench.batch(), PolicyGradient())
        expect(told.stepped, "a step without candidates was not made")
