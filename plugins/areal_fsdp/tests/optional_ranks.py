"""Train adapters, on recorded routes, on images, moved away: `optional_ranks.py RANK WORLD FOLDER`, in one start.

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
from layout_ranks import COMPILED, MICRO, ROWS, Case, Runner, copies, gaps
from ranks import error_of, full_batch, report, weights
from safetensors.torch import load_file

from areal_core.contract.batch import Batch
from areal_core.contract.train import ROUTED_EXPERTS, LoraSpec, OptimizerSpec, Output
from areal_fsdp.config import FSDPConfig
from areal_fsdp.engine import FSDPEngine, ShardedModel
from areal_torch import lora
from areal_torch.optimizer import local
from areal_torch.testing.batches import make_episode
from areal_torch.testing.images import make_seeing_trajectory
from areal_torch.testing.objectives import PolicyGradient
from areal_torch.trainer import started

ADAPTER = LoraSpec(rank=3, alpha=6.0, targets=("q_proj", "v_proj", "o_proj", "up_proj", "down_proj"))
SMOOTH = OptimizerSpec(lr=1e-2, weight_decay=0.1, eps=1e-2)
"""Steps that follow small gradients little, so that their rounding stays small too."""
LAYERS = FSDPConfig(wrap="layer")
SCORES = frozenset({Output.LOGPROBS, Output.ENTROPY})


@frozen(kw_only=True)
class Program:
    """One ability in one layout. `oracle` names the plain loop it must equal: adapter, biases, routes, images."""

    oracle: str
    case: Case

    @property
    def spec(self) -> dict[str, Any]:
        """Return what the spec says besides. Any: its fields."""
        return {"optimizer": SMOOTH, **({} if self.oracle in ("routes", "images") else {"lora": ADAPTER})}


def _adapter(layout: str, config: FSDPConfig = LAYERS, max_tokens: int = 16384, oracle: str = "adapter") -> Program:
    model = "qwen3" if oracle == "adapter" else oracle
    return Program(oracle=oracle, case=Case(layout=layout, model=model, config=config, max_tokens=max_tokens))


def _routes(layout: str, config: FSDPConfig = LAYERS, max_tokens: int = 16384) -> Program:
    return Program(oracle="routes", case=Case(layout=layout, model="experts", config=config, max_tokens=max_tokens))


def _images(layout: str, config: FSDPConfig = LAYERS, max_tokens: int = 16384) -> Program:
    return Program(oracle="images", case=Case(layout=layout, model="seeing", config=config, max_tokens=max_tokens))


PROGRAMS: Mapping[int, Mapping[str, Program]] = {
    1: {"adapter d1": _adapter("d1"), "routes d1": _routes("d1"), "images d1": _images("d1")},
    2: {
        "adapter d2": _adapter("d2", FSDPConfig()),
        "adapter d2 in pieces": _adapter("d2", MICRO, 15),
        "adapter c2": _adapter("c2"),
        "adapter t2": _adapter("t2"),
        "adapter t2 in pieces": _adapter("t2", MICRO, 15),
        "adapter beside biases t2": _adapter("t2", oracle="biases"),
        "routes d2": _routes("d2", FSDPConfig()),
        "routes d2 in pieces": _routes("d2", MICRO, 15),
        "routes c2": _routes("c2"),
        "routes t2": _routes("t2"),
        "routes compiled d2": _routes("d2", COMPILED, 20),
        "images d2": _images("d2", FSDPConfig()),
        "images d2 in pieces": _images("d2", MICRO, 24),
        "images c2": _images("c2"),
        "images t2": _images("t2"),
        "images compiled d2": _images("d2", COMPILED, 24),
    },
    4: {
        "adapter d2t2": _adapter("d2t2"),
        "adapter c2t2": _adapter("c2t2"),
        "routes d2t2": _routes("d2t2"),
        "images d2c2": _images("d2c2"),
        "images d2t2": _images("d2t2", MICRO, 24),
    },
}
RELAYS = {1: ["d1"], 2: ["d2", "t2", "c2"], 4: ["d2t2"]}
AWAY = {1: ["d1"], 2: ["d2", "t2"], 4: ["d2t2"]}


def routed(batch: Batch) -> Batch:
    """Return the batch with different experts drawn for every token and layer, and none for some tokens."""
    noise = torch.rand(batch.num_tokens, 2, 4, generator=torch.Generator().manual_seed(4))
    routes = noise.argsort(-1)[..., :2].to(torch.int32).contiguous()
    routes[::5] = -1
    return batch.with_tokens(**{ROUTED_EXPERTS: routes})


SHOWN: tuple[tuple[tuple[int, int], ...], ...] = (((2, 3), (1, 1)), (), (), ((1, 2),), (), (), (), ((3, 1),))
"""Sizes of the images of each sequence. The second of two data ranks sees none."""


def seeing() -> Batch:
    """Return eight sequences, some with images, with advantages."""
    rows = [make_seeing_trajectory(sizes, 2 + number, seed=number) for number, sizes in enumerate(SHOWN)]
    batch = Batch.pack([make_episode(row, group=f"g{number}") for number, row in enumerate(rows)])
    return batch.with_tokens(advantages=torch.randn(batch.num_tokens, generator=torch.Generator().manual_seed(3)))


def batch_of(oracle: str) -> Batch:
    """Return what a plain loop trains on."""
    return {"routes": lambda: routed(full_batch()), "images": seeing}.get(oracle, full_batch)()


def train(run: Runner, program: Program) -> dict[str, Any]:
    """Three steps; the first moments after two tell every gradient: at first B is zero, and so is A's."""
    if program.case.config.compile:
        warnings.simplefilter("ignore")  # dynamo looks at attributes that warn when looked at
    engine = run.engine(program.case, **program.spec)
    trainer = started(engine.trainer)
    batch = batch_of(program.oracle).select(ROWS[run.info.data_size][run.info.data_rank])
    oracle = load_file(run.folder / f"oracle-{program.oracle}.safetensors")
    out: dict[str, Any] = {"steps": [report(engine, batch), report(engine, batch)]}
    assert trainer.optimizer is not None
    out["moments"] = gaps(trainer, trainer.optimizer.moments["exp_avg"], oracle, "exp_avg")
    out["steps"].append(report(engine, batch))
    held = {name: local(parameter) for name, parameter in trainer.state.parameters.items()}
    out |= {"weights": gaps(trainer, held, oracle, "weights"), "copies": copies(trainer)}
    out["parameters"] = run.info.num_parameters
    scored = engine.forward(batch, SCORES)
    out["scored"] = float(scored.tokens["logprobs"].double().sum())
    out["kept"] = program.oracle != "routes" or torch.equal(scored.tokens[ROUTED_EXPERTS], batch.tokens[ROUTED_EXPERTS])
    engine.close()
    return out


