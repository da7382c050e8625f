"""Adapters beside the policy: asked by their names, and nothing of what they say is trained on.

Knows: which turns of a session named an adapter, and that their tokens are of no version of the policy.
Does not know: what a workflow asks an adapter for.
"""

from __future__ import annotations

from functools import partial

from areal_conformance.benches.workflow import ScriptedSession, WorkflowBench, scripted
from areal_conformance.benches.workflow_tokens import traced
from areal_conformance.check import Level, check
from areal_conformance.outcome import expect

_SESSION = "workflow#areal_core.contract.workflow.Session"
_TRAJECTORY = "data#areal_core.contract.data.Trajectory"
rule = partial(check, level=Level.SINGLE, law=1, requires=("adapters",), since=(1, 3))


@rule("workflow.adapters.asked", spec=_SESSION)
async def asked(bench: WorkflowBench) -> None:
    """With the options for it each episode asks an adapter and the policy; without them the policy alone."""
    for row in bench.rows:
        session = bench.session()
        await bench.adapted(session, row)
        names = [each.adapter for each in session.asked]
        expect(any(names), f"`adapters` is claimed, and none of {len(names)} turns named one")
        expect("" in names, f"all {len(names)} turns named an adapter: there is nothing to train on")
    plain = bench.session()
    await bench.episode(plain)
    named = [each.adapter for each in plain.asked if each.adapter]
    expect(not named, f"without options for it adapters were asked: {named}")


@rule("workflow.adapters.untrained", spec=_TRAJECTORY)
async def untrained(bench: WorkflowBench) -> None:
    """An adapter's tokens are context, off the mask, without log-probs or versions; the policy's are trained on."""
    for row in bench.rows:
        for length in (1, 2, 6, 17):
            session = bench.session(scripted(length=length))
            episode = await bench.adapted(session, row)
            masked = sum(int(trajectory.loss_mask.sum()) for trajectory in episode.trajectories)
            ours = _of_policy(session)
            expect(0 < masked <= ours, f"{masked} tokens are trained on, {ours} are the policy's")
            theirs = {each.adapter for each in traced(episode, session) if each.adapter}
            expect(not theirs, f"tokens that adapters {sorted(theirs)} generated are trained on")


def _of_policy(session: ScriptedSession) -> int:
    return sum(len(each.generation.output_ids) for each in session.asked if each.generation and not each.adapter)
