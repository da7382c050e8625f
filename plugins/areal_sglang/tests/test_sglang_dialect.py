"""What is asked of a server, in which order, and what its answers mean; the server here is a script."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, ParamSpec, cast

import pytest
from attrs import define, field

from areal_core.contract.errors import CoverageError, FingerprintMismatch, WeightSyncError, WorkerError
from areal_core.contract.inference import PauseMode
from areal_serving.http import Api, ServerAnswer
from areal_sglang.dialect import SGLangDialect

P = ParamSpec("P")
Json = dict[str, Any]  # Any: JSON
STALE = (
    '{"success":false,"message":"Weights were updated, but the cache was not flushed because requests are still '
    'running or queued. Retract or finish them, then call /flush_cache."}'
)
WHOLE: list[Json] = [{"problems": []}]


def awaited(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run a coroutine test."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


@define
class ScriptedApi:
    """Answers from a table of path -> answer, list of answers in turn, or function of the body; remembers the calls."""

    answers: Mapping[str, Any]
    asked: list[tuple[str, Any]] = field(factory=list)
    url: str = "http://127.0.0.1:1"

    async def post(self, path: str, body: Any = None, **_: Any) -> Any:
        """Answer a POST."""
        return self._answer(path, body)

    async def get(self, path: str, **_: Any) -> Any:
        """Answer a GET."""
        return self._answer(path, None)

    async def text(self, path: str, **_: Any) -> Any:
        """Answer a GET whose answer is no JSON."""
        return self._answer(path.partition("?")[0], None)

    def _answer(self, path: str, body: Any) -> Any:
        self.asked.append((path, body))
        answer = self.answers.get(path, {})
        answer = answer.pop(0) if isinstance(answer, list) else answer
        answer = answer(body) if callable(answer) else answer
        if isinstance(answer, Exception):
            raise answer
        return answer

    @property
    def paths(self) -> list[str]:
        """Return what was asked, in order."""
        return [path for path, _ in self.asked]


def server(**answers: Any) -> tuple[Api, ScriptedApi]:
    """Return a scripted server, as both types; names are paths."""
    scripted = ScriptedApi({f"/{name}": answer for name, answer in answers.items()})
    return cast(Api, scripted), scripted


def told(**actions: Any) -> Callable[[Json], Json]:
    """Answer /weights_checker as the hooks do: action -> answers of all ranks."""

    def answer(body: Json) -> Json:
        action = body["action"].removeprefix("areal.").partition(":")[0]
        found = actions[action]
        return {"success": True, "message": json.dumps(found.pop(0) if isinstance(found[0], list) else found)}

    return answer


@awaited
async def test_names_ended_cannot_begin_others() -> None:
    """SGLang matches by the beginning."""
    api, scripted = server()
    await SGLangDialect().abort(api, ["areal-1"])

    assert scripted.asked == [("/abort_request", {"rid": "areal-1."})]


@awaited
async def test_a_pause_in_place_is_over_when_the_scheduler_has_seen_it() -> None:
    """SGLang answers a pause before its scheduler has it; a question behind it is answered after it."""
    api, scripted = server(weights_checker=told(describe=[{"missing": []}]))
    await SGLangDialect().pause(api, PauseMode.KEEP)

    assert scripted.asked[0] == ("/pause_generation", {"mode": "in_place"})
    assert scripted.paths[1] == "/weights_checker"


@awaited
async def test_what_was_frozen_can_be_ended() -> None:
    """Ended requests return only when the scheduler goes on."""
    api, scripted = server()
    await SGLangDialect().pause(api, PauseMode.ABORT)

    assert scripted.asked[0] == ("/abort_request", {"abort_all": True})
    assert scripted.paths[1:] == ["/continue_generation"]


@pytest.mark.parametrize(("keep", "mode"), [(True, "in_place"), (False, "retract")])
@awaited
async def test_a_load_pauses_first(keep: bool, mode: str) -> None:
    """An update of a server that runs waits for its requests, or leaves a stale prefix cache."""
    api, scripted = server(weights_checker=told(loaded=WHOLE))
    await SGLangDialect().load(api, Path("/staged/v3"), 3, keep_cache=keep)

    assert scripted.asked[0] == ("/pause_generation", {"mode": mode})
    path, body = scripted.asked[1]
    assert path == "/update_weights_from_disk"
    assert (body["model_path"], body["weight_version"], body["flush_cache"]) == ("/staged/v3", "3", not keep)


@awaited
async def test_live_weights_with_a_stale_cache_are_flushed() -> None:
    """SGLang answers 400 although the new weights serve; its prefix cache is still of the old ones."""
    failed = ServerAnswer("/update_weights_from_disk", 400, STALE)
    busy = ServerAnswer("/flush_cache", 400, "Flush cache failed.")
    api, scripted = server(
        update_weights_from_disk=failed, flush_cache=[busy, None], weights_checker=told(loaded=WHOLE)
    )
    await SGLangDialect().load(api, Path("/staged/v3"), 3, keep_cache=False)

    again = ["/pause_generation", "/flush_cache"]
    assert scripted.paths[2:] == [*again, *again, "/weights_checker"]


@awaited
async def test_a_cache_that_stays_stale_is_an_error() -> None:
    """Wrong outputs would follow."""
    failed = ServerAnswer("/update_weights_from_disk", 400, STALE)
    api, _ = server(update_weights_from_disk=failed, flush_cache=ServerAnswer("/flush_cache", 400, "no"))
    with pytest.raises(WeightSyncError, match="prefix cache"):
        await SGLangDialect().load(api, Path("/staged/v3"), 3, keep_cache=False)


@awaited
async def test_another_failure_of_a_load_is_not_flushed_away() -> None:
    """A folder that cannot be read."""
    failed = ServerAnswer("/update_weights_from_disk", 400, "Failed to get weights iterator")
    api, scripted = server(update_weights_from_disk=failed)
    with pytest.raises(ServerAnswer):
        await SGLangDialect().load(api, Path("/staged/v3"), 3, keep_cache=False)

    assert "/flush_cache" not in scripted.paths


@awaited
async def test_a_load_that_passed_over_a_tensor_is_an_error() -> None:
    """On any rank."""
    ranks = [{"problems": []}, {"problems": ["tensor bias was passed over"]}]
    api, _ = server(weights_checker=told(loaded=ranks))
    with pytest.raises(CoverageError, match="bias"):
        await SGLangDialect().load(api, Path("/staged/v3"), 3, keep_cache=True)


@awaited
async def test_a_proof_is_waited_for() -> None:
    """Ranks hash in threads; the slowest counts."""
    done, busy = {"done": True, "problem": "", "fingerprints": {"w": "ab"}}, {"done": False}
    api, scripted = server(weights_checker=told(prove=[[busy, busy], [done, busy], [done, done]]))

    assert await SGLangDialect().prove(api, Path("/staged/v3")) == {"w": "ab"}
    assert [body["action"] for _, body in scripted.asked] == ["areal.prove:/staged/v3"] * 3


@awaited
async def test_ranks_that_read_different_bytes_are_found_out() -> None:
    """Each proves for itself."""
    ranks = [{"done": True, "problem": "", "fingerprints": {"w": digits}} for digits in ("ab", "cd")]
    api, _ = server(weights_checker=told(prove=ranks))
    with pytest.raises(FingerprintMismatch):
        await SGLangDialect().prove(api, Path("/staged/v3"))


@awaited
async def test_staged_weights_nobody_can_read_are_an_error() -> None:
    """With the reason the rank gives."""
    api, _ = server(weights_checker=told(prove=[{"done": True, "problem": "no such file", "fingerprints": {}}]))
    with pytest.raises(WeightSyncError, match="no such file"):
        await SGLangDialect().prove(api, Path("/staged/v3"))


INFO = {"version": "0.5.23", "max_req_input_len": 130, "sampling_backend": "pytorch"}


@awaited
async def test_facts_give_the_context_that_can_be_used() -> None:
    """A context of 136 has room for a prompt of 127 tokens and one more, or any other split of 128."""
    api, _ = server(server_info=INFO, weights_checker=told(describe=[{"missing": [], "experts": {}}], loaded=WHOLE))

    assert (await SGLangDialect().facts(api)).context_length == 128


@awaited
async def test_a_server_without_hooks_is_refused() -> None:
    """Its log-probs would be of another distribution."""
    answer = ServerAnswer("/weights_checker", 400, "Unsupported action='areal.describe'")
    api, _ = server(server_info=INFO, weights_checker=answer)
    with pytest.raises(WorkerError, match="without areal's hooks"):
        await SGLangDialect().facts(api)


@awaited
async def test_a_server_that_lacks_one_hook_is_refused() -> None:
    """SGLang logs a hook that fails, and starts."""
    api, _ = server(server_info=INFO, weights_checker=told(describe=[{"missing": ["a.b.c"]}]))
    with pytest.raises(WorkerError, match=r"a\.b\.c"):
        await SGLangDialect().facts(api)


@awaited
async def test_gauges_are_sums_over_ranks() -> None:
    """Counts of `inside.counts` stand where SGLang has its decode moments."""
    load = {"num_running_reqs": 2, "num_waiting_reqs": 1, "token_usage": 0.25, "gen_throughput": 10.0}
    loads = [{**load, "decode_moments": [30.0, 10.0, 1.0, 70.0, 0.0, 0.0]}, {**load, "decode_moments": None}]
    api, _ = server(**{"v1/loads": {"loads": loads}})
    gauges = await SGLangDialect().gauges(api)

    assert (gauges.num_running, gauges.num_waiting, gauges.tokens_generated) == (4, 2, 70)
    assert gauges.metrics["prefix_hit_share"] == pytest.approx(1 / 3)
    assert (gauges.metrics["kv_used_share"], gauges.metrics["num_preempted"]) == (0.25, 1.0)


@pytest.mark.parametrize(
    ("tail", "blamed"),
    [
        ("ValueError: Model architectures ['X'] are not supported for now.", True),
        ("safetensors_rust.SafetensorError: Error while deserializing header", True),
        ("RuntimeError: Not enough memory.", False),
    ],
)
def test_a_bad_model_folder_is_told_from_other_ends(tail: str, blamed: bool) -> None:
    """A model error is not worth a second try."""
    assert SGLangDialect().blames_model(tail) is blamed
