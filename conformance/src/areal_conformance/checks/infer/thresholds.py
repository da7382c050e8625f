"""What outgrows a table, a piece or a byte computes the same: both sides of every threshold that is declared or real.

Knows: sizes around thresholds (`Adapter.thresholds`), ids of a real vocabulary, folders of several files, a large file.
Does not know: what an engine does beyond a threshold.
"""

from __future__ import annotations

import random
from functools import partial
from typing import Any

from areal_conformance.benches.infer import InferBench
from areal_conformance.benches.models import behind_a_hole, several_files
from areal_conformance.check import Level, check
from areal_conformance.oracles.infer_judging import (
    VOCABULARY,
    expect_drawn,
    expect_policies,
    expect_policy,
    well_formed,
)
from areal_conformance.outcome import expect
from areal_core.contract.errors import ModelError
from areal_core.contract.inference import GenerationRequest
from areal_torch.testing.sparse_files import keeps_holes

rule = partial(check, level=Level.SINGLE, law=1, spec="infer#generate")

WIDE = 70_001
"""Ids of a real vocabulary: more than 65,536, and no power of two divides them."""
NARROW: dict[str, Any] = {"hidden": 32, "layers": 1, "heads": 2, "kv_heads": 1}
"""Arguments of `make_tiny_model`: all but the vocabulary is small. Any: each has its own type."""
_PROMPT = 512
_LENGTH = 128
_ROWS = 8
_DOUBLED = (256, 512, 1024)


def _ids(draw: random.Random, count: int) -> list[int]:
    return [draw.randrange(2, VOCABULARY) for _ in range(count)]


@rule("infer.threshold.prompt", deadline_s=120.0)
async def prompt(bench: InferBench) -> None:
    """Prompts around the most tokens that are taken in at once get their own output, one by one and all at once."""
    draw = random.Random(11)
    with bench.crossing("prompt", _PROMPT) as sizes:
        async with bench.engine() as engine:
            asked = [_ids(draw, size) for size in sizes]
            requests = bench.asks(asked, temperature=[0.0, 1.0], max_new_tokens=3)
            for request in requests:
                expect_policy(bench, await bench.generate(engine, request), request)
            short = bench.asks([_ids(draw, 3) for _ in range(3)], name="short", max_new_tokens=9)
            asked = [_ids(draw, size) for size in sizes]
            crowd = [*short, *bench.asks(asked, name="crowd", temperature=[1.0, 0.0], max_new_tokens=[2, 5])]
            expect_policies(bench, zip(await bench.together(engine, crowd), crowd, strict=True))


@rule("infer.threshold.length")
async def length(bench: InferBench) -> None:
    """Sequences that end around the length at which a cache grows keep what was in it, whoever grows beside them."""
    draw = random.Random(12)
    with bench.crossing("length", _LENGTH) as sizes:
        async with bench.engine(fresh=True) as engine:
            for turn, part in enumerate((sizes, sizes[::-1])):
                cuts = [
                    (max(1, size - 3), 3) if place % 2 == turn else (2, size - 2) for place, size in enumerate(part)
                ]
                requests = [
                    bench.ask(*_ids(draw, first), name=f"{first}+{output}", max_new_tokens=output, temperature=heat)
                    for first, output in cuts
                    for heat in (0.0, 1.0)
                ]
                expect_policies(bench, zip(await bench.together(engine, requests), requests, strict=True))


@rule("infer.threshold.doubled", deadline_s=120.0)
async def doubled(bench: InferBench) -> None:
    """A sequence that outgrows a power of two while it runs keeps all that came before, alone and beside short ones."""
    draw = random.Random(14)
    async with bench.engine(fresh=True) as engine:
        for size in _DOUBLED:
            long = bench.ask(*_ids(draw, size - 3), name=f"to {size}", max_new_tokens=8, temperature=1.0)
            short = bench.asks([_ids(draw, 4)], name=f"beside {size}-", max_new_tokens=12)
            asked = [long, *short] if size == 512 else [long]
            expect_policies(bench, zip(await bench.together(engine, asked), asked, strict=True))


