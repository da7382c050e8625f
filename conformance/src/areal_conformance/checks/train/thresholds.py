"""What outgrows a buffer computes the same: both sides of every threshold that an adapter declares, or real work meets.

Knows: sizes around thresholds (`Adapter.thresholds`); that one micro-batch and many of the same tokens train alike.
Does not know: what a backend does beyond a threshold.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from areal_conformance.benches.models import behind_a_hole, several_files
from areal_conformance.benches.train import Shape, TrainBench, read_folder
from areal_conformance.check import Level, check
from areal_conformance.checks.train.step_numbers import one_step
from areal_conformance.oracles.train import Oracle
from areal_conformance.oracles.train_compare import close, number, same, scored, weights_close
from areal_conformance.oracles.train_objectives import Quadratic
from areal_conformance.oracles.train_optimizer import DESCENT
from areal_conformance.outcome import expect
from areal_conformance.zoo.folders import folder_of
from areal_conformance.zoo.sample import with_biased_heads
from areal_conformance.zoo.traits import VOCABULARY
from areal_core.contract.batch import Batch
from areal_core.contract.errors import ModelError
from areal_core.contract.train import Head, Output
from areal_torch.testing.objectives import PolicyGradient
from areal_torch.testing.sparse_files import keeps_holes

rule = partial(check, level=Level.SINGLE, law=6, spec="train#areal_core.contract.train.TrainEngine.train_step")

WIDE = 70_001
"""Ids of a real vocabulary: more than 65,536, and no power of two divides them."""
NARROW: dict[str, Any] = {"hidden": 16, "layers": 1, "heads": 2, "kv_heads": 1}
"""Arguments of `make_tiny_model`: all but the vocabulary is small. Any: each has its own type."""
_VOCABULARY = 64
_LOGITS = 1 << 25
"""Logits of one micro-batch, 128 MiB of float32: more than anybody wants to keep."""
_PACK = 4096
_PIECE = 40
"""Tokens of a micro-batch that is below every threshold."""


def wide_ids(batch: Batch, seed: int = 0) -> Batch:
    """Return the batch with ids from all over a wide vocabulary."""
    drawn = torch.randint(3, WIDE, (batch.num_tokens,), generator=torch.Generator().manual_seed(seed))
    drawn[1::3] = torch.arange(len(drawn[1::3])) % (WIDE - 65_530) + 65_530  # both sides of 65,536
    return batch.with_tokens(input_ids=drawn)


def shapes_of(tokens: int, longest: int) -> list[Shape]:
    """Return sequences of so many tokens together, none longer than `longest`, of two tokens at least."""
    whole, rest = divmod(tokens - 2, longest)
    lengths = [longest] * whole + [rest + 2]
    return [(1, length - 1) for length in lengths]


@rule("train.threshold.logits")
def logits(bench: TrainBench) -> None:
    """Log-probs, entropy and gradient are right with as many logits as fit a chunk, one row less, one more, twice.

    With a bias on the head as well, whose gradient is added up over chunks too.
    """
    model = bench.model(hidden=32, tied=False)
    biased = with_biased_heads(bench.target)
    with bench.crossing("logits") as sizes:
        if not sizes:
            bench.notes.append("the adapter declares no threshold of logits")
        for place, rows in enumerate(sorted({max(1, size // _VOCABULARY) for size in sizes} | {3 for _ in sizes[:1]})):
            temperature = (1.0, 0.7, 1.3)[place % 3]
            batch = bench.batch([(1, rows)], seed=place)
            with bench.engine(model=model, temperature=temperature) as engine:
                oracle = Oracle(model, temperature=temperature)
                scored(bench, f"of {rows} rows of logits", engine, oracle, batch, atol=5e-5)
            one_step(bench, model, batch, PolicyGradient(entropy=(0.3, 0.0)[place % 2]), temperature=temperature)
            one_step(bench, model, bench.batch([(2, rows), (1, 2)], seed=place), Quadratic(), temperature=temperature)
        for drawn in biased if sizes else ():
            rows = max(sizes) // VOCABULARY[drawn["vocabulary"]] + 2
            batch, pull = bench.batch([(1, rows), (1, 3)]), PolicyGradient(entropy=0.3)
            one_step(bench, folder_of(drawn), batch, pull, temperature=0.7)


@rule("train.threshold.vocabulary", deadline_s=120.0)
def vocabulary(bench: TrainBench) -> None:
    """A real vocabulary trains in one micro-batch as in many, is sent, saved, restored: ids above 65,535 as below."""
    model = bench.model(**NARROW, vocab_size=WIDE)
    rows = _LOGITS // WIDE + 1
    batch = wide_ids(bench.batch(shapes_of(rows + 30, 60)))
    spans = batch.select([0, 1])
    with bench.engine(model=model, max_tokens_per_microbatch=_PIECE * 2) as engine, torch.no_grad():
        scored(bench, "of two sequences over a wide vocabulary", engine, Oracle(model), spans, atol=5e-5)
    folder = bench.folder / "state"
    whole = _stepped(bench, model, batch, rows + 30, folder)
    in_pieces = _stepped(bench, model, batch, 60)
    _alike(bench, f"{rows + 30} tokens of a vocabulary of {WIDE}", whole, in_pieces)
    with bench.engine(model=model, optimizer=DESCENT) as engine:
        engine.load_state(folder)
        same(f"weights of a vocabulary of {WIDE}, restored", bench.witnessed(engine), whole.weights)
        same(f"weights of a vocabulary of {WIDE}, sent", bench.sent(engine), whole.weights)
        engine.save_weights(bench.folder / "saved")
    same(f"weights of a vocabulary of {WIDE}, saved", read_folder(bench.folder / "saved"), whole.weights)


@rule("train.threshold.pack", deadline_s=120.0)
def pack(bench: TrainBench) -> None:
    """Thousands of tokens in one micro-batch, and exactly as many as one may have, train as in many micro-batches."""
    model = bench.model(hidden=32, layers=1, max_position=4096)
    long = bench.batch([(1900, 400), (2, 3)], seed=7)  # positions that half precision cannot tell apart
    with bench.engine(model=model, max_tokens_per_microbatch=_PACK) as engine, torch.no_grad():
        scored(bench, "of a sequence of 2,300 tokens", engine, Oracle(model), long, atol=5e-5)
    with bench.crossing("tokens", _PACK) as sizes:
        for size in sizes:
            longest = max(8, min(500, size // 3))
            batch = bench.batch(shapes_of(size, longest), seed=size)
            whole = _stepped(bench, model, batch, size)
            expect(whole.num_microbatches == 1, f"{size} tokens with room for {size} were cut into several")
            _alike(bench, f"{size} tokens", whole, _stepped(bench, model, batch, longest + 2))


@rule("train.threshold.files", law=7, spec="train#areal_core.contract.train.TrainSpec")
def files(bench: TrainBench) -> None:
    """A folder whose weights lie in several files is the same model as one file, whichever tensors lie together."""
    for kind in bench.target.adapter.models:
        for tied in (True, False):
            model = bench.model(kind=kind, tied=tied)
            folder = several_files(model, bench.folder / f"{kind}-{tied}", 3)
            with bench.engine(model=folder) as engine:
                same(f"{kind}, weights read from three files", bench.witnessed(engine), read_folder(model))
                same(f"{kind}, weights of three files, sent", bench.sent(engine), read_folder(model))


@rule("train.threshold.offsets", law=7, spec="train#areal_core.contract.train.TrainSpec")
def offsets(bench: TrainBench) -> None:
    """Weights beyond four gibibytes of their file are read from there: behind the head of another role, for one.

    The file is sparse and takes a few pages. A folder with a head that its role has no use for may be refused.
    """
    if not keeps_holes(bench.folder):
        bench.notes.append(f"files in {bench.folder} keep no holes: no offset beyond four gibibytes was tried")
        return
    heads = {Head.CAUSAL_LM: (True, "score.weight"), Head.VALUE: (False, "lm_head.weight")}
    if not bench.target.claimed("head.value"):
        del heads[Head.VALUE]
    for head, (tied, first) in heads.items():
        model = bench.model(tied=tied)
        wanted = {name: tensor for name, tensor in read_folder(model).items() if name != first}
        folder = behind_a_hole(model, bench.folder / head.value, first)
        try:
            with bench.engine(model=folder, head=head) as engine:
                held = bench.witnessed(engine)
                found = {name: tensor for name, tensor in held.items() if name in wanted}
                same(f"weights of the head {head.value}, behind four gibibytes of {first}", found, wanted)
        except ModelError as error:
            bench.notes.append(f"a folder that also holds {first} is refused for the head {head.value}: {error}")


@rule("train.threshold.saved", law=7, spec="train#areal_core.contract.train.TrainEngine.save_weights")
def saved(bench: TrainBench) -> None:
    """A folder saved in several files loads in transformers and starts an engine, with the weights that are sent."""
    with bench.crossing("saved") as sizes:
        if not sizes:
            bench.notes.append("the adapter declares no threshold of saved bytes")
            return
        for kind in bench.target.adapter.models:
            folder, batch = bench.folder / kind, bench.batch(seed=3)
            with bench.engine(model=bench.model(kind=kind, tied=kind[-1] != "3")) as engine:
                engine.train_step(bench.batch(), PolicyGradient())
                engine.save_weights(folder)
                sent, held = bench.sent(engine), bench.witnessed(engine)
                scores = engine.forward(batch, frozenset({Output.LOGPROBS})).tokens["logprobs"]
            files = sorted(folder.glob("*.safetensors"))
            _index_says(folder, sent)
            told = f"{kind} was saved in {len(files)} file beyond {min(sizes)} bytes: the threshold is not crossed"
            expect(len(files) > 1, told)
            same(f"tensors of {kind} saved in {len(files)} files, and those sent", read_folder(folder), sent)
            wanted = Oracle(folder).columns(batch)[Output.LOGPROBS]
            close(bench, f"log-probs in transformers of {kind} in {len(files)} files", scores, wanted, atol=1e-4)
            with bench.engine(model=folder) as engine:
                same(f"weights of {kind} started from {len(files)} files", bench.witnessed(engine), held)


def _index_says(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Expect of an index, if there is one, the bytes of all tensors and the file of each."""
    for path in folder.glob("*.index.json"):
        index, size = json.loads(path.read_text()), sum(tensor.nbytes for tensor in tensors.values())
        total = index.get("metadata", {}).get("total_size", size)
        expect(total == size, f"{path.name} tells {total} bytes, the tensors have {size}")
        lacking = sorted({*tensors} - {*index["weight_map"]})
        expect(not lacking, f"{path.name} names no file of {', '.join(lacking[:4])}")


