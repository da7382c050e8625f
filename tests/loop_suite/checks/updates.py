"""Updates: minibatches and epochs cut and repeat what is trained, and change nothing of it.

Knows: what the roles of a run are taught.
Does not know: any model; what is learned of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from areal_algorithms.columns import make_columns
from areal_conformance.check import Level, check
from areal_conformance.outcome import expect
from areal_core.algorithms.config import AdvantageConfig, AlgorithmConfig, KLConfig, Proximal
from areal_core.algorithms.plan import critic_spec, objective_spec
from areal_core.contract.batch import Batch
from areal_core.contract.train import Output
from areal_core.plugins.registry import default_registry
from areal_torch.testing.batches import make_batch

from ..pupil import Pupil
from ..trained import alike, columns, sequences

if TYPE_CHECKING:
    from ..bench import LoopBench

VERSION = 7
SHAPES = ((2, 30), (2, 1), (1, 4), (3, 9), (2, 2), (4, 12), (1, 7))
"""Tokens of the prompt and of the answers of each group; one group is longer than the others together."""
FRESH = ("tokens/fresh",)
"""Where trainer and engine can be compared: in the first minibatch alone."""
FORMS: Mapping[str, Mapping[str, Any]] = {  # Any: fields of AlgorithmConfig
    "alone": {},
    "along a line between two policies": {"proximal": Proximal.LOGLINEAR},
    "with a critic, a reference and a proximal policy": {
        "proximal": Proximal.RECOMPUTE,
        "advantages": AdvantageConfig(kl=KLConfig(coefficient=0.1), gamma=0.99, lam=0.95),
    },
}


def _batch(group_size: int, num_groups: int = len(SHAPES)) -> Batch:
    return make_batch(SHAPES[:num_groups], group_size=group_size, version=VERSION)


def _by_models(form: str) -> bool:
    """Tell whether models compute columns."""
    return "advantages" in FORMS[form]


async def _taught(bench: LoopBench, form: str, batch: Batch, *, times: int = 1, **cut: Any) -> dict[str, list[Batch]]:
    """Return what each role was taught by an update, or by several on one batch. Any: fields of AlgorithmConfig."""
    algorithm = AlgorithmConfig(**FORMS[form], **cut)
    actor, critic, reference = (Pupil(role) for role in ("actor", "critic", "reference"))
    many = _by_models(form)
    learner = bench.parts.learner(
        algorithm,
        objective_spec(algorithm),
        actor,
        make_columns(algorithm, default_registry(), max_new_tokens=16),
        critic=critic if many else None,
        reference=reference if many else None,
        critic_objective=critic_spec(algorithm) if many else None,
    )
    for number in range(1, times + 1):
        told = len((await learner.update(batch, VERSION)).reports)
        expect(
            told * number == len(actor.lessons), f"{told} steps are reported of {len(actor.lessons)}, update {number}"
        )
    expect(not reference.lessons, "the reference was trained")
    expect(actor.versions == [VERSION + 1] * times, f"after {times} updates the actor was told {actor.versions}")
    return {pupil.role: pupil.lessons for pupil in ((actor, critic) if many else (actor,))}


@check("loop.update.minibatches", level=Level.LOOP, law=4, spec="index#law-by-law")
async def minibatches(bench: LoopBench) -> None:
    """However an update is cut, each sequence is trained once an epoch, as it is uncut, its group in one minibatch."""
    for form in FORMS:
        for group_size, num_groups in ((1, 7), (3, 7), (2, 2)):
            batch = _batch(group_size, num_groups)
            for role, (whole,) in (await _taught(bench, form, batch)).items():
                wanted = sorted(map(repr, sequences(whole, but=FRESH)))
                for cut, epochs in ((2, 1), (3, 2), (5, 4), (9, 5)):
                    what = f"{form}, {num_groups} groups of {group_size} in {cut} minibatches, {epochs} epochs, {role}"
                    parts = (await _taught(bench, form, batch, minibatches=cut, epochs=epochs))[role]
                    num = min(cut, num_groups)
                    expect(len(parts) == num * epochs, f"{what}: {len(parts)} steps were made, not {num * epochs}")
                    for epoch in range(epochs):
                        taught = parts[epoch * num : (epoch + 1) * num]
                        _each_once(f"{what}, epoch {epoch}", taught, wanted)


def _each_once(what: str, parts: list[Batch], wanted: list[str]) -> None:
    got = sorted(repr(sequence) for part in parts for sequence in sequences(part, but=FRESH))
    expect(len(got) == len(wanted), f"{what}: {len(got)} sequences were trained, of {len(wanted)}")
    expect(got == wanted, f"{what}: a sequence was trained twice, and one not, or with other columns than uncut")
    homes = [group for part in parts for group in set(part.sequences["group"].tolist())]
    torn = sorted({group for group in homes if homes.count(group) > 1})
    expect(not torn, f"{what}: groups {torn} are in several minibatches")


@check("loop.update.epochs", level=Level.LOOP, law=4, spec="index#law-by-law")
async def epochs(bench: LoopBench) -> None:
    """Each of up to five epochs trains the first one's minibatches, to the bit; several are one update repeated."""
    batch = _batch(3)
    for form in FORMS:
        once = await _taught(bench, form, batch, minibatches=3)
        for count in range(2, 6):
            for role, parts in (await _taught(bench, form, batch, minibatches=3, epochs=count)).items():
                got = [columns(part, but=FRESH) for part in parts]
                wanted = [columns(part, but=FRESH) for part in once[role]]
                alike(f"{form}, {count} epochs, {role}", got, wanted * count)
    # Where nothing is computed by models, whose weights move between updates.
    four = await _taught(bench, "alone", batch, minibatches=3, epochs=4)
    again = await _taught(bench, "alone", batch, minibatches=3, times=4)
    got, wanted = ([columns(part, but=FRESH) for part in taught["actor"]] for taught in (four, again))
    alike("four epochs instead of four updates on one batch", got, wanted)


@check("loop.update.before", level=Level.LOOP, law=1, spec="index#law-by-law")
async def before(bench: LoopBench) -> None:
    """Update after update, columns are of the version that is trained and of the weights before its first step."""
    for form in FORMS:
        algorithm = AlgorithmConfig(**FORMS[form], minibatches=2, epochs=2)
        make = make_columns(algorithm, default_registry(), max_new_tokens=16)
        actor, critic, reference = (Pupil(role) for role in ("actor", "critic", "reference"))
        roles = {"critic": critic, "reference": reference} if _by_models(form) else {}
        learner = bench.parts.learner(
            algorithm, objective_spec(algorithm), actor, make, critic_objective=critic_spec(algorithm), **roles
        )
        for version in range(VERSION, VERSION + 3):
            batch, proximal = make_batch(SHAPES, version=VERSION, seed=version), None
            wanted = batch
            if roles:
                wanted = wanted.with_tokens(reference_logprobs=await reference.forward(batch, Output.LOGPROBS))
                wanted = wanted.with_tokens(values=await critic.forward(batch, Output.VALUES))
                proximal = await actor.forward(batch, Output.LOGPROBS)
            wanted, _ = make(wanted, version, proximal)
            update = await learner.update(batch, version)
            alike(f"{form}, version {version}", [columns(update.batch, but=FRESH)], [columns(wanted, but=FRESH)])
            expect(actor.versions[-1:] == [version + 1], f"{form}: the actor was told {actor.versions[-1:]}")
            expect(
                critic.versions == (actor.versions if roles else []), f"{form}: the critic was told {critic.versions}"
            )