@rule("infer.threshold.requests", deadline_s=120.0)
async def requests(bench: InferBench) -> None:
    """As many requests at once as a table has rows, one more, and twice as many each get an output of their own."""
    draw = random.Random(13)
    with bench.crossing("requests", _ROWS) as sizes:
        for size in sizes:
            async with bench.engine(fresh=True, max_concurrent=size) as engine:
                shared = _ids(draw, 5)
                asked = [shared if place % 4 else _ids(draw, 2 + place % 7) for place in range(size)]
                group: list[GenerationRequest] = bench.asks(
                    asked, temperature=1.0, max_new_tokens=lambda place: 12 + place % 5, seed=40
                )
                results = await bench.together(engine, group)
            expect_policies(bench, zip(results, group, strict=True))
            members = [result.output_ids[:12] for place, result in enumerate(results) if place % 4]
            alike = len(members) - len(set(members))
            expect(not alike, f"of {size} requests at once {len(members)} share a prompt, and {alike} an output of 12")


@rule("infer.threshold.vocabulary", law=7, spec="infer#weights", deadline_s=120.0)
async def vocabulary(bench: InferBench) -> None:
    """Ids above 65,535 are read, drawn and told as others are, by weights of more than a megabyte, old and new."""
    folder = bench.model(**NARROW, vocab_size=WIDE, ends=True)
    edges = (65_534, 65_535, 65_536, 65_537, WIDE - 1)
    asked = [(5, edge, 9, WIDE - edge) for edge in edges]
    oracle = bench.oracle(folder)
    async with bench.engine(model=folder) as engine:
        for place, request in enumerate(bench.asks(asked, temperature=[0.0, 1.0], max_new_tokens=4)):
            result = await bench.generate(engine, request)
            well_formed(result, request, vocabulary=WIDE)
            start = len(request.input_ids) - 1
            logits = oracle.logits([*request.input_ids, *result.output_ids])[start:-1]
            expect_drawn(bench, result, logits, request.sampling.temperature, f"a prompt with the id {edges[place]}")
        for edge in edges:
            await bench.update(engine, bench.weights(folder).tell(edge))
            result = await bench.generate(engine, bench.ask(5, 9, max_new_tokens=3))
            told = f"weights that emit {edge} were committed, {result.output_ids} came"
            expect(result.output_ids == (edge,) * 3, told)


@rule("infer.threshold.files", law=7, spec="infer#start")
async def files(bench: InferBench) -> None:
    """A folder whose weights lie in several files is the same policy as one file, whichever tensors lie together."""
    for tied in (False, True):
        model = bench.model(tied=tied)
        folder = several_files(model, bench.folder / f"files-{tied}", 3)
        async with bench.engine(model=folder, fresh=True) as engine:
            for request in bench.asks([(5, 9), (7, 3, 40, 2)], temperature=[0.0, 1.0], max_new_tokens=6):
                expect_policy(bench, await bench.generate(engine, request), request, model=model)


@rule("infer.threshold.offsets", law=7, spec="infer#start")
async def offsets(bench: InferBench) -> None:
    """Weights beyond four gibibytes of their file are read from there: behind a head that the model has no use for.

    The file is sparse and takes a few pages. A folder that also holds the one head may be refused: then the other.
    """
    if not keeps_holes(bench.folder):
        bench.notes.append(f"files in {bench.folder} keep no holes: no offset beyond four gibibytes was tried")
        return
    for tied, first in ((True, "lm_head.weight"), (False, "score.weight")):
        model = bench.model(tied=tied)
        folder = behind_a_hole(model, bench.folder / first, first)
        try:
            async with bench.engine(model=folder, fresh=True) as engine:
                for request in bench.asks([(5, 9), (7, 3, 40, 2)], temperature=[0.0, 1.0], max_new_tokens=6):
                    told = f"request {request.request_id!r} of weights behind four gibibytes of {first}"
                    expect_policy(bench, await bench.generate(engine, request), request, model=model, told=told)
            return
        except ModelError as error:
            bench.notes.append(f"a folder that also holds {first} is refused: {error}")