def relay(run: Runner) -> dict[str, Any]:
    """Go on from the adapter that the layout before has left, one step each, and write a folder."""
    out = {}
    for number, layout in enumerate(RELAYS[run.world]):
        engine = run.engine(Case(layout=layout), lora=ADAPTER, seed=run.world + number)
        saved = run.folder / "relay-adapter"
        if saved.exists():
            engine.load_state(saved)
        out[layout] = {"before": weights(engine), "step": report(engine, run.shard()), "after": weights(engine)}
        engine.save_state(saved)
        engine.save_weights(run.folder / f"adapted-{layout}")
        out[layout]["kept"] = weights(engine) == out[layout]["after"]
        engine.close()
    return out


def away(run: Runner, layout: str) -> dict[str, Any]:
    """The same three steps, left alone and moved away and back around each; then a state, and a call in between."""
    found: list[Any] = []
    for moved in (False, True):
        engine = run.engine(Case(layout=layout, config=LAYERS))
        turns = []
        for _ in range(3):
            if moved:
                engine.offload()
                engine.offload()
                engine.onload()
            turns.append(report(engine, run.shard()))
        if moved:
            engine.onload()
        found.append([turns, weights(engine), float(engine.forward(run.shard(), SCORES).tokens["entropy"].sum())])
        if not moved:
            engine.close()
    before = _held_bytes(engine)
    engine.offload()
    freed = before - _held_bytes(engine)
    out = {"equal": found[0] == found[1], "freed": freed, "held": before}
    out["train_step"] = error_of(lambda: engine.train_step(run.shard(), PolicyGradient()))
    out["save_weights"] = error_of(lambda: engine.save_weights(run.folder / "never"))
    engine.close()
    engine.close()
    return out


