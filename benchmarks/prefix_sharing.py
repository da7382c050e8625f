"""Turns of a session on one server: exact tokens with bridges between them, against text encoded anew.

`python benchmarks/prefix_sharing.py vllm` (or sglang) starts one server through the plugin, with SmolLM2-135M-Instruct,
and lets sessions of several turns take place in three ways, in turns:

    exact     prompt + answer + bridge: each prompt begins with all tokens of the one before and its answer
    again     answers decoded, and the whole conversation encoded anew, as a chat endpoint does
    unshared  as exact, on a part of the cache of its own for each request: what a server does that finds nothing

The figure is the share of the tokens that the server had seen in that session which it found in its cache. Beside
it: how many turns had other tokens after encoding anew, so that they could not be trained on as they were sampled,
and seconds. It needs the environment that `areal env create ENGINE` makes, and SmolLM2 (`areal_tasks.smollm2`).
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from typing import Any

import attrs
import frame
from transformers import AutoTokenizer

from areal_agentic.renderer import BoundRenderer
from areal_core.contract.ids import RequestId
from areal_core.contract.inference import GenerationRequest, InferenceSpec, SamplingParams
from areal_core.plugins.registry import default_registry
from areal_renderers.auto import AutoRenderer
from areal_serving.engine import ServedEngine
from areal_tasks.smollm2 import default_cache, smollm2

SIDES = ("exact", "again", "unshared")
OPTIONS: dict[str, dict[str, Any]] = {
    "vllm": {"kv_cache_gib": 1.0, "server_args": ["--block-size", "32"]},
    "sglang": {"kv_cache_gib": 1.0},
}
"""vLLM finds whole blocks: on the CPU they have 128 tokens unless it is told otherwise, on GPUs 16. Any: options."""
TOPICS = ("the sea", "bread", "old maps", "rain", "chess", "bridges", "tea", "owls")


@attrs.define(kw_only=True)
class Turns:
    """What was seen of one way's later turns, those that could share something."""

    num_turns: int = 0
    num_changed: int = 0
    """Turns whose prompt does not begin with the tokens of the one before and its answer."""
    prompt: int = 0
    seen: int = 0
    """Tokens of prompts and answers that the server had computed in the same session."""
    cached: int = 0
    seconds: float = 0.0


def question(session: str, turn: int) -> dict[str, Any]:
    """Return what the user says; sessions differ from the first word on. Any: JSON."""
    topic = TOPICS[turn % len(TOPICS)]
    return {
        "role": "user",
        "content": f"{session}: and what should a child know about {topic}? Tell it in three lines.",
    }


async def answered(
    engine: ServedEngine, prompt: list[int], name: str, output: int, space: str
) -> tuple[list[int], int]:
    """Return the tokens of an answer, and how many of its prompt were in the cache."""
    sampling = SamplingParams(max_new_tokens=output, temperature=1.0)
    request = GenerationRequest(request_id=RequestId(name), input_ids=tuple(prompt), sampling=sampling)
    call = engine.running.calls.call_for(request, output)
    reply = await engine.dialect.generate(engine.serving, attrs.evolve(call, cache_space=call.cache_space + space))
    return list(reply.output_ids), reply.cached_tokens or 0


async def session(engine: ServedEngine, renderer: BoundRenderer, name: str, side: str, sizes: Any) -> Turns:
    """Let one session take place. Any: the arguments of the command."""
    seen, history = Turns(), [question(name, 0)]
    prompt = renderer.render(history)
    for turn in range(sizes.turns):
        space = f"-{name}-{turn}" if side == "unshared" else ""
        began = time.perf_counter()
        output, cached = await answered(engine, prompt, f"{name}-{turn}", sizes.output, space)
        if turn:
            seen.seconds += time.perf_counter() - began
            seen.num_turns, seen.cached, seen.prompt = (
                seen.num_turns + 1,
                seen.cached + cached,
                seen.prompt + len(prompt),
            )
        before, following = [*prompt, *output], question(name, turn + 1)
        bridge = renderer.bridge(history, output, [following])
        if bridge is None:
            raise RuntimeError(f"no bridge behind {output}")
        history += [renderer.parse(output).message, following]
        prompt = renderer.render(history) if side == "again" else [*before, *bridge]
        if turn + 1 < sizes.turns:
            seen.seen += len(before)
            seen.num_changed += prompt[: len(before)] != before
    return seen


async def measure(sizes: Any) -> dict[str, Any]:
    """Return what was seen of each way. Any: the arguments of the command, json."""
    folder = smollm2(default_cache())
    renderer = AutoRenderer().bind(AutoTokenizer.from_pretrained(folder))
    engine: ServedEngine = default_registry().build("infer", sizes.engine, OPTIONS[sizes.engine])
    await engine.start(InferenceSpec(model_path=str(folder), max_concurrent=sizes.sessions))
    rounds: dict[str, list[list[Turns]]] = {side: [] for side in SIDES}
    try:
        await session(engine, renderer, "warm-up", "exact", sizes)
        for number in range(sizes.rounds):
            for side in SIDES:
                names = [f"{side} {number} {place}" for place in range(sizes.sessions)]
                of_round = (session(engine, renderer, name, side, sizes) for name in names)
                rounds[side].append(await asyncio.gather(*of_round))
    finally:
        await engine.close()
    table: dict[str, Any] = {"renderer": renderer.name, **vars(sizes)}
    for side, found in rounds.items():
        sessions = [each for of_round in found for each in of_round]
        shares = [
            sum(each.cached for each in each_round) / sum(each.seen for each in each_round) for each_round in found
        ]
        table[side] = {
            "cached_of_seen": frame.Figure.of(shares),
            "cached_of_prompts": sum(each.cached for each in sessions) / sum(each.prompt for each in sessions),
            "changed_turns": sum(each.num_changed for each in sessions) / sum(each.num_turns for each in sessions),
            "seconds_per_session": statistics.median(each.seconds for each in sessions),
        }
    return table


def main() -> int:
    """Measure and report; the result is the share of seen tokens that was found."""
    parser = frame.parser(__doc__)
    parser.add_argument("engine", choices=("vllm", "sglang"))
    parser.add_argument("--sessions", type=int, default=4, help="at once")
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--output", type=int, default=48, help="tokens of an answer at most")
    parser.add_argument("--rounds", type=int, default=5)
    sizes = parser.parse_args()
    if sizes.quick:
        sizes.sessions, sizes.turns, sizes.rounds = 2, 3, 1
    table = frame.run(measure(sizes))
    result = frame.Result(
        name=f"prefix_sharing_{sizes.engine}",
        script="prefix_sharing",
        figure=table["exact"]["cached_of_seen"],
        what="tokens found in the server's cache / tokens it had seen in the same session",
        details=table,
    )
    return frame.finish(result, quick=sizes.quick)


if __name__ == "__main__":
    sys.exit(main())
