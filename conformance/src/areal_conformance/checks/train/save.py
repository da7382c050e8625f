"""`save_weights`: a Hugging Face folder, complete or not there; and saving where nothing can be saved.

Knows: what loads such a folder, what may lie in it, files in the way of folders, and disks that are full.
Does not know: exact states (`state`).
"""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from transformers import AutoConfig, AutoTokenizer, GenerationConfig

from areal_conformance.benches.train import TrainBench, read_folder
from areal_conformance.check import Level, Row, check, family
from areal_conformance.checks.train.state import without_effect
from areal_conformance.oracles.spoil import files_at_most, tree
from areal_conformance.oracles.train import Oracle
from areal_conformance.oracles.train_compare import close, same
from areal_conformance.oracles.watching import watching
from areal_conformance.outcome import expect, raises
from areal_core.contract.errors import StorageError
from areal_core.contract.train import Output, TrainEngine
from areal_torch.testing.objectives import PolicyGradient

STATE = "train#areal_core.contract.train.TrainEngine.save_state"
SPEC = "train#areal_core.contract.train.TrainEngine.save_weights"
LOGPROBS = frozenset({Output.LOGPROBS})


def check_files(folder: Path) -> None:
    """Expect safetensors, a config, and nothing that must be unpickled."""
    files = sorted(path.name for path in folder.rglob("*") if path.is_file())
    expect("config.json" in files, f"no config.json among {files}")
    expect(any(name.endswith(".safetensors") for name in files), f"no safetensors file among {files}")
    pickles = [name for name in files if name.endswith((".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt"))]
    expect(not pickles, f"files that must be unpickled: {', '.join(pickles)}")
    for path in folder.rglob("*"):
        head = path.read_bytes()[:2] if path.is_file() else b""
        expect(head not in (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05", b"PK"), f"{path.name} is a pickle")


@check("train.save.loads", level=Level.SINGLE, law=7, spec=SPEC)
def loads(bench: TrainBench) -> None:
    """The folder loads in transformers and computes what the engine computes; its tensors are those sent."""
    for kind in bench.target.adapter.models:
        for tied in (True, False):
            folder = bench.folder / f"{kind}-{tied}"
            batch = bench.batch(seed=2)
            with bench.engine(model=bench.model(kind=kind, tied=tied)) as engine:
                engine.train_step(bench.batch(), PolicyGradient())
                engine.save_weights(folder)
                sent = bench.sent(engine)
                got = engine.forward(batch, LOGPROBS).tokens["logprobs"]
            same(f"tensors of the {kind} folder and those sent", read_folder(folder), sent)
            wanted = Oracle(folder).columns(batch)[Output.LOGPROBS]
            close(bench, f"logprobs of the saved {kind} in transformers", got, wanted, atol=1e-4)


@check("train.save.starts", level=Level.SINGLE, law=7, spec=SPEC)
def starts(bench: TrainBench) -> None:
    """The folder starts an engine of the same kind, with the same weights, bit for bit."""
    folder = bench.folder / "weights"
    with bench.engine() as engine:
        engine.train_step(bench.batch(), PolicyGradient())
        engine.save_weights(folder)
        wanted = bench.witnessed(engine)
    with bench.engine(model=folder) as engine:
        same("weights of an engine started from the folder", bench.witnessed(engine), wanted)


@check("train.save.complete", level=Level.SINGLE, law=11, spec=SPEC)
def complete(bench: TrainBench) -> None:
    """The folder holds config and tokenizer as the model's own, nothing pickled, and nothing lies beside it."""
    model = bench.model()
    folder = bench.folder / "out" / "weights"
    folder.parent.mkdir()
    with bench.engine() as engine:
        engine.save_weights(folder)
    check_files(folder)
    beside = sorted(path.name for path in folder.parent.iterdir())
    expect(beside == ["weights"], f"beside the folder lies {beside}")
    text = "go on, 42!"
    saved, own = (AutoTokenizer.from_pretrained(path) for path in (folder, model))
    expect(saved.encode(text) == own.encode(text), f"the saved tokenizer encodes {text!r} otherwise")
    told, wanted = (AutoConfig.from_pretrained(path).to_dict() for path in (folder, model))
    for key in ("model_type", "tie_word_embeddings", "max_position_embeddings", "vocab_size", "eos_token_id"):
        expect(told[key] == wanted[key], f"config.json: {key} is {told[key]!r}, the model's is {wanted[key]!r}")


@check("train.save.companions", level=Level.SINGLE, law=11, spec=SPEC)
def companions(bench: TrainBench) -> None:
    """What chats and generation read comes along: chat templates, settings, vocabularies; links as files."""
    model = bench.folder / "chats"
    shutil.copytree(bench.model(), model)
    template = "{% for message in messages %}[{{ message['role'] }}]{{ message['content'] }}{% endfor %}"
    (model / "chat_template.jinja").write_text(template)
    wanted = {"do_sample": True, "temperature": 0.3, "eos_token_id": [1, 5], "pad_token_id": 0}
    (model / "generation_config.json").write_text(json.dumps(wanted))
    vocabulary = {
        "tokenizer.model": bytes(range(256)) * 9,
        "vocab.json": b'{"a": 0, "b": 1}',
        "merges.txt": b"#version: 0.2\na b\n",
        "added_tokens.json": b'{"<|im_start|>": 2}',
    }
    for name, data in vocabulary.items():
        (model / name).write_bytes(data)
    folder, cached = bench.folder / "saved", bench.folder / "cache" / "snapshot"
    cached.mkdir(parents=True)
    for file in model.iterdir():
        (cached / file.name).symlink_to(Path("../../chats") / file.name)  # as the hub's cache has them
    with bench.engine(model=cached) as engine:
        engine.train_step(bench.batch(), PolicyGradient())
        engine.save_weights(folder)
    links = sorted(path.name for path in folder.rglob("*") if path.is_symlink())
    expect(not links, f"links are saved, which are broken without the folder they lead to: {', '.join(links[:4])}")
    chat = [{"role": "user", "content": "go on, 42!"}]
    told, own = (AutoTokenizer.from_pretrained(path) for path in (folder, model))
    expect(told.chat_template == own.chat_template, f"the saved folder's chat template is {told.chat_template!r}")
    both = [each.apply_chat_template(chat, tokenize=False) for each in (told, own)]
    expect(both[0] == both[1], f"a conversation is written {both[0]!r} by the saved folder, {both[1]!r} by its own")
    kept = {name: (folder / name).is_file() and (folder / name).read_bytes() for name in vocabulary}
    odd = [name for name, data in vocabulary.items() if kept[name] != data]
    expect(not odd, f"the saved folder has not the model's {', '.join(odd)}")
    said = GenerationConfig.from_pretrained(folder).to_dict()
    for name, value in wanted.items():
        expect(said[name] == value, f"generation_config.json: {name} is {said[name]!r}, the model's is {value!r}")


@check("train.save.replaces", level=Level.SINGLE, law=7, spec=SPEC)
def replaces(bench: TrainBench) -> None:
    """A folder saved over another replaces it as a whole: new weights, and no file of the old one is left."""
    folder = bench.folder / "weights"
    with bench.engine() as engine:
        engine.save_weights(folder)
        (folder / "model-00009-of-00009.safetensors").write_bytes((folder / "config.json").read_bytes())
        engine.train_step(bench.batch(), PolicyGradient())
        engine.save_weights(folder)
        same("the folder saved over another", read_folder(folder), bench.witnessed(engine))
        beside = sorted(path.name for path in bench.folder.iterdir() if not path.name.startswith("witness"))
    expect(beside == ["weights"], f"beside the folder lies {beside}")


@check("train.save.no_effect", level=Level.SINGLE, law=4, spec=SPEC)
def no_effect(bench: TrainBench) -> None:
    """Saving weights changes nothing: the steps after it are those without it, and folders saved twice are equal."""

    def save(engine: TrainEngine, step: int) -> None:
        first, second = bench.folder / f"a{step}", bench.folder / f"b{step}"
        engine.save_weights(first)
        engine.save_weights(second)
        expect(tree(first) == tree(second), f"the folder saved twice after step {step} differs")

    without_effect(bench, "each saved", save)


@check("train.save.dtype", level=Level.SINGLE, law=7, spec=SPEC)
def dtype(bench: TrainBench) -> None:
    """Folder and config are in the dtype of the spec, by either name of it, and their tensors are those sent."""
    model = bench.folder / "old"
    shutil.copytree(bench.model(), model)
    said = json.loads((model / "config.json").read_text())
    said.pop("dtype", None)
    for word, name in itertools.product(("torch_dtype", "dtype"), bench.target.adapter.dtypes):  # both are about
        (model / "config.json").write_text(json.dumps({**said, word: "float16"}))
        folder = bench.folder / f"{word}-{name}"
        with bench.engine(model=model, dtype=name) as engine:
            engine.train_step(bench.batch(), PolicyGradient())
            engine.save_weights(folder)
            sent = bench.sent(engine)
        same(f"the {name} folder and what is sent", read_folder(folder), sent)
        config = json.loads((folder / "config.json").read_text())
        told = {word: config[word] for word in ("dtype", "torch_dtype") if word in config}
        expect({*told.values()} == {name}, f"config.json says {told or 'no dtype'}, the tensors are {name}")


def full_disk(bench: TrainBench, save: Callable[[Path], None], load: Callable[[Path], None]) -> None:
    """Expect a StorageError at whatever byte the disk is full, nothing left, and the folder before still whole."""
    old = bench.folder / "place" / "old"
    old.parent.mkdir()
    save(old)
    sizes = [path.stat().st_size for path in old.rglob("*") if path.is_file()]
    before = tree(old.parent)
    for limit in (0, 100, max(sizes) // 2, max(sizes) - 1):
        for path in (old, old.with_name("new")):
            with files_at_most(limit):
                raises(StorageError, f"saving where no file can have more than {limit} bytes", partial(save, path))
            left = sorted(set(tree(old.parent)) ^ set(before))
            expect(not left, f"after the error at {limit} bytes, files have come or gone: {', '.join(left[:4])}")
            expect(tree(old.parent) == before, f"after the error at {limit} bytes, what was saved before has changed")
    load(old)
    save(old.with_name("new"))
    load(old.with_name("new"))


@family(
    "train.disk.{what}_in_the_way",
    {
        "weights": Row("Weights that cannot be saved are", "save_weights", spec=SPEC),
        "state": Row("A state that cannot be saved is", "save_state", spec=STATE),
    },
    level=Level.SINGLE,
    law=10,
)
def in_the_way(bench: TrainBench, call: str) -> None:
    """{...} a StorageError; nothing is left behind, and the engine goes on."""
    obstacle = bench.folder / "obstacle"
    with bench.engine() as engine:
        held = bench.sent(engine)
        obstacle.write_text("a file")
        before = tree(bench.folder)
        for path in (obstacle / "here", obstacle / "deep" / "er"):
            raises(StorageError, f"saving below the file {obstacle.name}", partial(getattr(engine, call), path))
            expect(tree(bench.folder) == before, f"after the error the folder holds {sorted(tree(bench.folder))}")
        same("sent after the errors", bench.sent(engine), held)


@family(
    "train.disk.{what}_whole",
    {
        "weights": Row("A folder of weights", "save_weights", spec=SPEC),
        "state": Row("A state", "save_state", spec=STATE),
    },
    level=Level.SINGLE,
    law=10,
)
def whole(bench: TrainBench, call: str) -> None:
    """{...} is there whole or not at all whenever anybody looks, also while it takes the place of an earlier one."""
    folder = bench.folder / "place" / "it"
    before: dict[str, bytes] = {}
    with bench.engine(model=bench.model(hidden=32)) as engine:
        for time in ("first", "second"):
            seen: list[dict[str, bytes]] = []
            with watching(partial(_look, folder, seen)):
                getattr(engine, call)(folder)
            after = tree(folder)
            for found in seen:
                odd = sorted(name for name in {*found, *after} if found.get(name) != after.get(name))
                told = f"the {time} time, somebody who looks meanwhile finds a folder that is no whole one: {odd[:4]}"
                expect(found in (before, after), f"{told} are not what they are in the end")
            before = after
            engine.train_step(bench.batch(), PolicyGradient())


def _look(folder: Path, seen: list[dict[str, bytes]]) -> None:
    """Note what is at a path that exists, unless it was noted already."""
    with suppress(OSError):  # what another thread has just removed
        if folder.exists() and (found := tree(folder)) not in seen:
            seen.append(found)


@check("train.disk.weights_full", level=Level.FAULTS, law=10, spec=SPEC)
def weights_full(bench: TrainBench) -> None:
    """On a full disk `save_weights` raises a StorageError, leaves nothing, and keeps the folder saved before."""
    with bench.engine(model=bench.model(hidden=32)) as engine:
        held = bench.witnessed(engine)
        full_disk(bench, engine.save_weights, lambda path: same("a folder saved", read_folder(path), held))


@check("train.disk.state_full", level=Level.FAULTS, law=4, spec=STATE)
def state_full(bench: TrainBench) -> None:
    """On a full disk `save_state` raises a StorageError, leaves nothing, and keeps the state saved before."""
    with bench.engine(model=bench.model(hidden=32)) as engine:
        engine.train_step(bench.batch(), PolicyGradient())
        held = bench.witnessed(engine)

        def load(path: Path) -> None:
            engine.load_state(path)
            same("weights loaded from a state saved", bench.witnessed(engine), held)

        full_disk(bench, engine.save_state, load)
        engine.train_step(bench.batch(), PolicyGradient())
