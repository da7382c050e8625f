"""One request on its way through the second engine.

Knows: what it has produced, under which weights, and what ends it.
Does not know: the model, or other requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import torch
from attrs import define, field, frozen
from torch import Tensor

from areal_core.contract.data import StopReason
from areal_core.contract.errors import BatchError, CapabilityError, GenerationFailed, PromptTooLong
from areal_core.contract.inference import IMAGES, Generation, GenerationRequest, SamplingParams, Timings, VersionSpan
from areal_core.contract.train import ROUTED_EXPERTS
from areal_core.contract.workflow import Tokenizer
from areal_proof.second.infer.adapters import Adapter
from areal_proof.second.infer.forward import Delta
from areal_proof.second.infer.loading import Loaded
from areal_proof.second.infer.pictures import pictures_of
from areal_proof.second.infer.structure import StructuredText
from areal_proof.second.vision import Picture


@frozen(kw_only=True, eq=False)
class Token:
    """One output token; `routes` [layers, experts] of the position it was drawn at, for a model with experts."""

    id: int
    logprob: float
    version: int
    routes: Tensor | None = None


@define(kw_only=True, eq=False)
class Slot:
    """A request, who waits for it, and its output so far. `limit` bounds the tokens of this call."""

    request: GenerationRequest
    caller: asyncio.Future[Generation]
    seed: int | str
    limit: int
    end_ids: tuple[int, ...]
    tokenizer: Tokenizer | None
    adapter: Adapter | None
    text: StructuredText | None = None
    pictures: tuple[Picture, ...] = ()
    arrived_s: float
    admitted_s: float | None = None
    first_s: float | None = None
    output: list[Token] = field(factory=list)

    @property
    def ids(self) -> list[int]:
        """Return prompt and output."""
        return [*self.request.input_ids, *(token.id for token in self.output)]

    @property
    def deltas(self) -> Mapping[str, Delta] | None:
        """Return what its adapter adds."""
        return None if self.adapter is None else self.adapter.deltas

    @property
    def shown(self) -> tuple[object, ...]:
        """Return what the first token depends on: images and ids."""
        return (self.request.extras.get(IMAGES), *self.request.input_ids)

    @property
    def index(self) -> int:
        """Return the place of the next token in the whole output, earlier parts of it counted."""
        return self.request.num_prior + len(self.output)

    @property
    def forbidden(self) -> tuple[int, ...]:
        """Return what the next token must not be: end tokens before the minimum length, or what breaks the text."""
        if self.text is not None:
            return self.text.forbidden(self.produced, self.end_ids)
        return self.end_ids if self.index < self.request.sampling.min_new_tokens else ()

    @property
    def prompt(self) -> Sequence[int]:
        """Return the prompt alone, without prior tokens."""
        return self.request.input_ids[: len(self.request.input_ids) - self.request.num_prior]

    @property
    def produced(self) -> list[int]:
        """Return the whole output, earlier parts of it included."""
        return self.ids[len(self.prompt) :]

    def end(self) -> StopReason | None:
        """Return why the output is whole, or None if it is not."""
        last = self.output[-1].id
        if last in self.end_ids or self.completes_stop():
            return StopReason.STOP
        return StopReason.LENGTH if len(self.output) >= self.limit else None

    def completes_stop(self) -> bool:
        """Tell whether the last token is the first with which the output, prior part included, holds a stop string.

        A string that was complete before the minimum length does not count again.
        """
        sampling = self.request.sampling
        if not sampling.stop or self.index < sampling.min_new_tokens:
            return False
        assert self.tokenizer is not None
        produced = self.produced
        before = self.tokenizer.decode(produced[:-1], skip_special_tokens=False)
        after = self.tokenizer.decode(produced, skip_special_tokens=False)
        return any(after.count(string) > before.count(string) for string in sampling.stop)

    def result(self, now_s: float, reason: StopReason) -> Generation:
        """Return what there is."""
        return Generation(
            output_ids=tuple(token.id for token in self.output),
            logprobs=tuple(token.logprob for token in self.output),
            version_spans=spans([token.version for token in self.output]),
            stop_reason=reason,
            timings=Timings(
                queued_s=(now_s if self.admitted_s is None else self.admitted_s) - self.arrived_s,
                first_token_s=0.0 if self.first_s is None else self.first_s - self.arrived_s,
                total_s=now_s - self.arrived_s,
            ),
            token_extras=self.extras(),
        )

    def extras(self) -> dict[str, Any]:  # Any: as in the contract
        """Return the experts of every output token, int32 [n, layers, experts], for a model that has some."""
        routes = [token.routes for token in self.output if token.routes is not None]
        return {ROUTED_EXPERTS: torch.stack(routes)} if routes else {}


def spans(versions: Sequence[int]) -> tuple[VersionSpan, ...]:
    """Return runs of equal versions."""
    found, start = [], 0
    for version, run in groupby(versions):
        stop = start + len(list(run))
        found.append(VersionSpan(start=start, stop=stop, version=version))
        start = stop
    return tuple(found)


def check_request(request: GenerationRequest, loaded: Loaded) -> tuple[Picture, ...]:
    """Refuse what no state of the engine could serve, and return the images.

    Raises:
        BatchError: ids outside the vocabulary, no prompt, sampling out of range, or images that do not fit.
        CapabilityError: extras other than images, or images where the model takes none.
        PromptTooLong: no room for one token.
        GenerationFailed: stop strings, or a structure, without a tokenizer.
    """
    ids, sampling, named = request.input_ids, request.sampling, f"request {request.request_id!r}"
    foreign = [token for token in (*ids, *sampling.stop_token_ids) if not 0 <= token < loaded.shape.vocab]
    if foreign:
        raise BatchError(
            f"{named} has token id {foreign[0]}",
            why=f"the model knows 0 to {loaded.shape.vocab - 1}",
            fix="tokenize with the tokenizer of the same model folder",
        )
    if not 0 <= request.num_prior < len(ids):
        raise BatchError(
            f"{named} has {len(ids)} tokens, {request.num_prior} of them generated",
            why="at least one token must be prompt",
        )
    problem = _out_of_range(sampling)
    if problem:
        raise BatchError(f"sampling of {named} is out of range", why=problem)
    unknown = sorted(set(request.extras) - {IMAGES})
    if unknown:
        raise CapabilityError(
            f"{named} carries {', '.join(unknown)}",
            why="the second engine takes text and images",
            fix="take the extras out of the request",
        )
    if len(ids) >= loaded.context:
        raise PromptTooLong(
            f"prompt of {len(ids)} tokens leaves no room in a context of {loaded.context}",
            fix="shorten the prompt or raise rollout.context_length",
        )
    if loaded.tokenizer is None and (sampling.stop or request.structure):
        raise GenerationFailed(
            f"{named} asks about text, the model folder has no tokenizer",
            fix="save the tokenizer beside the model, or use stop_token_ids",
        )
    if request.structure is not None and sampling.min_new_tokens:
        raise BatchError(
            f"{named} has a structure and min_new_tokens={sampling.min_new_tokens}",
            why="where the text is complete nothing but its end may follow",
            fix="leave min_new_tokens out",
        )
    return pictures_of(request, loaded)


def _out_of_range(sampling: SamplingParams) -> str:
    wrong = {
        "max_new_tokens": sampling.max_new_tokens < 1,
        "min_new_tokens": sampling.min_new_tokens < 0,
        "temperature": not 0.0 <= sampling.temperature < float("inf"),
        "top_p": not 0.0 < sampling.top_p <= 1.0,
        "top_k": sampling.top_k < 0,
        "min_p": not 0.0 <= sampling.min_p <= 1.0,
        "frequency_penalty": not -2.0 <= sampling.frequency_penalty <= 2.0,
        "presence_penalty": not -2.0 <= sampling.presence_penalty <= 2.0,
        "repetition_penalty": not 0.0 < sampling.repetition_penalty <= 2.0,
        "stop": "" in sampling.stop,
    }
    return ", ".join(f"{name} is {getattr(sampling, name)!r}" for name, is_wrong in wrong.items() if is_wrong)