def _held_bytes(engine: FSDPEngine) -> int:
    """Return the memory of this rank's weights and moments."""
    trainer = started(engine.trainer)
    assert trainer.optimizer is not None
    tensors = [*trainer.state.parameters.values(), *trainer.optimizer.tensors]
    return sum(local(tensor).untyped_storage().nbytes() for tensor in tensors)


def frozen_adapter(run: Runner, layout: str) -> dict[str, Any]:
    """A role without an optimizer and with an adapter scores as the base model does; nothing has a gradient."""
    sums = []
    for spec in ({"lora": ADAPTER}, {}):
        engine = run.engine(Case(layout=layout), optimizer=None, **spec)
        model = started(engine.trainer).model
        assert isinstance(model, ShardedModel) and isinstance(model.root, torch.nn.Module)
        assert not any(parameter.requires_grad for parameter in model.root.parameters())
        sums.append(float(engine.forward(run.shard(), SCORES).tokens["logprobs"].double().sum()))
        engine.close()
    return {"sums": sums}


def cut(run: Runner) -> dict[str, Any]:
    """What t2 leaves of an adapter on a rank."""
    engine = run.engine(Case(layout="t2"), lora=ADAPTER)
    model = started(engine.trainer).model
    assert isinstance(model, ShardedModel)
    found = lora.adapter_parameters(model.root.hf)
    engine.close()
    return {name: list(local(parameter).shape) for name, parameter in found.items()}


def refusals(run: Runner) -> dict[str, Any]:
    """What cannot have an adapter, and routes that are unfit on one rank, told on every rank."""
    dense, experts = Case(layout="d2"), Case(layout="d2", model="experts")
    mixed = ("q_proj", "embed_tokens")
    out = {
        "no such layer": error_of(lambda: run.engine(dense, lora=LoraSpec(rank=2, alpha=4.0, targets=("query",)))),
        "no linear layer": error_of(lambda: run.engine(dense, lora=LoraSpec(rank=2, alpha=4.0, targets=mixed))),
    }
    engine = run.engine(dense, lora=ADAPTER)
    out["state of another"] = error_of(lambda: engine.load_state(run.folder / "relay-whole"))
    out["no experts"] = error_of(lambda: engine.train_step(routed(run.shard()), PolicyGradient()))
    engine.close()
    engine = run.engine(experts)
    batch = routed(full_batch()).select(ROWS[2][run.rank])
    unfit = batch.tokens[ROUTED_EXPERTS].clone()
    unfit[1, 0] = 9
    given = batch if run.rank == 0 else batch.with_tokens(**{ROUTED_EXPERTS: unfit})
    out["unfit"] = error_of(lambda: engine.train_step(given, PolicyGradient()))
    out["unfit forward"] = error_of(lambda: engine.forward(given, SCORES))
    out["next"] = report(engine, batch)["stepped"]
    engine.close()
    return out


def whole(run: Runner) -> dict[str, Any]:
    """Save a state without an adapter, for `refusals`."""
    engine = run.engine(Case(layout="d2"))
    engine.save_state(run.folder / "relay-whole")
    engine.close()
    return {}


def main() -> None:
    rank, world, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    only = sys.argv[4:]
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    run = Runner(rank, world, folder)
    programs: dict[str, Any] = {name: lambda each=each: train(run, each) for name, each in PROGRAMS[world].items()}
    programs |= {f"away {layout}": lambda layout=layout: away(run, layout) for layout in AWAY[world]}
    programs["relay"] = lambda: relay(run)
    if world == 2:
        programs |= {f"frozen {layout}": lambda layout=layout: frozen_adapter(run, layout) for layout in ("d2", "t2")}
        programs |= {"cut": lambda: cut(run), "whole": lambda: whole(run), "refusals": lambda: refusals(run)}
    results = {}
    for name, program in programs.items():
        if only and name not in only:
            continue
        print(name, flush=True)
        with warnings.catch_warnings():
            results[name] = program()
        (folder / f"optional-{world}-{rank}.json").write_text(json.dumps(results))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
