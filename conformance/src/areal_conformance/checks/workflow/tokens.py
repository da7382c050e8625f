"""What an episode holds: the tokens the session generated, as they were generated, and nothing beside.

Knows: ids, log-probs, versions, masks, turns.
Does not know: prompts of any format.
"""

from __future__ import annotations

import torch

from areal_conformance.benches.workflow import ScriptedSession, WorkflowBench, drifting_tokenizer, generation, scripted
from areal_conformance.benches.workflow_tokens import traced
from areal_conformance.check import Level, check
from areal_conformance.outcome import expect
from areal_core.contract.data import Episode, StopReason
from areal_core.contract.train import ROUTED_EXPERTS

_RUN = "workflow#areal_core.contract.workflow.RolloutWorkflow.arun_episode"
_SESSION = "workflow#areal_core.contract.workflow.Session"
_TRAJECTORY = "data#areal_core.contract.data.Trajectory"


@check("workflow.tokens.provenance", level=Level.SINGLE, law=1, spec=_TRAJECTORY)
async def provenance(bench: WorkflowBench) -> None:
    """Trained tokens are the generated ones: same ids, log-probs and versions, after the context asked with."""
    for offset in range(3):
        session = bench.session(scripted(3 * offset, length=6 + offset))
        episode = await bench.episode(session)
        expect(bool(traced(episode, session)), "the episode trains on no generated token")
        _whole(episode, session)


@check("workflow.tokens.context", level=Level.SINGLE, law=1, spec=_TRAJECTORY)
async def context(bench: WorkflowBench) -> None:
    """Every trajectory begins with the very tokens its first generation was asked with, none of them trained on."""
    for row in bench.rows:
        session = bench.session()
        episode = await bench.episode(session, row)
        asked = session.asked[0].input_ids
        first = episode.trajectories[0]
        seen = tuple(first.input_ids.tolist()[: len(asked)])
        expect(seen == asked, f"the policy was asked with {asked}, the trajectory begins with {seen}")
        masked = [i for i in range(len(asked)) if first.loss_mask[i]]
        expect(not masked, f"tokens {masked} of the prompt are trained on")
        off = ~first.loss_mask
        expect(not first.logprobs[off].any(), f"log-probs off the mask are {first.logprobs[off].tolist()}")
        expect(bool((first.versions[off] == -1).all()), f"versions off the mask are {first.versions[off].tolist()}")


@check("workflow.tokens.prompt", level=Level.SINGLE, law=1, spec=_SESSION)
async def prompt(bench: WorkflowBench) -> None:
    """The policy is asked with the row's own prompt, whole and as it is tokenised; other rows, other prompts."""
    tokenizer, seen = drifting_tokenizer(), []
    for row in (*bench.rows, *bench.rows):
        session = bench.session()
        await bench.episode(session, row)
        seen.append(session.asked[0].input_ids)
        if isinstance(row.get("prompt"), str):
            ids = tuple(tokenizer.encode(row["prompt"], add_special_tokens=False))
            text = tokenizer.decode(seen[-1])
            expect(row["prompt"] in text, f"the prompt {row['prompt']!r} is not in what the policy was asked: {text!r}")
            missing = [i for i in set(ids) if seen[-1].count(i) < ids.count(i)]
            expect(not missing, f"the prompt is tokenised as {ids}, the policy was asked with {seen[-1]}")
    count = len(bench.rows)
    expect(len(set(seen[:count])) == count, f"{count} different rows were asked with {len(set(seen[:count]))} prompts")
    expect(seen[:count] == seen[count:], "the same rows were asked with other prompts the second time")


@check("workflow.tokens.lengths", level=Level.SINGLE, law=1, spec=_TRAJECTORY)
async def lengths(bench: WorkflowBench) -> None:
    """Outputs of one token, of one version, and longer ones are whole, with the version of each token."""
    for length in (1, 2, 3, 17):
        session = bench.session(scripted(length, length=length))
        traced(await bench.episode(session), session)
    session = bench.session(lambda turn: generation(turn, length=1 if turn else 5))
    traced(await bench.episode(session), session)


@check("workflow.tokens.special", level=Level.SINGLE, law=1, spec=_TRAJECTORY)
async def special(bench: WorkflowBench) -> None:
    """End, padding and unknown tokens in an output are kept, and an output without an end token gets none."""
    for ids in ((3, 0, 4, 2, 1), (1, 1, 1, 5, 1), (2, 2, 3, 4, 5), (0, 0, 0, 0, 0)):
        stop = StopReason.STOP if ids[-1] == 1 else StopReason.LENGTH
        session = bench.session(scripted(length=5, stop=stop, output_ids=ids))
        made = await bench.ended_by(session, stop)
        if made is not None:
            traced(made, session)


@check("workflow.tokens.stop_reason", level=Level.SINGLE, law=1, spec=_TRAJECTORY)
async def stop_reason(bench: WorkflowBench) -> None:
    """A trajectory's stop reason is its last generation's; an aborted output is never passed off as a whole one."""
    for stop in StopReason:
        made = await bench.ended_by(bench.session(scripted(stop=stop)), stop)
        if made is None:
            continue
        last = made.trajectories[-1]
        told = f"an output that ended with {stop!s} became a trajectory of {last.stop_reason!s}"
        expect(last.stop_reason is stop, told)


