"""Whatever an agent asks, every generated token is trained on once, behind exactly the tokens it was generated from."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from areal_agentic.recorder import Recorder
from areal_core.contract.inference import Generation, VersionSpan


def generation(ids: list[int]) -> Generation:
    spans = (VersionSpan(start=0, stop=len(ids), version=2),)
    values = [-float(token) for token in ids]
    return Generation(output_ids=ids, logprobs=values, version_spans=spans, stop_reason="stop")


IDS = st.lists(st.integers(1, 3), min_size=1, max_size=4)


@given(data=st.data(), num_asked=st.integers(1, 8))
def test_every_token_once_behind_what_it_was_generated_from(data: st.DataObject, num_asked: int) -> None:
    """Prompts go on from earlier answers, from parts of them, or from nothing; some are asked side by side."""
    recorder, known, wanted = Recorder(), [[]], []
    waiting = []
    for number in range(num_asked):
        prompt = [*data.draw(st.sampled_from(known)), *data.draw(IDS)]
        waiting.append((recorder.begin(prompt), prompt))
        if data.draw(st.booleans()) and number < num_asked - 1:
            continue
        for branch, asked in waiting:
            if data.draw(st.integers(0, 4)) == 0:
                recorder.release(branch)
                continue
            outputs = data.draw(st.lists(IDS, min_size=1, max_size=2))
            recorder.answered(branch, asked, [generation(ids) for ids in outputs])
            known += [[*asked, *ids] for ids in outputs]
            known += [[*asked, *ids[:-1]] for ids in outputs]
            for ids in outputs:
                wanted += [((*asked, *ids[:t]), token, -float(token)) for t, token in enumerate(ids)]
        waiting = []

    found = []
    for branch in recorder.branches:
        made = branch.turns.build(1.0)
        ids, mask = made.input_ids.tolist(), made.loss_mask.tolist()
        found += [(tuple(ids[:t]), ids[t], float(made.logprobs[t])) for t in range(len(ids)) if mask[t]]
    assert sorted(found) == sorted(wanted)
