"""A teacher behind a URL judges the tokens it is sent, and a run with it is the run with the same teacher as a role."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import define, evolve, field

from areal_core.cli.train import train
from areal_core.config.load import load_config
from areal_core.config.plan import make_plan
from areal_core.contract.batch import Batch
from areal_core.contract.errors import ArealError, GenerationFailed
from areal_core.contract.train import Output
from areal_core.plugins.registry import Registry
from areal_supervised.served_teacher import ServedTeacher, ServedTeacherConfig
from areal_tasks.tiny import make_spell_model
from areal_torch.testing.batches import make_batch

KEY = "a-key-of-the-teacher"
VOCABULARY = 31


@define
class Teaching:
    """A server of one model that answers /v1/completions as vLLM does, and what may be wrong with it."""

    model: Any
    url: str = ""
    busy: int = 0
    short: bool = False
    other_tokens: bool = False
    by_text: bool = False
    keys: list[str] = field(factory=list)

    def judged(self, ids: list[int], count: int = 1) -> dict[str, Any]:
        with torch.no_grad():
            logprobs = self.model(torch.tensor([ids])).logits[0].float().log_softmax(-1)
        values = [None, *(float(logprobs[t, token]) for t, token in enumerate(ids[1:])), -1.0]
        shown = [f"token_id:{token + self.other_tokens}" for token in ids]
        best = [None, *(self.named(row, count) for row in logprobs[:-1]), {}]
        return {"tokens": shown, "token_logprobs": values[:3] if self.short else values, "top_logprobs": best}

    def named(self, logprobs: torch.Tensor, count: int) -> dict[str, float]:
        """Return the most probable tokens in no order, and one more, as vLLM adds the token that was taken."""
        values, ids = logprobs.topk(min(count + 1, len(logprobs)))
        return {f"{'' if self.by_text else 'token_id:'}{ids[n]}": float(values[n]) for n in reversed(range(len(ids)))}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A student, a teacher and prompts."""
    folder = tmp_path_factory.mktemp("served")
    make_spell_model(folder / "student", 1)
    make_spell_model(folder / "teacher", 2)
    words = ["abc", "bcd", "cde", "def", "efa", "fab", "ace", "bdf"]
    (folder / "rows.jsonl").write_text("\n".join(json.dumps({"prompt": f"{word}>", "answer": word}) for word in words))
    return folder


@pytest.fixture
def teaching(folder: Path) -> Iterator[Teaching]:
    """A server on loopback."""
    from transformers import AutoModelForCausalLM

    state = Teaching(AutoModelForCausalLM.from_pretrained(folder / "teacher", dtype=torch.float32).eval())

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            state.keys.append(self.headers.get("authorization", ""))
            if state.busy:
                state.busy -= 1
                self.send_response(503)
                self.end_headers()
                return
            found = {"choices": [{"logprobs": state.judged(asked["prompt"], asked["logprobs"])}]}
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(found).encode())

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_port}/v1"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield state
    server.shutdown()
    server.server_close()


def answers() -> Batch:
    """Return sequences of the vocabulary of the teacher."""
    batch = make_batch([(2, 3), (1, 5), (4, 9)])
    return batch.with_tokens(input_ids=batch.tokens["input_ids"] % VOCABULARY)


def judge(teaching: Teaching, **options: Any) -> torch.Tensor:
    teacher = ServedTeacher(ServedTeacherConfig(url=teaching.url, model="teacher", **options))
    return asyncio.run(teacher.forward(answers(), Output.LOGPROBS))


def test_every_token_has_the_log_prob_the_model_gives_it(teaching: Teaching, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sequence by sequence, in the batch's order; the key is that of the environment."""
    monkeypatch.setenv("TEACHERS_KEY", KEY)
    batch = answers()

    found = judge(teaching, api_key_env="TEACHERS_KEY")

    wanted = []
    for row in range(batch.num_sequences):
        ids = batch.tokens["input_ids"][batch.cu_seqlens[row] : batch.cu_seqlens[row + 1]].tolist()
        wanted += [0.0, *teaching.judged(ids)["token_logprobs"][1 : len(ids)]]
    assert torch.allclose(found, torch.tensor(wanted))
    assert set(teaching.keys) == {f"Bearer {KEY}"}


def test_the_most_probable_tokens_are_the_models(teaching: Teaching) -> None:
    """In order, with their log-probs, at every place but the first of a sequence."""
    batch = answers()
    teacher = ServedTeacher(ServedTeacherConfig(url=teaching.url, model="teacher"))

    ids, logprobs = asyncio.run(teacher.most_probable(batch, 4))

    assert ids.dtype == torch.int32 and ids.shape == logprobs.shape == (batch.num_tokens, 4)
    for row in range(batch.num_sequences):
        first, last = batch.cu_seqlens[row : row + 2].tolist()
        with torch.no_grad():
            wanted = teaching.model(batch.tokens["input_ids"][None, first:last]).logits[0, :-1].float().log_softmax(-1)
        values, found = wanted.topk(4)
        assert torch.equal(ids[first + 1 : last].long(), found)
        assert torch.allclose(logprobs[first + 1 : last], values)
        assert not logprobs[first].any()


@pytest.mark.parametrize(("wrong", "count"), [({"by_text": True}, 2), ({}, VOCABULARY + 1)], ids=["by text", "too few"])
def test_a_teacher_that_does_not_name_tokens_is_an_error(teaching: Teaching, wrong: dict[str, Any], count: int) -> None:
    """Two tokens may have one text, so a text names none."""
    for name, value in wrong.items():
        setattr(teaching, name, value)

    with pytest.raises(GenerationFailed) as caught:
        ServedTeacher(ServedTeacherConfig(url=teaching.url, model="m")).named([3, 4, 5], count)

    assert "does not name" in str(caught.value.why) and "max-logprobs" in str(caught.value.fix)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [({"short": True}, "3 log-probs came"), ({"other_tokens": True}, "judged other tokens"), ({"busy": 9}, "503")],
    ids=["short", "other tokens", "busy"],
)
def test_a_teacher_that_does_not_judge_is_an_error(teaching: Teaching, wrong: dict[str, Any], told: str) -> None:
    """Never a column of something else."""
    for name, value in wrong.items():
        setattr(teaching, name, value)

    with pytest.raises(GenerationFailed) as caught:
        judge(teaching, retries=0)

    assert told in str(caught.value.why)