@check("workflow.tokens.extras", level=Level.SINGLE, law=1, spec=_TRAJECTORY)
async def extras(bench: WorkflowBench) -> None:
    """Columns that came with generated tokens stay with them; where no experts were recorded the rows are -1."""

    def script(turn: int) -> object:
        routed = torch.arange(24, dtype=torch.int32).reshape(6, 2, 2) + 100 * turn
        return generation(turn, token_extras={ROUTED_EXPERTS: routed})

    session = bench.session(script)  # type: ignore[arg-type]
    episode = await bench.episode(session)
    for trajectory in episode.trajectories:
        expect(ROUTED_EXPERTS in trajectory.token_extras, f"the column {ROUTED_EXPERTS!r} of the output was dropped")
        column, mask = trajectory.token_extras[ROUTED_EXPERTS], trajectory.loss_mask
        made = {tuple(a.generation.output_ids): a.generation for a in session.asked if a.generation is not None}
        wanted = torch.cat([g.token_extras[ROUTED_EXPERTS] for g in made.values()])
        expect(column.dtype == wanted.dtype, f"the column is {column.dtype}, it was {wanted.dtype}")
        if int(mask.sum()) == len(wanted):
            expect(torch.equal(column[mask], wanted), "recorded experts are not those of their tokens")
        expect(bool((column[~mask] == -1).all()), "tokens without recorded experts have rows other than -1")


@check("workflow.session.temperature", level=Level.SINGLE, law=1, spec=_SESSION)
async def temperature(bench: WorkflowBench) -> None:
    """Whatever sampling it asks for, it generates at the run's temperature: the trainer scores at that one."""
    session = bench.session()
    await bench.episode(session)
    for asked in session.asked:
        seen, due = (asked.sampling or session.sampling).temperature, session.sampling.temperature
        expect(seen == due, f"it generates at temperature {seen}, the run's is {due}")


@check("workflow.turns.all", level=Level.SINGLE, law=1, spec=_RUN, requires=("multi_turn",))
async def turns_all(bench: WorkflowBench) -> None:
    """It asks more than once, and every turn's tokens are trained on, with their own log-probs and versions."""
    for row in bench.rows:
        session = bench.session()
        episode = await bench.episode(session, row)
        expect(len(session.asked) > 1, f"`multi_turn` is claimed and the policy was asked {len(session.asked)} times")
        found = traced(episode, session)
        left = [n for n, asked in enumerate(session.asked) if asked not in found]
        expect(not left, f"of {len(session.asked)} turns the tokens of {left} are not trained on")


@check("workflow.turns.prefix", level=Level.SINGLE, law=1, spec=_RUN, requires=("multi_turn",))
async def turns_prefix(bench: WorkflowBench) -> None:
    """A later turn is asked with the earlier turns' ids as they were generated, none of them encoded anew."""
    session = bench.session(lambda turn: generation(turn, length=8 + turn))
    episode = await bench.episode(session)
    for number, (before, after) in enumerate(zip(session.asked, session.asked[1:], strict=False)):
        assert before.generation is not None
        whole = (*before.input_ids, *before.generation.output_ids)
        seen = after.input_ids[: len(whole)]
        held = any(len(t) and tuple(t.input_ids.tolist()[: len(whole)]) == whole for t in episode.trajectories)
        expect(held, f"no trajectory holds turn {number} as it was asked and answered: {whole}")
        if len(episode.trajectories) == 1:
            expect(seen == whole, f"turn {number} was {whole}; turn {number + 1} is asked with {seen}")


@check("workflow.turns.between", level=Level.SINGLE, law=1, spec=_RUN, requires=("multi_turn",))
async def turns_between(bench: WorkflowBench) -> None:
    """What stands between the turns was not generated: not trained on, log-prob 0, version -1."""
    session = bench.session()
    episode = await bench.episode(session)
    generated = sum(len(a.generation.output_ids) for a in traced(episode, session) if a.generation is not None)
    masked = sum(int(t.loss_mask.sum()) for t in episode.trajectories)
    expect(masked == generated, f"{masked} tokens are trained on, {generated} were generated")
    for trajectory in episode.trajectories:
        off = ~trajectory.loss_mask
        expect(not trajectory.logprobs[off].any(), "tokens between the turns have log-probs")
        expect(bool((trajectory.versions[off] == -1).all()), "tokens between the turns have versions")


def _whole(episode: Episode, session: ScriptedSession) -> None:
    """Expect the only generation of an episode to be trained on, and its ages to be told right."""
    if len(session.asked) > 1:
        return
    (asked,) = session.asked
    assert asked.generation is not None
    trained = sum(int(t.loss_mask.sum()) for t in episode.trajectories)
    count = len(asked.generation.output_ids)
    expect(trained == count, f"{trained} tokens are trained on, {count} were generated")
    versions = [span.version for span in asked.generation.version_spans]
    seen = (episode.oldest_version, episode.newest_version)
    expect(seen == (versions[0], versions[-1]), f"versions {versions} are told as oldest and newest {seen}")