class _Step:
    """What one step left behind."""

    def __init__(self, loss: float, norm: float, num_microbatches: int, weights: dict[str, Tensor]) -> None:
        self.loss, self.norm, self.num_microbatches, self.weights = loss, norm, num_microbatches, weights


def _stepped(bench: TrainBench, model: Path, batch: Batch, budget: int, state: Path | None = None) -> _Step:
    """Make one step with that budget of tokens a micro-batch; save the state into a folder."""
    with bench.engine(model=model, optimizer=DESCENT, max_tokens_per_microbatch=budget) as engine:
        report = engine.train_step(batch, PolicyGradient())
        if state is not None:
            engine.save_state(state)
        return _Step(report.loss, report.grad_norm, report.num_microbatches, bench.witnessed(engine))


def _alike(bench: TrainBench, what: str, whole: _Step, in_pieces: _Step) -> None:
    """Expect a step to be that of the same tokens in pieces."""
    number(bench, f"the loss of {what} at once", whole.loss, in_pieces.loss, atol=1e-5, rtol=1e-4)
    number(bench, f"the gradient norm of {what} at once", whole.norm, in_pieces.norm, atol=1e-6, rtol=2e-4)
    told = f"weights minus gradient of {what} at once, beside many micro-batches"
    weights_close(bench, told, whole.weights, in_pieces.weights, atol=1e-6 + 2e-5 * whole.norm)
