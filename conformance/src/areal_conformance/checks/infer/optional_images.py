"""Images: a request is answered for its own, whatever stood in the same place before, and a bad one is refused.

Knows: prompts with tiny pictures, the tokens around a placeholder, the oracle of images, and files that are none.
Does not know: how an engine looks at images.
"""

from __future__ import annotations

import io
import itertools
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from PIL import Image

from areal_conformance.benches.infer import InferBench
from areal_conformance.check import Level, check
from areal_conformance.oracles.images import ImageOracle
from areal_conformance.oracles.infer_judging import (
    VOCABULARY,
    expect_drawn,
    raises,
    rest_of,
    well_formed,
)
from areal_conformance.outcome import HarnessError, Inconclusive, expect
from areal_core.contract.data import StopReason
from areal_core.contract.errors import ArealError, BatchError, CapabilityError
from areal_core.contract.inference import IMAGES, Generation, GenerationRequest

SHOWN = ("images",)
rule = partial(check, level=Level.SINGLE, spec="infer#images", since=(1, 2), requires=SHOWN)
LONG = tuple(2 + (7 * place) % 61 for place in range(24))


@rule("infer.images.truth", law=1)
async def truth(bench: InferBench) -> None:
    """Outputs are the model's own for the images sent: of any size, PNG or JPEG, alone and beside text alone.

    Also where nothing stands around the placeholder that a chat template would put there.
    """
    folder = model_with_images(bench)
    oracle = ImageOracle(folder)
    requests = [
        show(bench, 5, picture(1), 9, 7, name="square"),
        show(bench, 5, picture(2), 9, 7, name="another"),
        show(bench, picture(3, 4, 1), 9, name="wide", temperature=1.0),
        show(bench, *LONG, picture(4, 1, 5), name="high and last", temperature=0.7),
        show(bench, 5, 9, 7, name="text"),
        show(bench, 5, picture(5, 3, 2, kind="JPEG"), 9, 7, name="JPEG", max_new_tokens=1),
        show(bench, *LONG, name="more text", temperature=1.0),
    ]
    need_apart(oracle, *requests[:2])
    async with bench.engine(*SHOWN, model=folder) as engine:
        alone = [await bench.generate(engine, request) for request in requests]
        together = await bench.together(engine, requests)
    for told, results in (("alone", alone), ("in a batch", together)):
        for request, result in zip(requests, results, strict=True):
            expect_shown(bench, oracle, result, request, f"{request.request_id!r} {told}")
            got, budget = (len(result.output_ids), result.stop_reason), request.sampling.max_new_tokens
            whole = f"{request.request_id!r} {told}: an image takes nothing of the budget of {budget} tokens, got {got}"
            expect(got == (budget, StopReason.LENGTH), whole)


@rule("infer.images.order", law=1)
async def order(bench: InferBench) -> None:
    """Several images stand where their placeholders stand, in the order they were sent."""
    folder = model_with_images(bench)
    oracle, one, two, three = ImageOracle(folder), picture(1), picture(2, 3, 1), picture(3)
    orders = ((one, two, three), (three, two, one), (one, three, two), (one, one, three), (one, three, three))
    requests = [show(bench, 5, a, 9, b, 7, c, 8, name=f"r{n}") for n, (a, b, c) in enumerate(orders)]
    requests.append(show(bench, one, three, 9, name="side by side"))
    need_apart(oracle, *requests[:2])
    async with bench.engine(*SHOWN, model=folder) as engine:
        for request in requests:
            expect_shown(bench, oracle, await bench.generate(engine, request), request)


