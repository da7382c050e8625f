"""What every engine does beside its cases: other heads, other precision, states that go elsewhere, and what must fail.

Here is what a plain loop, more than two ranks or a look inside it takes. What the contract asks of any engine on two
ranks - shards of any size, exact states, frozen roles, steps that are not finite - the conformance suite checks.

Knows: which layouts are tried by default, and how a rank is left alone.
Does not know: engines, or what is right.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from areal_core.contract.batch import Batch
from areal_core.contract.train import ROUTED_EXPERTS, Head, Output
from areal_torch.optimizer import local
from areal_torch.testing.axes.plan import SMALL, Engine, Raising, Results, Runner, error_of, report, sent
from areal_torch.testing.batches import make_batch
from areal_torch.testing.memory_weights import MemorySink
from areal_torch.testing.objectives import PolicyGradient, ValueRegression

LEFT_S = 10.0
"""The timeout of groups in which ranks are left waiting."""
LAYOUTS: Mapping[str, Mapping[int, str]] = {
    "frozen_role": {1: "d1", 4: "d2t2"},
    "value_head": {1: "d1", 2: "d2 t2 c2 p2", 4: "d2t2 c2p2"},
    "half_precision": {1: "d1", 2: "d2 t2 c2 p2", 4: "d2t2 t2p2"},
    "away": {1: "qwen3/d1", 2: "qwen3/d2 qwen3/t2 qwen3/p2 moe/d2e2", 4: "moe/d2t2e2"},
    "resume": {2: "moe/d2e2", 4: "qwen3/d2t2 moe/d2t2e2"},
    "left": {2: "d2 t2 c2", 4: "d2t2"},
}
"""What is done -> number of ranks -> layouts, or models and layouts. A plan may name others."""


def _layouts(run: Runner, action: Callable[[Runner], Results]) -> list[str]:
    name = action.__name__
    return run.plan.beside.get(name, LAYOUTS[name]).get(run.world, "").split()


def _held_bytes(engine: Engine) -> int:
    """Return the memory of this rank's weights and moments."""
    trainer = engine.trainer
    tensors = [*trainer.state.parameters.values(), *trainer.optimizer.tensors]
    return sum(local(tensor).untyped_storage().nbytes() for tensor in tensors)


def frozen_role(run: Runner) -> Results:
    """A reference model: it scores, on parameters without gradient, and refuses to train."""
    out: Results = {}
    for layout in _layouts(run, frozen_role):
        engine = run.engine(layout, optimizer=None)
        scored = engine.forward(run.shard(), frozenset({Output.LOGPROBS, Output.ENTROPY}))
        sums = [float(scored.tokens[column].double().sum()) for column in ("logprobs", "entropy")]
        out[layout] = {"sums": sums, "data_rank": run.place["d"]}
        out[layout]["train"] = error_of(lambda: engine.train_step(run.shard(), PolicyGradient()))  # noqa: B023
        engine.close()
    return out


def value_head(run: Runner) -> Results:
    """A critic, on every axis a world of this size has."""
    out: Results = {}
    for layout in _layouts(run, value_head):
        engine = run.engine(layout, head=Head.VALUE)
        out[layout] = [report(engine, run.shard(), ValueRegression()) for _ in range(2)]
        engine.save_weights(run.folder / f"critic-{run.world}-{layout}")
        engine.close()
    return out


def half_precision(run: Runner) -> Results:
    """The computation in bfloat16, over masters in float32."""
    out: Results = {}
    for layout in _layouts(run, half_precision):
        engine = run.engine(layout, run.plan.halves.get(layout), dtype="bfloat16")
        out[layout] = report(engine, run.shard())
        moments = engine.trainer.state.optimizer.moments["exp_avg"]
        out["dtypes"] = sorted({str(moment.dtype) for moment in moments.values()})
        engine.close()
    return out


def away(run: Runner) -> Results:
    """Three steps left alone, and the same moved away and back around each; then a call in between."""
    out: Results = {}
    for name in _layouts(run, away):
        model, layout = name.split("/")
        found: list[Any] = []
        for moved in (False, True):
            engine = run.engine(layout, model=model)
            turns = []
            for _ in range(3):
                if moved:
                    engine.offload()
                    engine.offload()
                    engine.onload()
                turns.append(report(engine, run.shard()))
            scored = engine.forward(run.shard(), frozenset({Output.LOGPROBS})).tokens["logprobs"]
            found.append([turns, sent(engine, run.rank), float(scored.double().sum())])
            if not moved:
                engine.close()
        held = _held_bytes(engine)
        engine.offload()
        out[name] = {"equal": found[0] == found[1], "held": held, "left": _held_bytes(engine)}
        out[name]["call"] = error_of(lambda: engine.train_step(run.shard(), PolicyGradient()))  # noqa: B023
        engine.close()
        engine.close()
    return out


