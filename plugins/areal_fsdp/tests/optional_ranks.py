"""Train adapters and models that see images: `optional_ranks.py RANK WORLD FOLDER`, in one start.

Reads FOLDER/MODEL/ and FOLDER/oracle-NAME.safetensors, writes FOLDER/optional-WORLD-RANK.json; `test_optional.py`
makes the one and reads the other.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from attrs import frozen
from ranks import COMPILED, LAYERS, MICRO, PIECES, PLAN
from safetensors.torch import load_file
from torch import Tensor

from areal_core.contract.batch import Batch
from areal_core.contract.train import LoraSpec, OptimizerSpec, Output
from areal_torch import lora
from areal_torch.optimizer import local
from areal_torch.pieces import box_of
from areal_torch.testing.axes.oracle import full_batch
from areal_torch.testing.axes.plan import ROWS, Case, Runner, copies, error_of, report, sent
from areal_torch.testing.batches import make_episode
from areal_torch.testing.images import make_seeing_trajectory
from areal_torch.trainer import Trainer

ADAPTER = LoraSpec(rank=3, alpha=6.0, targets=("q_proj", "v_proj", "o_proj", "up_proj", "down_proj"))
SMOOTH = OptimizerSpec(lr=1e-2, weight_decay=0.1, eps=1e-2)
"""Steps that follow small gradients little, so that their rounding stays small too."""
SCORES = frozenset({Output.LOGPROBS, Output.ENTROPY})
SEEN = {"max_tokens_per_microbatch": 24}


@frozen(kw_only=True)
class Program:
    """One ability in one layout. `oracle` names the plain loop it must equal: adapter, biases or images."""

    oracle: str
    case: Case

    @property
    def spec(self) -> dict[str, Any]:
        """Return what the spec says besides. Any: its fields."""
        return {**self.case.spec, "optimizer": SMOOTH, **({} if self.oracle == "images" else {"lora": ADAPTER})}


def _adapter(layout: str, options: Mapping[str, Any] = LAYERS, oracle: str = "adapter", **spec: int) -> Program:
    model = "qwen3" if oracle == "adapter" else oracle
    return Program(oracle=oracle, case=Case(layout=layout, model=model, options=options, spec=spec))


def _images(layout: str, options: Mapping[str, Any] = LAYERS, **spec: int) -> Program:
    return Program(oracle="images", case=Case(layout=layout, model="seeing", options=options, spec=spec))


PROGRAMS: Mapping[int, Mapping[str, Program]] = {
    1: {"adapter d1": _adapter("d1"), "images d1": _images("d1")},
    2: {
        "adapter d2": _adapter("d2", {}),
        "adapter d2 in pieces": _adapter("d2", MICRO, **PIECES),
        "adapter c2": _adapter("c2"),
        "adapter t2": _adapter("t2"),
        "adapter t2 in pieces": _adapter("t2", MICRO, **PIECES),
        "adapter beside biases t2": _adapter("t2", oracle="biases"),
        "images d2": _images("d2", {}),
        "images d2 in pieces": _images("d2", MICRO, **SEEN),
        "images c2": _images("c2"),
        "images t2": _images("t2"),
        "images compiled d2": _images("d2", COMPILED, **SEEN),
    },
    4: {
        "adapter d2t2": _adapter("d2t2"),
        "adapter c2t2": _adapter("c2t2"),
        "images d2c2": _images("d2c2"),
        "images d2t2": _images("d2t2", MICRO, **SEEN),
    },
}
RELAYS = {1: ["d1"], 2: ["d2", "t2", "c2"], 4: ["d2t2"]}
SHOWN: tuple[tuple[tuple[int, int], ...], ...] = (((2, 3), (1, 1)), (), (), ((1, 2),), (), (), (), ((3, 1),))
"""Sizes of the images of each sequence. The second of two data ranks sees none."""


def seeing() -> Batch:
    """Return eight sequences, some with images, with advantages."""
    rows = [make_seeing_trajectory(sizes, 2 + number, seed=number) for number, sizes in enumerate(SHOWN)]
    batch = Batch.pack([make_episode(row, group=f"g{number}") for number, row in enumerate(rows)])
    return batch.with_tokens(advantages=torch.randn(batch.num_tokens, generator=torch.Generator().manual_seed(3)))


def batch_of(oracle: str) -> Batch:
    """Return what a plain loop trains on."""
    return seeing() if oracle == "images" else full_batch()


def train(run: Runner, program: Program) -> dict[str, Any]:
    """Three steps; the first moments after two tell every gradient: at first B is zero, and so is A's."""
    engine = run.engine(program.case.layout, program.case.options, model=program.case.model, **program.spec)
    trainer = engine.trainer
    batch = batch_of(program.oracle).select(ROWS[run.layout.get("d", 1)][run.place["d"]])
    oracle = load_file(run.folder / f"oracle-{program.oracle}.safetensors")
    out: dict[str, Any] = {"steps": [report(engine, batch), report(engine, batch)]}
    out["moments"] = gaps(trainer, trainer.optimizer.moments["exp_avg"], oracle, "exp_avg")
    out["steps"].append(report(engine, batch))
    held = {name: local(parameter) for name, parameter in trainer.state.parameters.items()}
    out |= {"weights": gaps(trainer, held, oracle, "weights"), "copies": copies(engine)}
    out["parameters"] = run.info.num_parameters if run.info else 0
    out["scored"] = float(engine.forward(batch, SCORES).tokens["logprobs"].double().sum())
    engine.close()
    return out


