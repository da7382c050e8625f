"""Policies with other tokenizers than the suite's own: ids above 65,535, letters of several tokens, no chat template.

Knows: what is the same with every tokenizer.
Does not know: how conversations are written.
"""

from __future__ import annotations

import itertools
from typing import Any

from areal_conformance.benches.endpoint import EndpointBench, Opened, trained
from areal_conformance.benches.endpoint import said as read
from areal_conformance.benches.endpoint_forms import CHAT, DIALOGUES, TEXT
from areal_conformance.benches.workflow_vocabularies import base_tokenizer, chat_tokenizer, said
from areal_conformance.check import Level, check
from areal_conformance.outcome import expect
from areal_core.contract.data import StopReason
from areal_core.contract.errors import ArealError

_ASKED = ("ab é?", "\u4f60\u597d", "on")


@check("endpoint.tokens.vocabulary", level=Level.SINGLE, law=1, spec="endpoint#tokens")
async def vocabulary(bench: EndpointBench) -> None:
    """Ids above 65,535 are asked and trained as they are in every form, and the end of an answer stands once."""
    tokenizer = chat_tokenizer()
    for form in DIALOGUES.values():
        async with bench.opened(form, tokenizer=tokenizer, script=lambda n: said(tokenizer, n, StopReason.STOP)) as one:
            for question in _ASKED:
                await one.agent.say(question)
            _goes_on(one, tokenizer.eos_token_id)
            expect(len(trained(one)) == 1, "one conversation became several trajectories")
    for stop in (StopReason.STOP, StopReason.LENGTH):
        await _texts(bench, chat_tokenizer(), stop)
    await _unwritten(bench)


async def _texts(bench: EndpointBench, tokenizer: Any, stop: StopReason) -> None:
    """Ask with the ids of a prompt and with its text. Any: transformers is not typed here."""
    prompt = tokenizer.encode("ab é ba", add_special_tokens=False)
    async with bench.opened(TEXT, tokenizer=tokenizer, script=lambda n: said(tokenizer, n, stop)) as opened:
        for given in (prompt, "ab é ba"):
            told = await opened.agent.post(TEXT.path, {"model": "policy", "prompt": given})
            text, asked = read(TEXT, told, "a prompt"), opened.session.asked[-1]
            expect(list(asked.input_ids) == prompt, f"asked with {given}, the engine was given {asked.input_ids}")
            assert asked.generation is not None
            due = tokenizer.decode(asked.generation.output_ids, skip_special_tokens=True)
            expect(text == due, f"the engine gave {due!r}, the agent reads {text!r}")
        trained(opened)


async def _unwritten(bench: EndpointBench) -> None:
    """Expect texts to be asked as ever where nothing says how a conversation is written, and one to be refused."""
    tokenizer = base_tokenizer()
    try:
        await _texts(bench, tokenizer, StopReason.STOP)
        async with bench.opened(tokenizer=tokenizer, script=lambda n: said(tokenizer, n, StopReason.STOP)) as opened:
            opened.agent.history = [CHAT.asked("stone?")]
            told = await opened.agent.ask()
    except ArealError as error:
        bench.notes.append(f"opens no session without a chat template: {error}")
        return
    if told.status == 200:
        text = tokenizer.decode(opened.session.asked[0].input_ids)
        expect("stone?" in text, f"the policy was asked {text!r}")
        return
    expect(400 <= told.status < 500 and bool(told.reason), f"refused with {told.status} {told.reason!r}")
    expect(not opened.session.asked, "a conversation was refused after the policy had been asked")


def _goes_on(opened: Opened, end: int) -> None:
    """Expect each request to go on from the one before and its answer, whose end is not said again."""
    for before, after in itertools.pairwise(opened.session.asked):
        assert before.generation is not None
        whole = (*before.input_ids, *before.generation.output_ids)
        seen = after.input_ids[: len(whole)]
        expect(seen == whole, f"the tokens of a turn were {whole}, the next one is asked with {after.input_ids}")
        expect(after.input_ids[len(whole)] != end, f"an answer ended with {end}, which stands behind it once more")
