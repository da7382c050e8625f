"""What the conformance suite must know of the endpoint `http`: what each option does to a request.

Knows: conversations that show it.
Does not know: any check.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from areal_conformance.adapter import Adapter, Variant

if TYPE_CHECKING:
    from areal_agentic.endpoint import AgentEndpoint, OpenSession
    from areal_conformance.benches.endpoint import Told
    from areal_conformance.benches.workflow import ScriptedSession

_THOUGHT, _CALL = "<think>\nabba\n</think>\n\n", '<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>'
_TOOL = {"type": "function", "function": {"name": "add", "description": "To add.", "parameters": {"type": "object"}}}
_SPEAKING = (
    "{{ tone }}{%- if enable_thinking is defined %}{{- 'hush-' if not enable_thinking else 'think-' }}{%- endif %}"
)


async def _talk(
    endpoint: AgentEndpoint, *texts: str, tokenizer: Any = None, **more: Any
) -> tuple[ScriptedSession, OpenSession, list[Told]]:
    """Ask as often as there are texts, which the policy says. Any: a Hugging Face tokenizer; fields of the body."""
    import aiohttp

    from areal_conformance.benches.endpoint import Agent, answer
    from areal_conformance.benches.endpoint import tokenizer as usual
    from areal_conformance.benches.endpoint_forms import CHAT
    from areal_conformance.benches.workflow import ScriptedSession, paying

    session = ScriptedSession(
        script=lambda turn: answer(turn, text=texts[turn]),
        judge=paying(),
        tokenizer=tokenizer or usual(),
        image_token_id=None,
    )
    told = []
    async with aiohttp.ClientSession() as http:
        with endpoint.open(session) as opened:
            agent = Agent(http=http, url=endpoint.url, key=opened.key)
            for number in range(len(texts)):
                agent.history.append(CHAT.asked(f"{number}?"))
                told.append(await agent.ask(**more))
                agent.history += CHAT.echo(told[-1].body)
    return session, opened, told


async def _first(endpoint: AgentEndpoint) -> str:
    """Return a request as text, of a tokenizer whose template has a variable and a switch."""
    from areal_conformance.probes.tokenizers import CHATML, with_template

    session, _, _ = await _talk(endpoint, "ab", tokenizer=with_template(_SPEAKING + CHATML))
    return str(session.tokenizer.decode(session.asked[0].input_ids)).partition("0?")[0]


async def _trajectories(endpoint: AgentEndpoint) -> list[tuple[int, float]]:
    """Return how many trajectories two questions make, and how often one began anew: with thoughts, and without."""
    from areal_conformance.probes.tokenizers import tiny_tokenizer

    made = []
    for thought in (_THOUGHT, ""):
        texts = [f"{thought}ab", f"{thought}ba"]
        _, opened, _ = await _talk(endpoint, *texts, tokenizer=tiny_tokenizer("thinking"))
        made.append((len(opened.trajectories(1.0)), opened.metrics["agent/restarted"]))
    return made


async def _read(endpoint: AgentEndpoint) -> tuple[str, Any]:
    """Return the renderer, and how a call is told. Any: JSON."""
    from areal_conformance.benches.endpoint import tokenizer

    _, _, (told,) = await _talk(endpoint, _CALL, tools=[_TOOL])
    return endpoint.writes(tokenizer()), told.body["choices"][0]["finish_reason"]  # type: ignore[attr-defined]


async def _begun(endpoint: AgentEndpoint) -> bool:
    """Tell whether a text is asked with the token that the tokenizer begins texts with."""
    import aiohttp

    from areal_conformance.benches.endpoint import Agent
    from areal_conformance.benches.endpoint_forms import TEXT
    from areal_conformance.benches.workflow import ScriptedSession, generation, paying
    from areal_conformance.benches.workflow_beginnings import beginning_tokenizer

    tokenizer = beginning_tokenizer()
    session = ScriptedSession(script=generation, judge=paying(), tokenizer=tokenizer, image_token_id=None)
    async with aiohttp.ClientSession() as http:
        with endpoint.open(session) as opened:
            agent = Agent(http=http, url=endpoint.url, key=opened.key, form=TEXT)
            await agent.post(TEXT.path, TEXT.body("stone>"))
    return bool(session.asked[0].input_ids[0] == tokenizer.bos_token_id)


_USER = "<|im_start|>user\n"
_SYSTEM = "<|im_start|>system\nYou are a small model. You are a helpful assistant.<|im_end|>\n"
HTTP = Adapter(
    no_threshold={
        "areal_agents.gate:MAX_BODY": "a larger request is refused; tests of areal-agents send one",
        "areal_agents.loopback:_WANTED": "how many open files the system is asked for",
        "areal_agents.wire.body:_DELTA": "letters of a piece: streams of the checks are of more, and of fewer",
    },
    variants={
        "system": Variant(
            options={"system": "be ab"}, shows=_first, gives=f"<|im_start|>system\nbe ab<|im_end|>\n{_USER}"
        ),
        "template": Variant(options={"template": {"tone": "low-"}}, shows=_first, gives=f"low-{_SYSTEM}{_USER}"),
        "enable_thinking": Variant(
            options={"enable_thinking": False},
            shows=_first,
            gives=f"hush-{_SYSTEM}{_USER}",
            again=False,  # the suite's own templates have no such switch
        ),
        "add_special_tokens": Variant(options={"add_special_tokens": False}, shows=_begun, gives=False),
        "renderer": Variant(
            options={"renderer": "template", "renderer_options": {"calls": "json"}},
            shows=_read,
            gives=("template", "tool_calls"),
        ),
        "renderer_options": Variant(
            options={"renderer": "template", "renderer_options": {"calls": "none"}},
            shows=_read,
            gives=("template", "stop"),
            again=False,  # such an agent reads calls itself
        ),
        "keep_thoughts": Variant(options={"keep_thoughts": True}, shows=_trajectories, gives=[(1, 0.0), (1, 0.0)]),
        "individual": Variant(
            options={"export": "individual"}, shows=_trajectories, gives=[(2, 1.0), (2, 0.0)], again=False
        ),
    },
)
