"""Starting: what is reported, what is refused, what is never executed.

Knows: model folders, good and spoiled.
Does not know: numbers.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from areal_conformance.benches.train import TrainBench
from areal_conformance.check import Level, check
from areal_conformance.oracles.spoil import Bomb, write_pickle
from areal_conformance.oracles.train import Oracle
from areal_conformance.outcome import expect, raises
from areal_core.contract.errors import ArealError, CapabilityError, LayoutError, ModelError
from areal_core.contract.train import Output

SPEC = "train#areal_core.contract.train.TrainEngine.start"
LOGPROBS = frozenset({Output.LOGPROBS})


def refused(bench: TrainBench, kind: type[ArealError], what: str, **fields: Any) -> ArealError:
    """Expect `start` to raise this error, and an engine started after it to work. Any: fields of TrainSpec."""
    engine = bench.fresh()
    spec = bench.spec(**fields)
    error = raises(kind, what, lambda: engine.start(spec, bench.rank_context()))
    expect(bool(error.what), f"{what}: the error says nothing")
    engine.close()
    with bench.engine() as after:
        scored = after.forward(bench.batch([(2, 3)]), LOGPROBS)
    expect(bool(scored.tokens["logprobs"].any()), f"an engine started after this scores nothing: {what}")
    return error


def spoiled(bench: TrainBench, name: str, spoil: Callable[[Path], None]) -> Path:
    """Return a copy of the default model folder after `spoil`."""
    folder = bench.folder / name
    shutil.copytree(bench.model(), folder)
    spoil(folder)
    return folder


@check("train.start.info", level=Level.SINGLE, law=0, spec="train#areal_core.contract.train.EngineInfo")
def info(bench: TrainBench) -> None:
    """What `start` reports is true: parameters, context, device, and the one shard of one rank."""
    for arguments in ({"tied": True}, {"tied": False, "hidden": 32, "max_position": 48}):
        model = bench.model(**arguments)
        wanted = sum(parameter.numel() for parameter in Oracle(model).parameters.values())
        with bench.engine(model=model):
            told = bench.info
        assert told is not None
        expect(told.num_parameters == wanted, f"num_parameters is {told.num_parameters}, the model has {wanted}")
        context = json.loads((model / "config.json").read_text())["max_position_embeddings"]
        expect(told.context_length == context, f"context_length is {told.context_length}, expected {context}")
        device = bench.target.torch_type
        expect(told.device.partition(":")[0] == device, f"device is {told.device!r}, the run is on {device!r}")
        shard = (told.data_rank, told.data_size)
        expect(shard == (0, 1), f"data rank and size are {shard}, one rank takes shard 0 of 1")
        expect(bool(told.engine and told.engine_version), f"engine {told.engine!r} {told.engine_version!r} has no name")


@check("train.start.missing_model", level=Level.SINGLE, law=8, spec=SPEC)
def missing_model(bench: TrainBench) -> None:
    """A folder that is not there, or holds no model, is a ModelError; nothing is downloaded or made up."""
    (bench.folder / "empty").mkdir()
    refused(bench, ModelError, "a folder that does not exist", model=bench.folder / "nowhere")
    refused(bench, ModelError, "an empty folder", model=bench.folder / "empty")
    no_weights = spoiled(bench, "no-weights", lambda folder: (folder / "model.safetensors").unlink())
    refused(bench, ModelError, "a folder with a config and no weights", model=no_weights)


@check("train.start.torn_model", level=Level.SINGLE, law=8, spec=SPEC)
def torn_model(bench: TrainBench) -> None:
    """Weights torn, incomplete, too many, or of other shapes than the config are a ModelError, never made up."""

    def truncate(folder: Path) -> None:
        file = folder / "model.safetensors"
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])

    def lose(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        del tensors[sorted(tensors)[-1]]
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    def grow(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        config["intermediate_size"] *= 2
        (folder / "config.json").write_text(json.dumps(config))

    def deepen(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        config["num_hidden_layers"] += 1
        config.pop("layer_types", None)
        (folder / "config.json").write_text(json.dumps(config))

    def adding(name: str) -> Callable[[Path], None]:
        def add(folder: Path) -> None:
            tensors = load_file(folder / "model.safetensors")
            tensors[name] = tensors[sorted(tensors)[0]].clone()
            save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

        return add

    def lie_elsewhere(folder: Path) -> None:
        outside = folder.with_name("outside.safetensors")
        (folder / "model.safetensors").rename(outside)
        index = {"metadata": {}, "weight_map": dict.fromkeys(load_file(outside), f"../{outside.name}")}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))

    for what, spoil in (
        ("weights that an index looks for outside of the folder", lie_elsewhere),
        ("half a weight file", truncate),
        ("a tensor the config has no place for", adding("model.layers.0.self_attn.k_scale.weight")),
        ("a bias the config has no place for", adding("model.layers.0.self_attn.o_proj.bias")),
        ("a layer the config does not count", adding("model.layers.7.self_attn.o_proj.weight")),
        ("a tensor missing", lose),
        ("a config of other shapes", grow),
        ("a config with one more layer", deepen),
    ):
        refused(bench, ModelError, what, model=spoiled(bench, what.replace(" ", "-"), spoil))


@check("train.start.layout", level=Level.SINGLE, law=8, spec=SPEC)
def layout(bench: TrainBench) -> None:
    """A layout that is not the number of ranks, in whatever letter, is a LayoutError."""
    for letters in ({"d": 2}, {"t": 2}, {"p": 2}, {"c": 2}, {"d": 1, "t": 4}):
        error = refused(bench, LayoutError, f"layout {letters} on one rank", layout=letters)
        expect(bool(error.why or error.fix), f"layout {letters} is refused without a reason")
    with bench.engine(layout={"d": 1, "t": 1}) as engine:
        engine.forward(bench.batch([(2, 3)]), LOGPROBS)


@check("train.refuse.float16", level=Level.SINGLE, law=8, spec=SPEC, unless=("precision.float16",))
def float16(bench: TrainBench) -> None:
    """A dtype that is not claimed is refused when the engine starts, not computed in another one."""
    engine = bench.fresh()
    bench.refuses("precision.float16", lambda: engine.start(bench.spec(dtype="float16"), bench.rank_context()))


@check("train.start.unknown_dtype", level=Level.SINGLE, law=8, spec=SPEC)
def unknown_dtype(bench: TrainBench) -> None:
    """A dtype the engine does not train in, or nobody knows, is a CapabilityError."""
    for name in ("int8", "floaty32", ""):
        refused(bench, CapabilityError, f"dtype {name!r}", dtype=name)


@check("train.start.no_pickle", level=Level.SINGLE, law=11, spec=SPEC)
def no_pickle(bench: TrainBench) -> None:
    """Weights in a pickle are refused, and the pickle is not opened."""
    with Bomb(bench.folder) as bomb:

        def pickled(folder: Path) -> None:
            (folder / "model.safetensors").unlink()
            write_pickle(folder / "pytorch_model.bin", bomb)

        def pickled_under_the_name(folder: Path) -> None:
            write_pickle(folder / "model.safetensors", bomb)

        for name, spoil in (("bin", pickled), ("disguised", pickled_under_the_name)):
            refused(bench, ModelError, "weights in a pickle", model=spoiled(bench, name, spoil))
        expect(not bomb.went_off, "a pickle in the model folder was executed")


@check("train.start.no_code", level=Level.SINGLE, law=11, spec=SPEC)
def no_code(bench: TrainBench) -> None:
    """Code that lies in a model folder is not run, whatever its config asks for."""
    with Bomb(bench.folder) as bomb:

        def own_code(folder: Path) -> None:
            config = json.loads((folder / "config.json").read_text())
            config["auto_map"] = {
                "AutoConfig": "modeling_own.OwnConfig",
                "AutoModelForCausalLM": "modeling_own.OwnModel",
            }
            config["model_type"] = "own_model"
            (folder / "config.json").write_text(json.dumps(config))
            (folder / "modeling_own.py").write_text(f"{bomb.code}\n")

        refused(bench, ArealError, "a model with code of its own", model=spoiled(bench, "own", own_code))
        expect(not bomb.went_off, "code in the model folder was executed")
