"""What `send_weights` sends: names, shapes, dtypes, ties, order, buckets, the bytes the engine holds; and a bad way.

Knows: sinks that remember the order of calls, spoil, lie and raise; transformers' names for a model.
Does not know: transports; they have checks of their own.
"""

from __future__ import annotations

import torch
from torch import Tensor

from areal_conformance.benches.train import TrainBench, read_folder
from areal_conformance.check import Level, check
from areal_conformance.checks.train.state import without_effect
from areal_conformance.oracles.train import Oracle
from areal_conformance.oracles.train_compare import same
from areal_conformance.oracles.train_sinks import LyingSink, RaisingSink, RecordingSink
from areal_conformance.outcome import Violation, expect, raises
from areal_core.contract.errors import ArealError, CoverageError, FingerprintMismatch, StorageError, WeightSyncError
from areal_core.contract.train import Head, Output, TrainEngine
from areal_core.weights.tensors import fingerprint
from areal_torch.testing.memory_weights import MemorySink
from areal_torch.testing.objectives import PolicyGradient, ValueRegression

SPEC = "train#areal_core.contract.train.TrainEngine.send_weights"
MANIFEST = "weights#areal_core.contract.weights.WeightManifest"
SINK = "weights#areal_core.contract.weights.WeightSink"


@check("train.send.names", level=Level.SINGLE, law=7, spec=MANIFEST)
def names(bench: TrainBench) -> None:
    """Every tensor of the model is sent exactly once under its Hugging Face name and shape, and nothing else."""
    for kind in bench.target.adapter.models:
        for tied in (True, False):
            model = bench.model(kind=kind, tied=tied)
            wanted = {name: tuple(parameter.shape) for name, parameter in Oracle(model).parameters.items()}
            sink = MemorySink(bucket_bytes=30_000)
            with bench.engine(model=model) as engine:
                engine.send_weights(sink, 1)
            assert sink.manifest is not None
            announced = [spec.name for spec in sink.manifest.tensors]
            written = [name for bucket in sink.buckets for name in bucket]
            what = f"{kind}, {'tied' if tied else 'untied'}"
            for told, where in ((announced, "announced"), (written, "written")):
                twice = sorted({name for name in told if told.count(name) > 1})
                expect(not twice, f"{what}: {where} more than once: {', '.join(twice[:4])}")
                odd = sorted({*told} ^ {*wanted})
                expect(not odd, f"{what}: {where} tensors and the model's differ in: {', '.join(odd[:4])}")
            expect(announced == written, f"{what}: tensors are not written in the order announced")
            shapes = {name: tuple(tensor.shape) for name, tensor in sink.tensors.items()}
            wrong = {name: shapes[name] for name in wanted if shapes[name] != wanted[name]}
            expect(not wrong, f"{what}: these shapes are not the model's: {wrong}")


@check("train.send.tied", level=Level.SINGLE, law=7, spec=MANIFEST)
def tied(bench: TrainBench) -> None:
    """`tied` names exactly the tensors that are not sent and whose bytes another one carries."""
    head, embedding = "lm_head.weight", "model.embed_tokens.weight"
    for is_tied, wanted in ((True, {head: embedding}), (False, {})):
        sink = MemorySink()
        with bench.engine(model=bench.model(tied=is_tied)) as engine:
            engine.send_weights(sink, 1)
        assert sink.manifest is not None
        told = dict(sink.manifest.tied)
        if is_tied and head in sink.tensors:
            wanted = {embedding: head}
        expect(told == wanted, f"tied is {told}, expected {wanted}")
        sent_too = sorted(set(told) & set(sink.tensors))
        expect(not sent_too, f"named as tied and sent as well: {', '.join(sent_too)}")


@check("train.send.current", level=Level.SINGLE, law=7, spec=SPEC)
def current(bench: TrainBench) -> None:
    """What is sent is what the engine holds now: before training, after each step, and after scoring."""
    for is_tied in (True, False):
        model = bench.model(tied=is_tied)
        with bench.engine(model=model) as engine:
            sent = bench.sent(engine, version=1)
            same("sent before training", sent, bench.witnessed(engine))
            for step in range(1, 4):
                before = sent
                engine.train_step(bench.batch(seed=step), PolicyGradient())
                held = bench.witnessed(engine)
                sent = bench.sent(engine, version=step + 1)
                same(f"sent after {step} steps", sent, held)
                stale = [name for name in sent if sent[name].equal(before[name])]
                expect(not stale, f"step {step} did not change what is sent of {', '.join(stale[:4])}")
            engine.forward(bench.batch(), frozenset({Output.LOGPROBS}))
            same("sent after scoring", bench.sent(engine, version=9), sent)
            same("sent a second time under one version", bench.sent(engine, version=9), sent)


@check("train.send.original", level=Level.SINGLE, law=7, spec=SPEC)
def original(bench: TrainBench) -> None:
    """Before any step, what is sent is the model folder, bit for bit."""
    for kind in bench.target.adapter.models:
        model = bench.model(kind=kind, tied=False)
        if "float32" not in bench.target.adapter.dtypes:
            bench.notes.append(f"compared after rounding to {bench.dtype}")
        with bench.engine(model=model) as engine:
            sent = bench.sent(engine)
        dtype = next(iter(sent.values())).dtype
        same(f"{kind} as sent", sent, {name: tensor.to(dtype) for name, tensor in read_folder(model).items()})


