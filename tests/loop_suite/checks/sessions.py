"""Seeds: every turn of every episode draws on its own, and the same one in a rerun.

Knows: which request of which episode had which seed.
Does not know: what is sampled with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from areal_conformance.check import Level, check
from areal_conformance.outcome import expect
from areal_core.contract.inference import SamplingParams
from areal_core.contract.trajectory import NO_VERSION, from_generation

if TYPE_CHECKING:
    from areal_core.contract.workflow import Session

    from ..bench import LoopBench

_TURNS = 3


class _Turns:
    """A workflow of several turns, asking with parameters of its own where it was given some."""

    def __init__(self, sampling: SamplingParams | None = None) -> None:
        self._sampling = sampling

    async def arun_episode(self, engine: Session, data: Mapping[str, Any]) -> Any:
        """Generate turn by turn; the last turn is trained on. Any: as in the contract."""
        context = list(data["input_ids"])
        for turn in range(_TURNS):
            made = await engine.generate(context, self._sampling)
            if turn < _TURNS - 1:
                context += made.output_ids
        return from_generation(context, made, 1.0)


async def _seeds(bench: LoopBench, **options: Any) -> list[tuple[str, tuple[int | None, ...]]]:
    """Return the seeds of every turn, episode by episode. Any: as for `rollouts`."""
    sampling = options.pop("asked", None)
    found: dict[str, list[int | None]] = {}
    async with bench.rollouts(
        prompts=2, group=2, staleness=0, workflow=_Turns(sampling), num_rows=2, length=lambda _request: 4, **options
    ) as side:
        for _ in range(2):
            await side.step()
        for request in side.engines[0].requests:
            episode = str(request.request_id).rpartition(":")[0]
            found.setdefault(episode, []).append(request.sampling.seed)
    return sorted((episode, tuple(seeds)) for episode, seeds in found.items())


@check("loop.session.turns_differ", level=Level.LOOP, law=1, spec="index#law-by-law")
async def turns_differ(bench: LoopBench) -> None:
    """Every turn of every episode of every epoch has a seed of its own, which is the same in a rerun."""
    cases: Mapping[str, dict[str, Any]] = {
        "asked as the run says": {},
        "asked with other parameters": {"asked": SamplingParams(temperature=0.5, max_new_tokens=9)},
        "with a seed in the run's parameters": {"sampling": SamplingParams(seed=7, max_new_tokens=64)},
    }
    for what, options in cases.items():
        episodes = await _seeds(bench, **options)
        expect(len(episodes) >= 8, f"{what}: 8 episodes were to be made, {len(episodes)} are told apart")
        for episode, seeds in episodes:
            expect(len(seeds) == _TURNS, f"{what}: episode {episode} made {len(seeds)} requests, not {_TURNS}")
            expect(None not in seeds, f"{what}: a turn of episode {episode} has no seed: {seeds}")
            expect(len(set(seeds)) == _TURNS, f"{what}: turns of episode {episode} share a seed: {seeds}")
        every = [seed for _, seeds in episodes for seed in seeds]
        expect(
            len(set(every)) == len(every), f"{what}: of {len(every)} turns {len(set(every))} have seeds of their own"
        )
        again = await _seeds(bench, **options)
        expect(again == episodes, f"{what}: a rerun of the same seed has other seeds than the first run")
    own = dict(await _seeds(bench))
    others = dict(await _seeds(bench, seed=2))
    shared = {s for seeds in own.values() for s in seeds} & {s for seeds in others.values() for s in seeds}
    expect(not shared, f"a run of another seed shares {len(shared)} seeds with this one")


class _Asking:
    """A workflow that asks the policy and an adapter by turns, and keeps what it was given."""

    def __init__(self) -> None:
        self.given: list[tuple[str, tuple[int, ...]]] = []

    async def arun_episode(self, engine: Session, data: Mapping[str, Any]) -> Any:
        """Generate five turns; the last one, of the policy, is trained on. Any: as in the contract."""
        context = list(data["input_ids"])
        for adapter in ("", "critic", "critic", "", ""):
            made = await engine.generate(context, adapter=adapter)
            self.given.append((adapter, tuple(span.version for span in made.version_spans)))
        return from_generation(context, made, 1.0)


@check("loop.session.adapters_apart", level=Level.LOOP, law=2, spec="workflow#adapters")
async def adapters_apart(bench: LoopBench) -> None:
    """What an adapter says is of no version of the policy, in every turn; what the policy says is of its own."""
    workflow = _Asking()
    async with bench.rollouts(
        prompts=1, group=2, staleness=0, workflow=workflow, num_rows=1, length=lambda _request: 4
    ) as side:
        for version in range(3):
            workflow.given.clear()
            await side.step()
            expect(len(workflow.given) == 10, f"two episodes of five turns were made, of {len(workflow.given)}")
            for adapter, versions in workflow.given:
                wanted = (NO_VERSION,) if adapter else (version,)
                expect(versions == wanted, f"{adapter or 'the policy'} answered at version {version}, told {versions}")