def test_a_teacher_that_is_not_there_is_an_error() -> None:
    """It names the address."""
    with pytest.raises(GenerationFailed, match="teacher does not answer") as caught:
        ServedTeacher(ServedTeacherConfig(url="http://127.0.0.1:9/v1", model="m", retries=0)).logprobs([1, 2])

    assert "127.0.0.1:9" in str(caught.value.why)


def distillation(folder: Path, out: Path, options: dict[str, Any]) -> dict[str, Any]:
    return {
        "kind": "distill",
        "out": str(out),
        "steps": 3,
        "options": options,
        "model": {"path": str(folder / "student")},
        "data": {"name": "jsonl", "options": {"path": str(folder / "rows.jsonl")}},
        "deterministic": True,
        "rollout": {"prompts_per_step": 4, "group_size": 2, "max_staleness": 0, "sampling": {"max_new_tokens": 6}},
        "actor": {"optimizer": {"lr": 5e-3}},
    }


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["rollout.sampling.temperature=0.7"], "rollout.sampling.temperature is 0.7"),
        (["options.teacher.path=x"], "options.teacher and options.served are set"),
        (["options.served.url=nowhere"], "url"),
        (["reference={}"], "reference is set, and kind is distill"),
    ],
)
def test_what_cannot_be_is_refused(folder: Path, tmp_path: Path, overrides: list[str], told: str) -> None:
    """While planning."""
    base = distillation(folder, tmp_path, {"served": {"url": "http://127.0.0.1:9/v1", "model": "m"}})

    with pytest.raises(ArealError) as caught:
        make_plan(load_config(None, tuple(overrides), base), Registry(environ={}), {})

    assert told in str(caught.value)


def test_a_resolved_run_plans_to_itself(folder: Path, tmp_path: Path) -> None:
    """What `config.yaml` holds goes through planning again; nobody needs devices for the teacher."""
    registry = Registry(environ={})
    base = distillation(folder, tmp_path, {"served": {"url": "http://127.0.0.1:9/v1", "model": "m"}})

    plan = make_plan(load_config(None, (), base), registry, {})

    assert [role.role for role in plan.roles] == ["actor", "rollout"]
    assert plan.config.algorithm.advantages.kl.coefficient == 1.0
    assert make_plan(plan.config, registry, {}).config == plan.config
    other = evolve(plan.config.algorithm.advantages, gamma=0.5)
    with pytest.raises(ArealError, match=r"algorithm\.advantages is set"):
        make_plan(evolve(plan.config, algorithm=evolve(plan.config.algorithm, advantages=other)), registry, {})


@pytest.mark.slow
@pytest.mark.parametrize("top_k", [0, 5])
def test_a_served_teacher_teaches_what_the_role_teaches(
    folder: Path, tmp_path: Path, teaching: Teaching, top_k: int
) -> None:
    """Three synchronous steps: the same distance to the teacher, the same loss, whoever told the log-probs."""
    told = {}
    for name, options in {
        "role": {"teacher": {"path": str(folder / "teacher")}},
        "served": {"served": {"url": teaching.url, "model": "teacher"}},
    }.items():
        base = distillation(folder, tmp_path / name, {**options, "top_k": top_k})
        assert train(load_config(None, (), base), quiet=True) == 0
        lines = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        told[name] = [(json.loads(line)["train/reference_kl"], json.loads(line)["loss"]) for line in lines]

    assert len(told["role"]) == 3
    for role, served in zip(told["role"], told["served"], strict=True):
        assert served == pytest.approx(role, abs=1e-4)