def gaps(trainer: Trainer, held: Mapping[str, Tensor], oracle: Mapping[str, Tensor], kind: str) -> dict[str, float]:
    """Return how far this rank's part of each tensor is from the plain loop's, against the largest entry of it."""
    found = {}
    for name, parameter in trainer.state.parameters.items():
        whole, part = oracle[f"{kind}/{name}"], held[name]
        box = box_of(parameter)
        assert box.shape == tuple(whole.shape), name
        own = whole[tuple(slice(at, at + size) for at, size in zip(box.offset, part.shape, strict=True))]
        found[name] = float((own - part).abs().max() / whole.abs().max()) if part.numel() else 0.0
    return found


def relay(run: Runner) -> dict[str, Any]:
    """Go on from the adapter that the layout before has left, one step each, and write a folder."""
    out: dict[str, Any] = {}
    for number, layout in enumerate(RELAYS[run.world]):
        engine = run.engine(layout, lora=ADAPTER, seed=run.world + number)
        saved = run.folder / "relay-adapter"
        if saved.exists():
            engine.load_state(saved)
        before, step = sent(engine, run.rank), report(engine, run.shard())
        out[layout] = {"before": before, "step": step, "after": sent(engine, run.rank)}
        engine.save_state(saved)
        engine.save_weights(run.folder / f"adapted-{layout}")
        out[layout]["kept"] = sent(engine, run.rank) == out[layout]["after"]
        engine.close()
    return out


def frozen_adapter(run: Runner, layout: str) -> dict[str, Any]:
    """A role without an optimizer and with an adapter scores as the base model does; nothing has a gradient."""
    sums = []
    for spec in ({"lora": ADAPTER}, {}):
        engine = run.engine(layout, optimizer=None, **spec)
        assert not any(parameter.requires_grad for parameter in engine.trainer.model.root.parameters())
        sums.append(float(engine.forward(run.shard(), SCORES).tokens["logprobs"].double().sum()))
        engine.close()
    return {"sums": sums}


def cut(run: Runner) -> dict[str, Any]:
    """What t2 leaves of an adapter on a rank."""
    engine = run.engine("t2", lora=ADAPTER)
    found = lora.adapter_parameters(engine.trainer.model.root.hf)
    engine.close()
    return {name: list(local(parameter).shape) for name, parameter in found.items()}


def refusals(run: Runner) -> dict[str, Any]:
    """What cannot have an adapter, and the state of a model without one, told on every rank."""
    unknown = LoraSpec(rank=2, alpha=4.0, targets=("query",))
    mixed = LoraSpec(rank=2, alpha=4.0, targets=("q_proj", "embed_tokens"))
    out = {
        "no such layer": error_of(lambda: run.engine("d2", lora=unknown)),
        "no linear layer": error_of(lambda: run.engine("d2", lora=mixed)),
    }
    plain = run.engine("d2")
    plain.save_state(run.folder / "relay-whole")
    plain.close()
    engine = run.engine("d2", lora=ADAPTER)
    out["state of another"] = error_of(lambda: engine.load_state(run.folder / "relay-whole"))
    engine.close()
    return out


def main() -> None:
    rank, world, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    only = sys.argv[4:]
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", message="The .grad attribute")  # Dynamo, of what FSDP gathered
    torch.set_num_threads(1)
    run = Runner(PLAN, rank, world, folder)
    programs: dict[str, Any] = {name: lambda each=each: train(run, each) for name, each in PROGRAMS[world].items()}
    programs["relay"] = lambda: relay(run)
    if world == 2:
        programs |= {f"frozen {layout}": lambda layout=layout: frozen_adapter(run, layout) for layout in ("d2", "t2")}
        programs |= {"cut": lambda: cut(run), "refusals": lambda: refusals(run)}
    results = {}
    for name, program in programs.items():
        if only and name not in only:
            continue
        print(name, flush=True)
        results[name] = program()
        (folder / f"optional-{world}-{rank}.json").write_text(json.dumps(results))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
