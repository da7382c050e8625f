"""From a request to its answers: render, generate, read, record.

Knows: the order of these, and that nothing is recorded that is not about to be told.
Does not know: names of an API, HTTP, or which requests a session may make.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized

from attrs import evolve

from areal_agentic.renderer import Answer, Tool
from areal_agents.asked import Ask, Called, ChatAsk, Replies, Reply, TextAsk
from areal_agents.conversation import Prompt
from areal_agents.episode import AgentSession
from areal_core.contract.data import StopReason
from areal_core.contract.errors import BatchError, CapabilityError
from areal_core.contract.inference import Generation


async def answer(session: AgentSession, ask: ChatAsk | TextAsk) -> Replies:
    """Answer a request, and record what was answered.

    Raises:
        TooManyRequests: the session made all it may.
        DatasetError, PromptTooLong, CapabilityError, BatchError: what was asked cannot be answered.
        NoReplica, GenerationFailed: the fleet failed.
    """
    session.admit()
    if isinstance(ask, TextAsk):
        return await _texts(session, ask)
    return await _chats(session, ask)


def prompt_of(session: AgentSession, ask: ChatAsk) -> Prompt:
    """Return the tokens of a chat, the run's own system message first.

    Raises:
        DatasetError: the model's family has no place for a message.
    """
    system = session.config.system
    messages = [*([{"role": "system", "content": system}] if system else []), *ask.messages]
    return session.conversations.prompt(messages, ask.tools)


async def _chats(session: AgentSession, ask: ChatAsk) -> Replies:
    prompt, renderer = prompt_of(session, ask), session.conversations.renderer
    generations = await session.generate(prompt.ids, ask, renderer.stop_token_ids)
    said = [renderer.parse(generation.output_ids, tools=ask.tools) for generation in generations]
    if ask.tools:
        said = [await _with_calls(session, *pair, ask.tools) for pair in zip(said, generations, strict=True)]
    replies = [_reply(session, ask, *pair) for pair in zip(said, generations, strict=True)]
    session.record(prompt.ids, generations, prompt.restart)
    for each, reply in zip(said, replies, strict=True):
        session.conversations.answered(prompt, reply.generation.output_ids, each.message, reply.message)
    return Replies(num_prompt=len(prompt.ids), replies=replies)


async def _texts(session: AgentSession, ask: TextAsk) -> Replies:
    tokenizer = session.session.tokenizer
    if isinstance(ask.prompt, str):
        ids = tokenizer.encode(ask.prompt, add_special_tokens=session.config.add_special_tokens)
    else:
        ids = list(ask.prompt)
        _check(ids, tokenizer)
    generations = await session.generate(ids, ask)
    texts = [tokenizer.decode(each.output_ids, skip_special_tokens=True) for each in generations]
    replies = [_reply(session, ask, Answer(content=text), each) for text, each in zip(texts, generations, strict=True)]
    session.record(ids, generations, None)
    return Replies(num_prompt=len(ids), replies=replies)


async def _with_calls(session: AgentSession, said: Answer, generation: Generation, tools: Sequence[Tool]) -> Answer:
    """Return an answer with the calls that the engine's parser finds, where the renderer finds none."""
    if said.calls or not session.engine_reads_calls:
        return said
    text = session.session.tokenizer.decode(generation.output_ids, skip_special_tokens=False)
    try:
        parsed = await session.session.parse_tool_calls(text, tools)
    except CapabilityError:
        session.engine_reads_calls = False
        return said
    return evolve(said, content=parsed.content, calls=parsed.calls) if parsed.calls else said


def _check(ids: Sequence[int], tokenizer: object) -> None:
    """Refuse a token that the tokenizer does not have: engines fail in many ways with one."""
    if isinstance(tokenizer, Sized) and max(ids) >= len(tokenizer):
        raise BatchError(f"there is no token {max(ids)}", why=f"the tokenizer has {len(tokenizer)}")


def _reply(session: AgentSession, ask: Ask, said: Answer, generation: Generation) -> Reply:
    content, thoughts, stop = said.content, said.thoughts, None
    if generation.stop_reason == StopReason.STOP:
        thoughts, stop = _cut(thoughts, ask.stops)
        content, stop = ("", stop) if stop else _cut(content, ask.stops)
    pieces = [session.session.tokenizer.decode([token]) for token in generation.output_ids] if ask.logprobs else []
    return Reply(
        generation=generation,
        content=content,
        thoughts=thoughts,
        calls=[Called(name=call.name, arguments=call.arguments) for call in said.calls],
        stop=stop,
        pieces=pieces,
    )


def _cut(text: str, stops: Sequence[str]) -> tuple[str, str | None]:
    """Return a text up to the first of the stops, and which one that is."""
    place, found = min(((text.find(stop), stop) for stop in stops if stop in text), default=(len(text), None))
    return text[:place], found
