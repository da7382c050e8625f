"""What a run in half the bits may not narrow, told by relations: at the start, in the head, in its gradient.

Knows: two computations that give the same numbers where the head works in float32, and not where it is narrower.
Does not know: what an engine's layers compute in half; both computations do the same of it.
"""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from areal_conformance.benches.train import TrainBench, read_folder
from areal_conformance.check import Level, check
from areal_conformance.checks.train.budgets import DECAY, SPEC, held
from areal_conformance.checks.train.optional_candidates import ASKED, asking
from areal_conformance.checks.train.state import ends_equal
from areal_conformance.oracles.train_compare import close, same
from areal_conformance.oracles.train_optimizer import DESCENT, SCALED
from areal_conformance.outcome import expect
from areal_core.contract.train import CANDIDATES, Output
from areal_torch.testing.batches import VOCAB_SIZE
from areal_torch.testing.objectives import PolicyGradient

_check = partial(check, level=Level.SINGLE, law=6, spec=SPEC)
HEATS = (0.7, 1.9)
DIVIDED = 1e-5
"""How far a log-prob at a temperature may be from what those at 1 give: float32 errs by 1e-6, bfloat16 by 1e-3."""
ADDED = 8e-3
"""How far the head's gradient in pieces may be from that at once, as a part of it: bfloat16 rounds by 4e-3."""
PIECES = [(1, 49)] * 10


@_check("train.precision.begins", law=7)
def begins(bench: TrainBench) -> None:
    """Weights begin with every bit that the folder has, whatever dtype the run computes in."""
    for dtype, engine in held(bench, DECAY):
        folder = read_folder(bench.model(hidden=32, layers=1))
        same(f"weights of a run in {dtype} that did not step", bench.witnessed(engine), folder)


@_check("train.precision.folder")
def folder(bench: TrainBench) -> None:
    """A folder in half is trained as its numbers written in float32 are: weights do not keep the dtype they came in."""
    for half in (torch.bfloat16, torch.float16):
        ends = []
        for dtype in (half, torch.float32):
            path = cast(bench.model(hidden=32), bench.folder / f"{half}-as-{dtype}", half, dtype)
            with bench.engine(model=path, optimizer=SCALED) as engine:
                reports = [engine.train_step(bench.batch(seed=step), PolicyGradient()) for step in range(3)]
                ends.append((bench.witnessed(engine), reports))
        ends_equal(f"three steps from a folder in {half}, beside the same in float32", *ends)


def cast(model: Path, path: Path, half: torch.dtype, dtype: torch.dtype) -> Path:
    """Write a model to `path` with numbers of `half` in tensors of `dtype`; return `path`."""
    shutil.copytree(model, path)
    tensors = {name: tensor.to(half).to(dtype) for name, tensor in load_file(model / "model.safetensors").items()}
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "dtype": str(dtype).removeprefix("torch.")}))
    return path


@_check("train.precision.temperature", requires=("candidates",), since=(1, 4), law=1)
def temperature(bench: TrainBench) -> None:
    """Logits are divided by the temperature in float32, whatever the dtype: log-probs at 1 tell the others."""
    batch = bench.batch([(2, 19), (1, 24), (4, 9)])
    judged = batch.tokens["loss_mask"] & (batch.positions > 0)
    for dtype in bench.target.adapter.dtypes:
        model = bench.model(hidden=32)
        with bench.engine("candidates", model=model, dtype=dtype) as engine:
            every = engine.forward(asking(batch, VOCAB_SIZE), ASKED)
        named = batch.with_tokens(**{CANDIDATES: every.tokens[CANDIDATES].clamp(min=0)})
        told = every.tokens[Output.CANDIDATE_LOGPROBS].double()[judged]
        for heat in HEATS:
            with bench.engine("candidates", model=model, dtype=dtype, temperature=heat) as engine:
                got = engine.forward(named, ASKED).tokens[Output.CANDIDATE_LOGPROBS]
            what = f"in {dtype}, log-probs of all tokens at temperature {heat}, beside those at 1 divided by it"
            close(bench, what, got[judged], (told / heat).log_softmax(-1), atol=DIVIDED)


@_check("train.precision.pieces", requires=("precision.bfloat16",))
def pieces(bench: TrainBench) -> None:
    """In bfloat16 the head's gradient of many pieces of logits, each rounded, adds up in float32 to that of one."""
    whole = _head_gradient(bench)
    with bench.crossing("logits") as sizes:
        if not sizes:
            bench.notes.append("the adapter declares no threshold of logits")
            return
        parts = _head_gradient(bench)
    error = float((parts - whole).norm() / whole.norm())
    bench.numbers["error"] = error
    told = f"the head's gradient of many pieces is {error:.2g} of itself from that at once"
    expect(error <= ADDED, f"{told}, at most {ADDED:g}: pieces are added in bfloat16")


def _head_gradient(bench: TrainBench) -> Tensor:
    """Return the gradient of an untied head from one step in bfloat16, float64."""
    model = bench.model(hidden=32, tied=False)
    with bench.engine(model=model, dtype="bfloat16", optimizer=DESCENT) as engine:
        before = bench.witnessed(engine)["lm_head.weight"].double()
        engine.train_step(bench.batch(PIECES, advantages=1.0), PolicyGradient())
        return before - bench.witnessed(engine)["lm_head.weight"].double()
