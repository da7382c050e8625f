"""The hook on vLLM's sampler: seeds by place, temperatures as meant, prior tokens as output.

The runner here is a small real one: a batch of rows and the metadata a sampler gets of it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import torch

from areal_vllm.inside import sampling
from areal_vllm.inside.asked import NUM_PRIOR, TEMPERATURE


@dataclass
class Params:
    seed: int | None = None
    extra_args: dict[str, Any] | None = None


@dataclass
class Request:
    sampling_params: Params
    prompt_token_ids: list[int] = field(default_factory=lambda: [5, 9, 7])
    output_token_ids: list[int] = field(default_factory=list)
    generator: torch.Generator | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_token_ids) + len(self.output_token_ids)


@dataclass
class Metadata:
    temperature: torch.Tensor | None
    no_penalties: bool
    output_token_ids: list[list[int]]
    generators: dict[int, torch.Generator]


class Sampler(torch.nn.Module):
    def forward(self, sampling_metadata: Metadata) -> tuple[Metadata, dict[int, float]]:
        draws = {n: float(torch.rand((), generator=g)) for n, g in sampling_metadata.generators.items()}
        return sampling_metadata, draws


class Batch:
    def __init__(self, requests: dict[str, Request], *, no_penalties: bool = True) -> None:
        self.req_ids = list(requests)
        self.generators = {
            n: torch.Generator().manual_seed(r.sampling_params.seed)
            for n, r in enumerate(requests.values())
            if r.sampling_params.seed is not None
        }
        self.sampling_metadata = Metadata(
            temperature=torch.ones(len(requests)),
            no_penalties=no_penalties,
            output_token_ids=[r.output_token_ids for r in requests.values()],
            generators=self.generators,
        )


class Runner:
    device = torch.device("cpu")

    def __init__(self, *requests: Request, no_penalties: bool = True) -> None:
        self.sampler = Sampler()
        self.requests = {f"r{n}": request for n, request in enumerate(requests)}
        self.input_batch = Batch(self.requests, no_penalties=no_penalties)
        assert sampling.install(self)

    def step(self) -> tuple[Metadata, dict[int, float]]:
        found: tuple[Metadata, dict[int, float]] = self.sampler(sampling_metadata=self.input_batch.sampling_metadata)
        return found


def draw(seed: int, prompt: list[int], output: list[int]) -> float:
    runner = Runner(Request(Params(seed=seed), prompt_token_ids=prompt, output_token_ids=output))
    return runner.step()[1][0]


def test_a_seed_decides_the_token_at_a_place() -> None:
    """Where the prompt ends does not matter: a continued request draws on."""
    assert draw(7, [5, 9, 7], [30, 8]) == draw(7, [5, 9, 7, 30], [8]) == draw(7, [5, 9, 7, 30, 8], [])


def test_places_and_seeds_draw_differently() -> None:
    """Also seeds that differ in their upper bits only, which the CPU generator does not look at."""
    draws = [draw(seed, [5], [0] * place) for seed in (0, 1, 2**32, 2**40, 2**63 - 1) for place in range(5)]

    assert len(set(draws)) == len(draws)


def test_a_step_repeated_draws_the_same() -> None:
    """vLLM computes a preempted request's tokens again."""
    runner = Runner(Request(Params(seed=3)))

    assert runner.step()[1] == runner.step()[1]


def test_generators_can_be_turned_back() -> None:
    """vLLM does it after every piece of a long prompt; a CPU generator raises, and the server ends."""
    runner = Runner(Request(Params(seed=3)))
    runner.step()
    generator = runner.input_batch.generators[0]

    generator.set_offset(generator.get_offset() - 4)
    assert isinstance(generator, sampling.PlacedGenerator)


def test_temperatures_beyond_vllms_range_are_applied() -> None:
    """Of their rows only, and never in vLLM's own tensor."""
    runner = Runner(Request(Params(extra_args={TEMPERATURE: 3.0})), Request(Params()))
    given = runner.input_batch.sampling_metadata.temperature
    seen, _ = runner.step()

    assert seen.temperature is not None and given is not None
    assert seen.temperature.tolist() == [3.0, 1.0]
    assert given.tolist() == [1.0, 1.0]


def test_a_greedy_batch_has_no_temperatures() -> None:
    """vLLM makes no tensor for one."""
    runner = Runner(Request(Params(extra_args={TEMPERATURE: 3.0})))
    runner.input_batch.sampling_metadata.temperature = None

    assert runner.step()[0].temperature is None


def test_prior_tokens_are_output_for_penalties() -> None:
    """The request's own list is left alone: vLLM appends to it."""
    mine = Request(Params(extra_args={NUM_PRIOR: 2}), output_token_ids=[30])
    other = Request(Params(), output_token_ids=[8])
    runner = Runner(mine, other, no_penalties=False)

    assert runner.step()[0].output_token_ids == [[9, 7, 30], [8]]
    assert mine.output_token_ids == [30]


def test_calls_of_vllms_own_pass_through() -> None:
    """A warm-up brings rows that are no requests."""
    runner = Runner(Request(Params(seed=3)))
    warm = dataclasses.replace(runner.input_batch.sampling_metadata, generators={0: torch.Generator().manual_seed(1)})

    assert runner.sampler(sampling_metadata=warm)[0] is warm


def test_a_runner_of_another_kind_is_told() -> None:
    """The plugin refuses to serve with it."""
    assert not sampling.install(object())
