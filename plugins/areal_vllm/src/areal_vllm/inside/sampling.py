"""Make vLLM's sampler keep three promises of ours, as a forward pre-hook on it.

* A seed decides the token at a place, not the place in a stream: the generator of a seeded row is set anew from
  (seed, number of tokens before) at every step. So a continued request draws what it would have drawn, all 63 bits
  of a seed count (the CPU generator looks at 32), and a prompt computed in pieces does not end the server: after each
  piece vLLM turns the generator back by an offset, which CPU generators do not have.
* Temperatures outside vLLM's own range are applied as meant.
* Tokens an earlier part of the request generated count as output for penalties.

Knows: vLLM's V1 model runner, its sampling metadata.
Does not know: requests beyond their sampling parameters.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from areal_torch.drawing import splitmix64
from areal_vllm.inside.asked import NUM_PRIOR, TEMPERATURE, extra


class PlacedGenerator(torch.Generator):
    """A generator that is set for each place; turning it back is neither needed nor, on the CPU, possible."""

    def get_offset(self) -> int:
        """Return 0: there is no stream to be somewhere in."""
        return 0

    def set_offset(self, offset: int) -> torch.Generator:
        """Do nothing."""
        return self


def place_seed(seed: int, place: int) -> int:
    """Return the 64-bit seed of one place of a seeded request; near seeds and places give unrelated ones."""
    return splitmix64(splitmix64(seed), place)


def install(runner: Any) -> bool:
    """Hook the sampler of a model runner; tell whether it is of the kind this knows. Any: vLLM's runner."""
    if not all(hasattr(runner, name) for name in ("sampler", "input_batch", "requests", "device")):
        return False
    runner.sampler.register_forward_pre_hook(_Hook(runner), with_kwargs=True)
    return True


class _Hook:
    """Any: vLLM's own types throughout."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner

    def __call__(self, _module: Any, args: Any, kwargs: Any) -> Any:
        batch = self._runner.input_batch
        given = kwargs.get("sampling_metadata")
        if given is None or given is not batch.sampling_metadata:
            return None  # a warm-up of vLLM's own, or a caller that is not ours
        rows = [self._runner.requests.get(name) for name in batch.req_ids]
        self._place(batch, rows)
        changed = {**_temperatures(given, rows), **_outputs(given, rows)}
        if not changed:
            return None
        return args, {**kwargs, "sampling_metadata": dataclasses.replace(given, **changed)}

    def _place(self, batch: Any, rows: list[Any]) -> None:
        for index, generator in batch.generators.items():
            request = rows[index]
            if request is None or request.sampling_params is None or request.sampling_params.seed is None:
                continue
            if not isinstance(generator, PlacedGenerator):
                generator = PlacedGenerator(device=self._runner.device)
                batch.generators[index] = request.generator = generator
            generator.manual_seed(place_seed(request.sampling_params.seed, request.num_tokens))


def _temperatures(given: Any, rows: list[Any]) -> dict[str, Any]:
    meant = {index: extra(row.sampling_params, TEMPERATURE) for index, row in enumerate(rows) if row is not None}
    meant = {index: value for index, value in meant.items() if value is not None}
    if not meant or given.temperature is None:
        return {}
    temperature = given.temperature.clone()
    for index, value in meant.items():
        temperature[index] = value
    return {"temperature": temperature}


def _outputs(given: Any, rows: list[Any]) -> dict[str, Any]:
    if given.no_penalties:
        return {}
    outputs = list(given.output_token_ids)
    for index, row in enumerate(rows):
        num_prior = extra(row.sampling_params, NUM_PRIOR) if row is not None else None
        if num_prior and row.prompt_token_ids is not None:
            outputs[index] = [*row.prompt_token_ids[-num_prior:], *outputs[index]]
    return {"output_token_ids": outputs}
