"""What every inference engine's tests need: requests, the truth to compare with, weights that tell their version.

Knows: transformers' own forward as the truth, and weights held in memory.
Does not know: any engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from attrs import define
from torch import Tensor

from areal_core.contract.ids import RequestId
from areal_core.contract.inference import GenerationRequest, InferenceEngine, SamplingParams
from areal_core.contract.weights import Offer, Receipt, WeightManifest, WeightTransport
from areal_core.weights.tensors import manifest_of
from areal_torch import hf
from areal_torch.bucketing import buckets


def ask(*ids: int, name: str = "r", num_prior: int = 0, **sampling: Any) -> GenerationRequest:
    """Return a request for these token ids, for example `ask(5, 9, max_new_tokens=4, temperature=0.0)`."""
    return GenerationRequest(
        request_id=RequestId(name), input_ids=ids, sampling=SamplingParams(**sampling), num_prior=num_prior
    )


def full_logits(folder: Path, ids: list[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """Return transformers' own logits of a sequence, float32 [L, V]."""
    model = model_of(folder, dtype)
    with torch.no_grad():
        logits: Tensor = model(torch.tensor([ids])).logits[0].float()
    return logits


def model_of(folder: Path, dtype: torch.dtype, **options: Any) -> Any:
    """Return transformers' own model of a folder, one that takes images where the folder's does. Any: transformers."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    takes_images = hasattr(AutoConfig.from_pretrained(folder), "vision_config")
    builder = AutoModelForImageTextToText if takes_images else AutoModelForCausalLM
    return builder.from_pretrained(folder, dtype=dtype, **options)


async def until_generated(engine: InferenceEngine, tokens: int) -> None:
    """Let the event loop turn until the engine has generated that many more tokens."""
    goal = (await engine.status()).tokens_generated + tokens
    while True:
        if (await engine.status()).tokens_generated >= goal:
            return
        await asyncio.sleep(0)


@define
class OfferedWeights:
    """A WeightSource of tensors in memory, one per bucket; `tensors` may differ from what `manifest` announces.

    `before_bucket` is called with each bucket's number before it is handed over.
    """

    manifest: WeightManifest
    tensors: list[tuple[str, Tensor]]
    closed: bool = False
    before_bucket: Callable[[int], None] = lambda _number: None

    def buckets(self) -> Iterator[Mapping[str, Tensor]]:
        """Yield one tensor at a time."""
        for number, (name, tensor) in enumerate(self.tensors):
            self.before_bucket(number)
            yield {name: tensor}

    def close(self) -> None:
        """Remember that it was called."""
        self.closed = True


@define
class FolderWeights:
    """The tensors of a model folder by name, and its tied names: start of an update to be offered."""

    tensors: dict[str, Tensor]
    tied: dict[str, str]

    @classmethod
    def of(cls, folder: Path, dtype: torch.dtype = torch.float32) -> FolderWeights:
        """Read a folder; tensors have the names they have in it, also where transformers fuses or renames them."""
        model = model_of(folder, dtype)
        tensors = {
            stored: part.contiguous().clone()
            for name, parameter in model.named_parameters()
            for stored, part in hf.folder_tensors(model, name, parameter.detach()).items()
        }
        stored_as = {name: next(iter(hf.folder_tensors(model, name, part))) for name, part in model.named_parameters()}
        tied = {name: stored_as[carrier] for name, carrier in hf.tied_weights(model).items()}
        return cls(tensors, tied)

    def offer(self, version: int) -> OfferedWeights:
        """Return a source of exactly these tensors."""
        manifest = manifest_of(self.tensors.items(), version=version, tied=self.tied)
        return OfferedWeights(manifest, list(self.tensors.items()))

    def send(self, transport: WeightTransport, offer: Offer) -> Receipt:
        """Send them as a trainer does."""
        sink = transport.sink(offer)
        sink.begin(manifest_of(self.tensors.items(), version=offer.version, tied=self.tied))
        for bucket in buckets(self.tensors.items(), sink.bucket_bytes):
            sink.write(bucket)
        return sink.finish()

    def tell(self, token: int) -> FolderWeights:
        """Return weights whose greedy output is always `token`, so that an output tells who computed it.

        Needs an untied model: every embedding is the same, no layer adds to it, and the head knows one token. The
        sign of both goes by the token, so that embeddings and head of neighbours do not tell either.
        """
        sign = 1.0 if token % 2 else -1.0
        tensors = {name: tensor.clone() for name, tensor in self.tensors.items()}
        for name, tensor in tensors.items():
            if name.endswith(("o_proj.weight", "down_proj.weight", "lm_head.weight")):
                tensor.zero_()
            elif name.endswith("embed_tokens.weight"):
                tensor.fill_(sign)
            elif name == "model.norm.weight":
                tensor.fill_(1.0)
        tensors["lm_head.weight"][token] = sign
        return FolderWeights(tensors, dict(self.tied))
