"""Prompts with images, and how their outputs are judged.

Knows: tiny pictures, the tokens around a placeholder, the oracle of images.
Does not know: which rule is being checked.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import torch
from PIL import Image

from areal_conformance.benches.infer import InferBench
from areal_conformance.oracles.images import ImageOracle
from areal_conformance.oracles.infer_judging import LOGPROB_ATOL, VOCABULARY, expect_logprobs, well_formed
from areal_conformance.outcome import HarnessError, Inconclusive, expect
from areal_core.contract.inference import IMAGES, Generation, GenerationRequest

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


def oracle_of(folder: Path) -> ImageOracle:
    """Return the truth of a folder."""
    return ImageOracle(folder)


def expect_shown(
    bench: InferBench, oracle: ImageOracle, result: Generation, request: GenerationRequest, told: str = ""
) -> None:
    """Expect an output to be the oracle's for these tokens and images, alone and from the beginning."""
    told = told or f"request {request.request_id!r}"
    well_formed(result, request, vocabulary=VOCABULARY + 4)
    images, output = request.extras.get(IMAGES, ()), result.output_ids
    temperature = request.sampling.temperature
    logits = oracle.logits([*request.input_ids, *output], images, len(output))
    logprobs = torch.log_softmax(logits / (temperature or 1.0), -1)
    chosen = logprobs.gather(1, torch.tensor(output).unsqueeze(1))[:, 0]
    behind = logprobs.max(-1).values - chosen
    far = temperature == 0 and float(behind.max()) > bench.tolerance(atol=LOGPROB_ATOL).atol
    place = int(behind.argmax())
    expect(
        not far,
        f"{told}, with {len(images)} images: greedy token {place} of {len(output)} is {output[place]}, the best one is "
        f"{int(logits[place].argmax())} by {float(behind[place]):.4f} in log-probability",
    )
    expect_logprobs(bench, result, chosen, f"{told}, with {len(images)} images")


def need_apart(oracle: ImageOracle, *requests: GenerationRequest) -> None:
    """Make sure that the truth tells these requests apart, by the distribution of their first tokens."""
    first = [
        oracle.logits([*request.input_ids, 0], request.extras.get(IMAGES, ()), 1).log_softmax(-1)
        for request in requests
    ]
    near = min(float((one - other).abs().max()) for place, one in enumerate(first) for other in first[place + 1 :])
    if near < APART:
        raise HarnessError(f"two of {len(requests)} prompts differ by {near:.4f} in log-probability only")