@rule("infer.images.not_by_tokens", law=1)
async def not_by_tokens(bench: InferBench) -> None:
    """Equal tokens with other images are another prompt: nothing kept of the one serves the other."""
    folder = model_with_images(bench)
    oracle, one, two = ImageOracle(folder), picture(1), picture(2)
    pairs = ((one, one), (two, one), (one, two), (two, two), (one, one), (one, two))
    requests = [show(bench, *LONG, a, *LONG, b, 9, name=f"r{n}") for n, (a, b) in enumerate(pairs)]
    need_apart(oracle, *requests[:4])
    async with bench.engine(*SHOWN, model=folder) as engine:
        for told in ("asked one by one", "asked one by one again"):
            for request in requests:
                result = await bench.generate(engine, request)
                expect_shown(bench, oracle, result, request, f"{request.request_id!r} of equal tokens, {told}")
        results = await bench.together(engine, requests)
        for request, result in zip(requests, results, strict=True):
            expect_shown(bench, oracle, result, request, f"{request.request_id!r} of equal tokens, in a batch")


@rule("infer.images.follows_updates", law=7)
async def follows_updates(bench: InferBench) -> None:
    """After an update images are seen with the new weights, also those that were seen before."""
    folder, other = model_with_images(bench), model_with_images(bench, seed=21)
    request = show(bench, 5, picture(1), 9, 7)
    async with bench.engine(*SHOWN, model=folder) as engine:
        expect_shown(bench, ImageOracle(folder), await bench.generate(engine, request), request, "before an update")
        for told, served in (("after an update", other), ("after the first weights came back", folder)):
            await bench.update(engine, bench.weights(served))
            for again in ("", " again"):
                result = await bench.generate(engine, request)
                expect_shown(bench, ImageOracle(served), result, request, f"an image seen before, {told}{again}")


@rule("infer.images.continued", law=1)
async def continued(bench: InferBench) -> None:
    """A continued request goes on from its prompt, its images and its tokens as if it had not been interrupted."""
    folder = model_with_images(bench)
    oracle = ImageOracle(folder)
    whole = show(bench, 5, picture(1, 3, 1), 9, picture(2), 7, max_new_tokens=10)
    async with bench.engine(*SHOWN, model=folder) as engine:
        made = await bench.generate(engine, whole)
        expect_shown(bench, oracle, made, whole, "the whole request")
        for done in (1, 4, 9):
            request = rest_of(whole, made.output_ids, done)
            result = await bench.generate(engine, request)
            expect_shown(bench, oracle, result, request, f"continued after {done} of 10 tokens")
            got = len(result.output_ids)
            expect(got == 10 - done, f"continued after {done} of 10 tokens: {10 - done} are left, got {got}")