@check("train.send.manifest", level=Level.SINGLE, law=7, spec=MANIFEST)
def manifest(bench: TrainBench) -> None:
    """The manifest tells version, shapes and dtypes as they are written; the dtype is the spec's."""
    for dtype in bench.target.adapter.dtypes:
        with bench.engine(dtype=dtype) as engine:
            engine.version = 2
            for version in (3, 17):
                sink = MemorySink()
                receipt = engine.send_weights(sink, version)
                assert sink.manifest is not None
                told = sink.manifest
                expect(told.version == version, f"the manifest says version {told.version}, {version} was asked for")
                expect(receipt is not None, "rank 0 got no receipt")
                assert receipt is not None
                expect(receipt.version == version, f"the receipt says version {receipt.version}, not {version}")
                for spec in told.tensors:
                    tensor = sink.tensors[spec.name]
                    got = (spec.shape, spec.dtype)
                    written = (tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
                    expect(got == written, f"{spec.name} is announced as {got} and written as {written}")
                    expect(spec.dtype == dtype, f"{spec.name} is sent as {spec.dtype}, the spec says {dtype}")
            expect(engine.version == 2, f"sending changed the engine's version from 2 to {engine.version}")


@check("train.send.receipt", level=Level.SINGLE, law=7, spec="weights#areal_core.contract.weights.Receipt")
def receipt(bench: TrainBench) -> None:
    """The receipt is the sink's: every tensor with the fingerprint of the bytes the engine holds."""
    with bench.engine() as engine:
        engine.train_step(bench.batch(), PolicyGradient())
        sink = MemorySink()
        told = engine.send_weights(sink, 4)
        held = bench.witnessed(engine)
    expect(told is not None, "rank 0 returned no receipt")
    assert told is not None
    wanted = {name: fingerprint(tensor) for name, tensor in held.items()}
    wrong = sorted(name for name in {*wanted} | {*told.fingerprints} if told.fingerprints.get(name) != wanted.get(name))
    expect(not wrong, f"fingerprints of the receipt and of the weights held differ for {', '.join(wrong[:4])}")
    num_bytes = sum(tensor.nbytes for tensor in sink.tensors.values())
    expect(told.num_bytes == num_bytes, f"the receipt tells {told.num_bytes} bytes, {num_bytes} were written")


@check("train.send.protocol", level=Level.SINGLE, law=7, spec=SINK)
def protocol(bench: TrainBench) -> None:
    """A sink sees `begin` once and first, buckets that are not empty, `finish` once and last, and no `abort`."""
    with bench.engine() as engine:
        for _ in range(2):
            sink = RecordingSink(bucket_bytes=20_000)
            engine.send_weights(sink, 2)
            calls = sink.calls
            shape = (calls[:1], set(calls[1:-1]), calls[-1:])
            expect(shape == (["begin"], {"write"}, ["finish"]), f"the sink's calls were {calls}")
            expect(all(sink.buckets), "an empty bucket was written")


@check("train.send.buckets", level=Level.SINGLE, law=7, spec=f"{SINK}.bucket_bytes")
def buckets(bench: TrainBench) -> None:
    """Buckets are cut near the size the sink asks for: above it only for a single tensor, and not needlessly many."""
    with bench.engine() as engine:
        for size in (1, 20_000, 100_000, 1 << 30):
            sink = MemorySink(bucket_bytes=size)
            engine.send_weights(sink, 1)
            sizes = [sum(sink.tensors[name].nbytes for name in bucket) for bucket in sink.buckets]
            for bucket, num_bytes in zip(sink.buckets, sizes, strict=True):
                told = f"a bucket of {len(bucket)} tensors has {num_bytes} bytes, the sink asked for {size}"
                expect(num_bytes <= size or len(bucket) == 1, told)
            most = min(len(sink.tensors), 2 * -(-sum(sizes) // size) + 1)
            expect(len(sizes) <= most, f"{sum(sizes)} bytes came in {len(sizes)} buckets of {size}, at most {most}")


@check("train.send.no_effect", level=Level.SINGLE, law=3, spec=SPEC)
def no_effect(bench: TrainBench) -> None:
    """Sending changes nothing: the steps after it are those without it, bit for bit."""
    without_effect(bench, "each sent", bench.sent)


@check("train.send.kept", level=Level.SINGLE, law=7, spec=SINK)
def kept(bench: TrainBench) -> None:
    """What was sent stays what it was while training goes on, and a sink that writes into it harms nobody."""
    with bench.engine() as engine:
        first = bench.sent(engine)
        copy = {name: tensor.clone() for name, tensor in first.items()}
        engine.train_step(bench.batch(), PolicyGradient())
        same("what was sent before a step, after it", first, copy)
        sink = RecordingSink(bucket_bytes=1 << 20)
        engine.send_weights(sink, 2)
        attached = [name for name, tensor in sink.given.items() if tensor.requires_grad]
        expect(not attached, f"tensors in the buckets carry gradients: {', '.join(attached[:4])}")


@check("train.send.value_head", level=Level.SINGLE, law=7, spec=SPEC, requires=("head.value",))
def value_head(bench: TrainBench) -> None:
    """A critic sends its head too, and no language-model head."""
    with bench.engine(head=Head.VALUE) as engine:
        engine.train_step(bench.batch(), ValueRegression())
        sent = bench.sent(engine)
        same("a critic's weights as sent", sent, bench.witnessed(engine))
    heads = [name for name in sent if not name.startswith("model.")]
    expect(bool(heads), "a critic sent its backbone only")
    expect("lm_head.weight" not in sent, "a critic sent a language-model head")


def fails(engine: TrainEngine, sink: RecordingSink, kind: type[ArealError], what: str) -> None:
    """Expect sending to this sink to raise, and the sink to be aborted last."""
    raises(kind, what, lambda: engine.send_weights(sink, 5))
    expect(sink.calls[-1:] == ["abort"], f"{what}: the sink was not aborted after the error; calls {sink.calls}")


@check("train.send.flipped", level=Level.SINGLE, law=7, spec=SPEC)
def flipped(bench: TrainBench) -> None:
    """One bit flipped in any tensor, at the end of megabytes too, is a FingerprintMismatch, and the sink is aborted."""
    with bench.engine() as engine:
        good = bench.sent(engine)
        names = list(good)
        for target in (names[0], names[len(names) // 2], names[-1]):

            def spoil(name: str, tensor: Tensor, target: str = target) -> Tensor:
                if name == target:
                    tensor.view(torch.uint8).view(-1)[-1] ^= 1
                return tensor

            fails(engine, RecordingSink(20_000, spoil), FingerprintMismatch, f"a bit flipped in {target}")
        same("sent after three failures", bench.sent(engine), good)
    wide = bench.model(hidden=16, layers=1, heads=2, kv_heads=1, vocab_size=70_001)
    with bench.engine(model=wide) as engine:
        largest = max(bench.sent(engine).items(), key=lambda item: item[1].nbytes)[0]

        def spoil_end(name: str, tensor: Tensor) -> Tensor:
            if name == largest:
                tensor.view(torch.uint8).view(-1)[-1] ^= 1
            return tensor

        fails(engine, RecordingSink(1 << 20, spoil_end), FingerprintMismatch, f"the last bit flipped in {largest}")


@check("train.send.coverage", level=Level.SINGLE, law=7, spec=SPEC)
def coverage(bench: TrainBench) -> None:
    """A receipt that lacks a tensor or names another one is an error, and the sink is aborted."""
    with bench.engine() as engine:
        good = bench.sent(engine)
        last = list(good)[-1]

        def lost(told: dict[str, str]) -> dict[str, str]:
            return {name: value for name, value in told.items() if name != last}

        def more(told: dict[str, str]) -> dict[str, str]:
            return {**told, "model.extra.weight": next(iter(told.values()))}

        fails(engine, LyingSink(lost), CoverageError, f"a receipt without {last}")
        fails(engine, LyingSink(more), CoverageError, "a receipt with a tensor that was not sent")
        fails(engine, LyingSink(lambda told: {}), WeightSyncError, "an empty receipt")
        same("sent after three failures", bench.sent(engine), good)


@check("train.send.raising_sink", level=Level.FAULTS, law=7, spec=SPEC)
def raising_sink(bench: TrainBench) -> None:
    """What a sink raises, at whatever call, is heard as it is; the sink is aborted; sending again works."""
    with bench.engine() as engine:
        places: tuple[str | int, ...] = ("begin", 0, 1, 3, "finish")
        for number, place in enumerate(places):
            for error in (StorageError("no room", why="a test"), CoverageError("not announced", why="a test")):
                sink = RaisingSink(place, error)
                fails(engine, sink, type(error), f"a sink that raises {type(error).__name__} at {place}")
                once = sink.calls.count("finish") == (place == "finish")
                expect(once, f"after the error at {place} the sink was finished: {sink.calls}")
            held = bench.witnessed(engine)
            same(f"sent after a failure at {place}", bench.sent(engine, version=number + 1), held)
            engine.train_step(bench.batch(seed=number), PolicyGradient())


@check("train.send.foreign_error", level=Level.FAULTS, law=7, spec=SPEC)
def foreign_error(bench: TrainBench) -> None:
    """An error of a sink that is none of ours is heard too, and the sink is aborted."""
    with bench.engine() as engine:
        for place in ("begin", 1, "finish"):
            sink = RaisingSink(place, ConnectionResetError("by the other side"))
            try:
                engine.send_weights(sink, 2)
            except Exception as error:
                expect("by the other side" in str(error), f"the error does not tell the sink's: {error}")
            else:
                raise Violation(f"a sink raised at {place} and nobody heard it")
            expect(sink.calls[-1:] == ["abort"], f"the sink was not aborted after an error at {place}: {sink.calls}")
