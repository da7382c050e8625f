"""What the core prepares of a trajectory with images is what train engines score as the model itself would."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from areal_core.contract.batch import Batch
from areal_core.contract.data import Episode
from areal_core.contract.ids import GroupId, TaskId
from areal_core.contract.inference import Generation, VersionSpan
from areal_core.contract.train import Output, RankContext, TrainSpec
from areal_core.contract.trajectory import from_generation
from areal_core.plugins.registry import default_registry
from areal_torch.prepare_images import ImagePreparer
from areal_torch.testing.models import SEEING, make_tiny_model

START, END, PLACEHOLDER = 64, 65, 66
ENGINES = ("reference", "fsdp")


def picture(seed: int, width: int, height: int) -> bytes:
    """Return a PNG file of noise; its sides need not be those of whole tokens."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


PROMPTS: list[tuple[list[int], list[bytes]]] = [
    ([5, START, PLACEHOLDER, END, 9], [picture(1, 56, 28)]),
    ([START, PLACEHOLDER, END, 7, START, PLACEHOLDER, END], [picture(2, 28, 84), picture(3, 40, 61)]),
    ([3, 8, 6], []),
]
OUTPUT = (4, PLACEHOLDER, 11, 1)
"""With a placeholder that the policy said: a word like any other."""


@pytest.mark.parametrize("kind", SEEING)
@pytest.mark.parametrize("engine", ENGINES)
def test_prepared_trajectories_are_scored_as_by_transformers_own(tmp_path: Path, kind: str, engine: str) -> None:
    """One sequence with an image, one with two, of which one is resized, and one of text alone, packed together."""
    pytest.importorskip(f"areal_{engine}")
    folder = make_tiny_model(tmp_path / "model", kind=kind)
    preparer = ImagePreparer.of(folder)
    assert preparer is not None
    made = Generation(
        output_ids=OUTPUT,
        logprobs=[-1.0] * len(OUTPUT),
        version_spans=[VersionSpan(start=0, stop=len(OUTPUT), version=0)],
        stop_reason="stop",
    )
    trajectories = [preparer.prepare(from_generation(ids, made, 0.0, images=images)) for ids, images in PROMPTS]
    episode = Episode(trajectories=trajectories, task_id=TaskId("t"), group_id=GroupId("t"))

    found = _scores(engine, folder, Batch.pack([episode]), tmp_path)

    wanted = torch.cat([_truth(folder, ids, images) for ids, images in PROMPTS])
    torch.testing.assert_close(found, wanted, atol=2e-4, rtol=0.0)


def _scores(engine: str, folder: Path, batch: Batch, store: Path) -> torch.Tensor:
    """Return the log-probs of the generated tokens, sequence by sequence, as an engine tells them."""
    trainer: Any = default_registry().build("train", engine)  # Any: the registry builds every role
    spec = TrainSpec(role="actor", model_path=str(folder), max_tokens_per_microbatch=512)
    trainer.start(spec, RankContext(rank=0, world_size=1, local_rank=0, device="cpu", init_method=f"file://{store}/s"))
    try:
        scored = trainer.forward(batch, frozenset({Output.LOGPROBS}))
    finally:
        trainer.close()
    return scored.tokens["logprobs"][batch.tokens["loss_mask"]]  # type: ignore[no-any-return]


def _truth(folder: Path, ids: list[int], images: list[bytes]) -> torch.Tensor:
    """Return them as transformers' model gives them: prompt as its processor makes it, outputs never an image."""
    from transformers import AutoImageProcessor, AutoModelForImageTextToText

    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    processor = AutoImageProcessor.from_pretrained(folder, local_files_only=True, backend="pil")
    given: dict[str, Any] = {}
    if images:
        given = dict(processor(images=[Image.open(io.BytesIO(file)) for file in images], return_tensors="pt"))
    sizes = iter([int(grid.prod()) // processor.merge_size**2 for grid in given.get("image_grid_thw", ())])
    prompt = [token for token in ids for _ in range(next(sizes) if token == PLACEHOLDER else 1)]
    whole = torch.tensor([[*prompt, *OUTPUT]])
    with torch.no_grad():
        kinds = (whole == PLACEHOLDER).long()
        kinds[:, len(prompt) :] = 0
        embedded = model.get_input_embeddings()(whole)
        said = torch.where(kinds.bool(), PLACEHOLDER, torch.where(whole == PLACEHOLDER, 2, whole))
        words = {"embeds": embedded, "said": said, "kinds": kinds}
        logits = _logits(model, whole, words, given)
    scores = logits[0, len(prompt) - 1 : -1].float().log_softmax(-1)
    return scores.gather(1, torch.tensor(OUTPUT)[:, None])[:, 0]


def _logits(model: Any, whole: torch.Tensor, words: dict[str, torch.Tensor], given: dict[str, Any]) -> torch.Tensor:
    """Return logits where a placeholder of the output is embedded as the word it is, which transformers cannot say.

    Any: transformers is not typed here.
    """
    embedding = model.get_input_embeddings()
    place = whole != words["said"]

    def instead(_module: Any, _arguments: Any, vectors: torch.Tensor) -> torch.Tensor:
        return torch.where(place[..., None], words["embeds"], vectors)

    hook = embedding.register_forward_hook(instead)
    try:
        logits: torch.Tensor = model(
            input_ids=words["said"], mm_token_type_ids=words["kinds"], use_cache=False, **given
        ).logits
    finally:
        hook.remove()
    return logits