@rule("infer.images.refused", law=8)
async def refused(bench: InferBench) -> None:
    """More or fewer images than placeholders, and files that are no images, are refused with reasons; it serves on."""
    folder = model_with_images(bench)
    good, other = picture(1), picture(2)
    asked = show(bench, 5, good, 9)
    bad = {
        "more images than placeholders": attrs.evolve(asked, extras={IMAGES: (good, other)}),
        "an image without a placeholder": attrs.evolve(bench.ask(5, 9, 7), extras={IMAGES: (good,)}),
        "fewer images than placeholders": attrs.evolve(show(bench, 5, good, 7, other, 9), extras={IMAGES: (good,)}),
        "a placeholder without an image": attrs.evolve(asked, extras={}),
        "no images": attrs.evolve(asked, extras={IMAGES: ()}),
        "a text file": attrs.evolve(asked, extras={IMAGES: (b"no image",)}),
        "an empty file": attrs.evolve(asked, extras={IMAGES: (b"",)}),
        "the first half of a PNG": attrs.evolve(asked, extras={IMAGES: (good[: len(good) // 2],)}),
        "the beginning of a JPEG": attrs.evolve(asked, extras={IMAGES: (picture(1, kind="JPEG")[:40],)}),
        "a GIF": attrs.evolve(asked, extras={IMAGES: (picture(1, kind="GIF"),)}),
        "a name in place of a file": attrs.evolve(asked, extras={IMAGES: ("image.png",)}),
    }
    assert PLACEHOLDER in asked.input_ids
    oracle = ImageOracle(folder)
    async with bench.engine(*SHOWN, model=folder) as engine:
        for told, request in bad.items():
            error = await raises(BatchError, partial(engine.generate, request), told)
            expect(isinstance(error, ArealError) and bool(error.why), f"{told}: the error must say why, got {error}")
            expect_shown(bench, oracle, await bench.generate(engine, asked), asked, f"after {told} was refused")
        unknown = attrs.evolve(asked, extras={IMAGES: (good,), "no_such_extra": 1})
        await raises(CapabilityError, lambda: engine.generate(unknown), "an unknown extra beside images")


@rule("infer.images.text_model", law=8)
async def text_model(bench: InferBench) -> None:
    """A model that takes no images refuses them; an answer as if there were none would be trained on."""
    async with bench.engine(*SHOWN) as engine:
        request = attrs.evolve(bench.ask(5, 9, 7, max_new_tokens=2), extras={IMAGES: (picture(1),)})
        await raises(CapabilityError, lambda: engine.generate(request), "an image for a model of text alone")
        await engine.generate(attrs.evolve(request, extras={}))


KIND = "qwen2_5_vl"
START, END, PLACEHOLDER = VOCABULARY, VOCABULARY + 1, VOCABULARY + 2
SIDE = 28
"""Pixels of a token's sides: pictures of such sides are shown as they are, however an engine resizes."""
APART = 0.05
"""Log-probs of two different prompts differ by so much somewhere, or a check could not tell them apart."""


def model_with_images(bench: InferBench, *, seed: int = 0) -> Path:
    """Return the folder of a tiny model that takes images; Inconclusive if the target takes none."""
    if KIND not in bench.target.adapter.models:
        raise Inconclusive(f"the adapter's models are {', '.join(bench.target.adapter.models)}: none takes images")
    return bench.model(kind=KIND, seed=seed)


def picture(seed: int, columns: int = 2, rows: int = 2, *, kind: str = "PNG") -> bytes:
    """Return a file with a picture of coarse random squares, so many tokens wide and high."""
    squares = np.random.default_rng(seed).integers(0, 256, (4 * rows, 4 * columns, 3), dtype=np.uint8)
    image = Image.fromarray(squares).resize((SIDE * columns, SIDE * rows), Image.Resampling.NEAREST)
    file = io.BytesIO()
    image.save(file, kind)
    return file.getvalue()


def show(bench: InferBench, *parts: int | bytes, name: str = "r", **arguments: Any) -> GenerationRequest:
    """Return a request for tokens and images in this order; other arguments are those of `bench.ask`."""
    ids: list[int] = []
    for part in parts:
        ids += [part] if isinstance(part, int) else [START, PLACEHOLDER, END]
    images = tuple(part for part in parts if isinstance(part, bytes))
    request = bench.ask(*ids, name=name, **arguments)
    return attrs.evolve(request, extras={IMAGES: images}) if images else request


def expect_shown(
    bench: InferBench, oracle: ImageOracle, result: Generation, request: GenerationRequest, told: str = ""
) -> None:
    """Expect an output to be the oracle's for these tokens and images, alone and from the beginning."""
    told = told or f"request {request.request_id!r}"
    well_formed(result, request, vocabulary=VOCABULARY + 4)
    images, output = request.extras.get(IMAGES, ()), result.output_ids
    logits = oracle.logits([*request.input_ids, *output], images, len(output))
    expect_drawn(bench, result, logits, request.sampling.temperature, f"{told}, with {len(images)} images")


def need_apart(oracle: ImageOracle, *requests: GenerationRequest) -> None:
    """Make sure that the truth tells these requests apart, by the distribution of their first tokens."""
    given = [([*request.input_ids, 0], request.extras.get(IMAGES, ())) for request in requests]
    first = [oracle.logits(ids, images, 1).log_softmax(-1) for ids, images in given]
    near = min(float((one - other).abs().max()) for one, other in itertools.combinations(first, 2))
    if near < APART:
        raise HarnessError(f"two of {len(requests)} prompts differ by {near:.4f} in log-probability only")
