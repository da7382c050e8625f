"""Whatever an agent asks, every generated token is trained on once, behind exactly the tokens it was generated from."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from areal_agentic.recorder import Recorder
from areal_core.contract.data import Trajectory
from areal_core.contract.inference import Generation, VersionSpan

IDS = st.lists(st.integers(1, 3), min_size=1, max_size=4)
Token = tuple[tuple[int, ...], int, float]


def generation(ids: Sequence[int]) -> Generation:
    spans = (VersionSpan(start=0, stop=len(ids), version=2),)
    values = [-float(token) for token in ids]
    return Generation(output_ids=ids, logprobs=values, version_spans=spans, stop_reason="stop")


def trained(trajectories: Sequence[Trajectory]) -> list[Token]:
    """Return each token on a mask with all that stands before it, and its log-prob."""
    found: list[Token] = []
    for made in trajectories:
        ids, mask = made.input_ids.tolist(), made.loss_mask.tolist()
        found += [(tuple(ids[:t]), ids[t], float(made.logprobs[t])) for t in range(len(ids)) if mask[t]]
    return sorted(found)


@given(data=st.data(), num_asked=st.integers(1, 8))
def test_every_token_once_behind_what_it_was_generated_from(data: st.DataObject, num_asked: int) -> None:
    """Prompts go on from earlier answers, from parts of them, or from nothing; some are answered several times."""
    recorder, known, wanted = Recorder(), [[]], []
    for _ in range(num_asked):
        prompt = [*data.draw(st.sampled_from(known)), *data.draw(IDS)]
        outputs = data.draw(st.lists(IDS, min_size=1, max_size=3))
        recorder.answered(prompt, [generation(ids) for ids in outputs])
        known += [[*prompt, *ids] for ids in outputs] + [[*prompt, *ids[:-1]] for ids in outputs]
        for ids in outputs:
            wanted += [((*prompt, *ids[:t]), token, -float(token)) for t, token in enumerate(ids)]

    assert trained(recorder.trajectories(1.0)) == sorted(wanted)
    individual = recorder.trajectories(1.0, individual=True)
    assert trained(individual) == sorted(wanted) and len(individual) == len(recorder.answers)


def test_the_answer_that_was_gone_on_with_keeps_what_stands_before_it() -> None:
    """Of three answers the second one is; of two ways on the later one is."""
    recorder = Recorder()
    recorder.answered([1], [generation([2])])
    recorder.answered([1, 2, 1], [generation([1]), generation([2]), generation([3])])
    recorder.answered([1, 2, 1, 2, 3], [generation([3, 3])])

    made = recorder.trajectories(1.0, 0.5)

    assert [each.input_ids.tolist() for each in made] == [[1, 2, 1, 2, 3, 3, 3], [1, 2, 1, 1], [1, 2, 1, 3]]
    assert [each.loss_mask.int().tolist() for each in made] == [[0, 1, 0, 1, 0, 1, 1], [0, 0, 0, 1], [0, 0, 0, 1]]
    assert [each.reward for each in made] == [1.0, 0.5, 0.5]


def test_of_answers_that_are_the_same_each_is_gone_on_with() -> None:
    """Two conversations that say the same are two trajectories, and not one with a rest."""
    recorder = Recorder()
    for _ in range(2):
        recorder.answered([1], [generation([2])])
    for _ in range(2):
        recorder.answered([1, 2, 3], [generation([4])])

    made = recorder.trajectories(1.0)

    assert [each.loss_mask.int().tolist() for each in made] == [[0, 1, 0, 1]] * 2
