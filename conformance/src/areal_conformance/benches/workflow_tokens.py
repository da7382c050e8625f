"""Whether trajectories hold exactly what the session generated, and whether its reward was told of that.

Knows: how tokens of an episode are traced to the calls they came from.
Does not know: workflows; sessions only by what they were asked.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from areal_conformance.benches.workflow import Asked, ScriptedSession
from areal_conformance.outcome import Violation, expect
from areal_core.contract.data import Episode, Trajectory
from areal_core.contract.inference import Generation


def traced(episode: Episode, session: ScriptedSession) -> list[Asked]:
    """Trace every masked token to its generation; return the generations found, in the order of their tokens.

    Of several generations some may be context only; where there was one it must be trained on. Masked tokens must
    stand after the context they were generated after, with its log-probs and versions; others have neither.
    """
    found: list[Asked] = []
    for trajectory in episode.trajectories:
        _outside(trajectory)
        position, mask = 0, trajectory.loss_mask.tolist()
        while position < len(mask):
            if not mask[position]:
                position += 1
                continue
            asked = _begun_at(trajectory, position, session.asked, found)
            found.append(asked)
            position += len(_made(asked).output_ids)
    if len(session.asked) == 1 and session.asked[0].generation is not None and not found:
        raise Violation(f"none of {len(_made(session.asked[0]).output_ids)} generated tokens is trained on")
    return found


def versions_of(generation: Generation) -> list[int]:
    """Return the version of every generated token."""
    return [span.version for span in generation.version_spans for _ in range(span.start, span.stop)]


def told_right(session: ScriptedSession, tokenizer: Any, row: Mapping[str, Any], adds: Collection[str] = ()) -> None:
    """Expect every question put to the reward to be whole. Any: transformers is not typed; the data decides.

    Args:
        adds: columns beside those of the row, of tasks that the workflow makes: asked in the row's place.
    """
    made = [a.generation for a in session.asked if a.generation is not None]
    for value in session.scored:
        fitting = [g for g in made if tuple(g.output_ids) == tuple(value.completion_ids)]
        ids = [tuple(g.output_ids) for g in made]
        expect(bool(fitting), f"the reward is asked about {tuple(value.completion_ids)}, generated were {ids}")
        text = tokenizer.decode(value.completion_ids, skip_special_tokens=True)
        expect(value.completion == text, f"the reward is asked about the text {value.completion!r}, it is {text!r}")
        ends = [str(g.stop_reason) for g in fitting]
        expect(value.stop_reason in ends, f"an output that ended with {ends} is told as {value.stop_reason!r}")
        missing = [name for name in adds if name not in value.row]
        expect(not missing, f"the adapter says that the reward is told {list(adds)}; {missing} are missing")
        told = {name: one for name, one in value.row.items() if name in row or name not in adds}
        expect(told == dict(row), f"the row {dict(row)} is told as {told}")
        own = None if adds else row.get("prompt")
        prompts = {own} if isinstance(own, str) else {tokenizer.decode(asked.input_ids) for asked in session.asked}
        expect(value.prompt in prompts, f"the prompt is told as {value.prompt!r}, it is {prompts}")


def _begun_at(trajectory: Trajectory, start: int, every: Sequence[Asked], before: Sequence[Asked]) -> Asked:
    """Return the generation whose tokens begin here."""
    ids = trajectory.input_ids.tolist()
    fitting = [a for a in every if a.generation is not None and len(a.input_ids) == start and a not in before]
    if not fitting:
        lengths = [len(asked.input_ids) for asked in every]
        told = f"tokens from position {start} on are trained on, but no generation began there"
        raise Violation(f"{told}: the policy was asked with {lengths} tokens")
    here = [asked for asked in fitting if ids[:start] == list(asked.input_ids)]
    if here:  # several answers to one prompt are told apart by their tokens
        spelled = (a for a in here if ids[start : start + len(_made(a).output_ids)] == list(_made(a).output_ids))
        asked = next(spelled, here[0])
        _same(trajectory, start, _made(asked))
        return asked
    wanted = list(fitting[0].input_ids)
    at = next(i for i, (one, other) in enumerate(zip(wanted, ids, strict=False)) if one != other)
    raise Violation(f"token {at} of the context is {ids[at]}; the policy was asked with {wanted[at]} there")


def _same(trajectory: Trajectory, start: int, made: Generation) -> None:
    stop = start + len(made.output_ids)
    expect(len(trajectory) >= stop, f"{len(trajectory)} tokens cannot hold the {stop} the policy saw and generated")
    columns = {
        "ids": (trajectory.input_ids[start:stop].tolist(), list(made.output_ids)),
        "mask": (trajectory.loss_mask[start:stop].tolist(), [True] * len(made.output_ids)),
        "versions": (trajectory.versions[start:stop].tolist(), versions_of(made)),
    }
    for name, (seen, wanted) in columns.items():
        expect(seen == wanted, f"{name} of the tokens generated from position {start} on are {seen}, expected {wanted}")
    seen = trajectory.logprobs[start:stop].tolist()
    close = all(abs(one - other) < 1e-6 for one, other in zip(seen, made.logprobs, strict=True))
    expect(close, f"log-probs of the tokens generated from position {start} on are {seen}, expected {made.logprobs}")


def _outside(trajectory: Trajectory) -> None:
    off = ~trajectory.loss_mask
    expect(bool((trajectory.logprobs[off] == 0).all()), f"log-probs off the mask: {trajectory.logprobs[off].tolist()}")
    expect(bool((trajectory.versions[off] == -1).all()), f"versions off the mask: {trajectory.versions[off].tolist()}")


def _made(asked: Asked) -> Generation:
    assert asked.generation is not None
    return asked.generation