def resume(run: Runner) -> Results:
    """Save, step, go back, step again; then another model's state is refused."""
    out: Results = {}
    for name in _layouts(run, resume):
        model, layout = name.split("/")
        engine = run.engine(layout, model=model)
        path = run.folder / f"resume-{run.world}-{model}-{layout}"
        report(engine, run.shard())
        engine.version = 7
        engine.save_state(path)
        expected, after = report(engine, run.shard()), sent(engine, run.rank)
        engine.version = 9
        engine.load_state(path)
        out[name] = {"expected": expected, "actual": report(engine, run.shard())}
        out[name] |= {"same_weights": after == sent(engine, run.rank), "version": engine.version}
        engine.close()
        other = run.engine(f"d{run.world}", model="qwen2")
        before = sent(other, run.rank)
        out[name]["other_model"] = error_of(lambda: other.load_state(path))  # noqa: B023
        out[name]["unchanged"] = before == sent(other, run.rank)
        other.close()
    return out


def reshard(run: Runner) -> Results:
    """Load the state that another world saved in another layout, and go on."""
    out: Results = {}
    for source, layout, options in run.plan.reshards[run.world]:
        engine = run.engine(layout, options, model=source.split("-")[1])
        engine.load_state(run.folder / f"state-{source}")
        held = sent(engine, run.rank)
        out[f"{source} to {layout}"] = {"sent": held, "steps": [report(engine, run.shard()) for _ in range(2)]}
        engine.close()
    return out


def left(run: Runner) -> Results:
    """The last rank raises in the middle of a step, alone: the others wait for it in whatever collective comes next."""
    out: Results = {}
    for layout in _layouts(run, left):
        engine = run.engine(layout, timeout_s=LEFT_S)
        out[layout] = left_alone(engine, run.shard(), raises=run.rank == run.world - 1)
        engine.close()
    return out


def left_alone(engine: Engine, batch: Batch, *, raises: bool) -> Results:
    """Make a step in which one rank raises; tell how it ended here, and when. Nobody is gone before all have ended."""
    patience = timedelta(seconds=10 * LEFT_S)
    patient = dist.new_group(backend="gloo", timeout=patience)
    began, error = time.perf_counter(), ""
    try:
        engine.train_step(batch, Raising() if raises else PolicyGradient())
    except Exception as raised:  # the others' is whatever the collective library says
        error = type(raised).__name__
    seconds = time.perf_counter() - began
    dist.monitored_barrier(patient, timeout=patience)
    return {"raises": raises, "error": error, "seconds": seconds}


def refusals(run: Runner) -> Results:
    """What goes wrong on the last rank goes wrong on all, and changes nothing."""
    engine = run.engine({1: "d1", 2: "d2", 4: "d4"}[run.world], **SMALL)
    before = sent(engine, run.rank)
    good = run.shard()
    long_batch = make_batch([(20, 12)]).with_tokens(advantages=torch.zeros(32), returns=torch.zeros(32))
    last = run.rank == run.world - 1
    out: Results = {
        "too_long": error_of(lambda: engine.train_step(long_batch if last else good, PolicyGradient())),
        "wrong_head": error_of(lambda: engine.forward(good, frozenset({Output.VALUES}))),
    }
    sink = MemorySink(spoil=lambda name, tensor: tensor + 1 if name.endswith("norm.weight") else tensor)
    out["spoiled"] = error_of(lambda: engine.send_weights(sink if run.rank == 0 else None, 2))
    out["disk"] = error_of(lambda: engine.save_weights(Path("/proc/nowhere/model")))
    out["unchanged"] = before == sent(engine, run.rank)
    engine.close()
    engine.close()
    return out | (_refused_on_two(run) if run.world == 2 else {})


def _refused_on_two(run: Runner) -> Results:
    last = run.rank == run.world - 1
    out: Results = {}
    engine = run.engine("d2", model="moe")
    good = run.shard(recorded=True)
    unfit = good.tokens[ROUTED_EXPERTS].clone()
    unfit[1, 0] = 9
    bad = good.with_tokens(**{ROUTED_EXPERTS: unfit})
    out["routes"] = error_of(lambda: engine.train_step(bad if last else good, PolicyGradient()))
    engine.close()
    dense = run.engine("d2")
    out["no_experts"] = error_of(lambda: dense.train_step(good, PolicyGradient()))
    dense.close()
    for name, (layout, options, spec) in run.plan.refused.items():
        out[name] = error_of(lambda: run.engine(layout, options, **spec).close())  # noqa: B023
    missing = "nowhere" if last else "qwen3"
    out["no_model"] = error_of(lambda: run.engine("d2", model=missing).close())
    return out


BESIDE = (frozen_role, value_head, half_precision, away, resume, reshard, left, refusals)
