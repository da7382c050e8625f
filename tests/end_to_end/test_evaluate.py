"""An evaluation counts what a plain loop counts, keeps every sample, stops and goes on; what cannot work is refused."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
import yaml

from areal_core.cli.main import main
from areal_core.contract.errors import ArealError, RunFolderError
from areal_core.plugins.registry import default_registry
from areal_episodes.reader import Filter, Reader
from areal_evaluate.config import load_tasks
from areal_evaluate.evaluate import Nobody, evaluate
from areal_evaluate.plan import plan_evaluation
from areal_evaluate.run import Evaluated, Evaluation

from .live_run import live_run
from .one_process import Letters, OneProcess

pytest.importorskip("areal_reference")
pytestmark = pytest.mark.slow

TOKENS, PROMPTS, SAMPLES, ENOUGH = 8, 6, 4, 7 / 16
SPELL = {"name": "spell", "options": {"split": "held", "size": PROMPTS}}
TASKS: Mapping[str, Any] = {
    "rollout": {
        "backend": "reference:d1",
        "sampling": {"max_new_tokens": TOKENS},
        "reward": {"name": "exact_match"},
    },
    "samples": SAMPLES,
    "k": [1, 2, SAMPLES],
    "pass_reward": ENOUGH,
    "benchmarks": {
        "short": {"data": SPELL},
        "long": {"data": {**SPELL, "name": "long_spell"}, "samples": 2, "k": [2], "max_prompts": 3},
    },
}


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep replicas in this process."""
    monkeypatch.setattr("areal_evaluate.run.make_scheduler", lambda config, registry, logs: OneProcess())


@pytest.fixture
def letters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pay for letters that differ, so that a model that has learnt nothing gets something."""
    monkeypatch.setattr("areal_evaluate.benchmark.Benchmark._rewards", lambda benchmark, events: Letters())


@pytest.mark.usefixtures("here")
def test_counts_are_those_of_a_plain_loop(model: Path, tmp_path: Path) -> None:
    """Greedy answers of transformers, one prompt after the other, matched as text: prompt by prompt the same score.

    Every second row asks for what the model says, so that there is something to count.
    """
    rows = [{"prompt": f"{word}>", "answer": word[::-1]} for word in ("stone", "sun", "tree", "lamp", "river", "moss")]
    said = _greedy(model, [row["prompt"] for row in rows])
    for index in (1, 3, 4):
        rows[index]["answer"] = said[index]
    (tmp_path / "fixed.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    correct = [float(text.strip() == row["answer"].strip()) for text, row in zip(said, rows, strict=True)]
    tasks = {
        "rollout": {
            "backend": "reference:d1",
            "sampling": {"max_new_tokens": TOKENS, "temperature": 0},
            "reward": {"name": "exact_match", "options": {"finished": False}},
        },
        "benchmarks": {"fixed": {"data": {"name": "jsonl", "options": {"path": str(tmp_path / "fixed.jsonl")}}}},
    }

    score = evaluate(model, tasks, out=tmp_path / "out").scores["fixed"]

    assert 3 <= sum(correct) < len(rows)
    assert [reward for _, (reward,) in sorted(_rewards(tmp_path / "out")["fixed"].items())] == correct
    assert (score.prompts, score.samples) == (len(rows), len(rows))
    assert score.metrics["avg@1"].value == score.metrics["pass@1"].value == sum(correct) / len(rows)


@pytest.mark.usefixtures("here", "letters")
def test_scores_are_those_of_the_samples_that_are_kept(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command's table and summary against every draw of the samples that `areal episodes` reads."""
    out, file = tmp_path / "out", tmp_path / "tasks.yaml"
    file.write_text(yaml.safe_dump(dict(TASKS), sort_keys=False))

    code = main(["evaluate", str(model), str(file), f"out={out}"])

    shown, summary = capsys.readouterr().out, json.loads((out / "summary.json").read_text())
    rewards = _rewards(out)
    assert (code, summary["status"], list(summary["benchmarks"])) == (0, "finished", ["short", "long"])
    for name, num_prompts, num_samples, ks in (("short", PROMPTS, SAMPLES, (1, 2, SAMPLES)), ("long", 3, 2, (2,))):
        prompts, found = rewards[name], summary["benchmarks"][name]
        assert (len(prompts), {len(each) for each in prompts.values()}) == (num_prompts, {num_samples})
        assert (found["prompts"], found["samples"], found["rejected"]) == (num_prompts, num_prompts * num_samples, 0)
        average = found["metrics"][f"avg@{num_samples}"]
        assert average["value"] == pytest.approx(fmean(fmean(each) for each in prompts.values()))
        assert average["low"] < average["value"] < average["high"]
        assert set(found["metrics"]) == {f"avg@{num_samples}", *(f"pass@{k}" for k in ks)}
        for k in ks:
            draws = [list(combinations([reward >= ENOUGH for reward in each], k)) for each in prompts.values()]
            exact = sum(Fraction(sum(map(any, each)), len(each)) for each in draws) / len(draws)
            assert found["metrics"][f"pass@{k}"]["value"] == pytest.approx(float(exact), abs=1e-12)
            assert f"{float(exact):.4f}" in shown
    assert 0 < summary["benchmarks"]["short"]["metrics"]["pass@1"]["value"] < 1, "else nothing was told apart"
    assert max(map(len, shown.splitlines()[-12:])) <= max(80, len(f"samples: areal episodes {out} --order worst"))
    assert main(["episodes", str(out), "--task", "eval/long/2", "--json", "--limit", "9"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


@pytest.mark.usefixtures("here", "letters")
def test_the_pages_of_areal_view_show_an_evaluation(model: Path, tmp_path: Path) -> None:
    """It is found beside runs, and known to have finished."""
    runs = pytest.importorskip("areal_view.runs")
    state = pytest.importorskip("areal_view.state")
    evaluate(model, TASKS, ["samples=2", "k=[]"], out=tmp_path / "scores")

    (run,) = runs.Runs(tmp_path).all()
    shown = state.States().of(run)

    assert (run.name, shown.status(), shown.backends) == ("scores", "finished", "reference:d1")


@pytest.mark.usefixtures("here", "letters")
def test_a_stopped_evaluation_goes_on_to_the_same_samples(model: Path, tmp_path: Path) -> None:
    """What was done is kept and not made again; the end is what an evaluation in one piece gives, text for text."""
    whole = evaluate(model, TASKS, [_REPEATABLE], out=tmp_path / "whole")
    stopped = _until(5, model, tmp_path / "parts")
    kept = _samples(tmp_path / "parts")
    resumed = evaluate(model, TASKS, [_REPEATABLE], out=tmp_path / "parts", resume=True)

    assert (whole.finished, stopped.finished, resumed.finished) == (True, False, True)
    assert 5 <= len(kept) < PROMPTS * SAMPLES
    assert stopped.scores["short"].prompts < PROMPTS and stopped.scores["long"].prompts == 0
    after = _samples(tmp_path / "parts")
    assert {key: after[key] for key in kept} == kept, "a sample that is there keeps its number in the store"
    assert {key: said for key, (_, said) in after.items()} == {
        key: said for key, (_, said) in _samples(tmp_path / "whole").items()
    }
    assert resumed.scores == whole.scores


@pytest.mark.usefixtures("here", "letters")
def test_more_samples_join_those_that_are_there_and_others_do_not(model: Path, tmp_path: Path) -> None:
    """A resume may ask for more of each prompt; what would make other samples is refused by its name."""
    out = tmp_path / "out"
    evaluate(model, TASKS, ["samples=2", "k=[]"], out=out)
    before = _samples(out)
    summary = (out / "summary.json").read_bytes()

    with pytest.raises(RunFolderError, match="already holds an evaluation"):
        evaluate(model, TASKS, out=out)
    for override, named in (
        ("rollout.sampling.top_k=3", "sampling of benchmark 'short'"),
        ("seed=2", "model"),
        ("benchmarks.long.data.options.size=2", "data of benchmark 'long'"),
    ):
        with pytest.raises(RunFolderError, match=named):
            evaluate(model, TASKS, [override], out=out, resume=True)
    assert (out / "summary.json").read_bytes() == summary, "a refusal changes nothing"
    more = evaluate(model, TASKS, out=out, resume=True)

    after = _samples(out)
    assert more.finished and more.scores["short"].samples == PROMPTS * SAMPLES
    assert {key: after[key] for key in before} == before and len(after) == len(before) + PROMPTS * 2


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("share", [0.0, 0.3])
def test_too_many_failures_end_the_evaluation_and_are_no_zeros(model: Path, tmp_path: Path, share: float) -> None:
    """The error names a sample; those before it are kept, the summary says failed, and a resume goes on."""
    settings = (*_picky(tmp_path, f"picky_{share:g}", 2 * SAMPLES), f"rollout.max_failed_share={share}")
    out = tmp_path / "out"

    with pytest.raises(ArealError, match="eval/short/4.*" if share else "eval/short/2") as ended:
        evaluate(model, TASKS, settings, out=out)
    assert ("10 of 30 samples failed, rollout.max_failed_share=0.3" in str(ended.value)) == bool(share)
    failed = json.loads((out / "summary.json").read_text())
    (tmp_path / "limit").write_text("999")
    resumed = evaluate(model, TASKS, settings, out=out, resume=True)

    assert (failed["status"], failed["benchmarks"]["short"]["prompts"]) == ("failed", 2)
    assert (resumed.finished, resumed.failed, resumed.scores["short"].metrics["avg@4"].value) == (True, 0, 1.0)


@pytest.mark.usefixtures("here")
def test_a_few_failures_cost_their_prompts_and_are_made_again(model: Path, tmp_path: Path) -> None:
    """Two samples of one prompt fail: all else is scored, the failures are counted, and a resume mends them."""
    settings, out = _picky(tmp_path, "picky_late", 28), tmp_path / "out"

    first = evaluate(model, TASKS, settings, out=out)
    told = json.loads((out / "summary.json").read_text())
    (tmp_path / "limit").write_text("999")
    resumed = evaluate(model, TASKS, settings, out=out, resume=True)

    assert (first.finished, first.failed, told["failed"], told["status"]) == (True, 2, 2, "finished")
    assert (first.scores["short"].prompts, first.scores["long"].prompts) == (6, 2)
    assert (resumed.failed, resumed.scores["long"].prompts) == (0, 3)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("benchmarks=null", "benchmarks"),
        ("sample=3", "sample"),
        ("k=[5]", "k=5 with 4 samples"),
        ("rollout.sampling.temperature=0", "samples=4 at rollout.sampling.temperature=0"),
        ("rollout.sampling.temperature=-1", "benchmark 'short': rollout.sampling.temperature"),
        ("rollout.group_size=4", "rollout.group_size has no effect"),
        ("rollout.accept=mixed", "rollout.accept has no effect"),
        ("rollout.processes=2", "rollout.processes has no effect"),
        ("benchmarks.long.rollout.backend=vllm:d1", "benchmarks.long.rollout.backend is not of one benchmark"),
        ("benchmarks.long.rollout.reward.nam=x", "benchmark 'long': .*rollout.reward.nam"),
        ("benchmarks.long.rollout.reward.name=nobody", "benchmark 'long': .*nobody"),
        ("benchmarks.long.data.options.splt=held", "benchmark 'long': .*splt"),
        ("benchmarks.long.data=null", "benchmarks.long.data"),
        ("rollout.sampling=hot", "rollout.sampling"),
        ("rollout.backend=nothing:d1", "nothing"),
        ("rollout.context_length=4096", "rollout.context_length=4096"),
        ("confidence=1.0", "confidence"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(
    model: Path, tmp_path: Path, override: str, said: str
) -> None:
    """By its key, and by its benchmark where it is one's own; no folder is made."""
    with pytest.raises(ArealError) as refused:
        evaluate(model, TASKS, [override], out=tmp_path / "out")

    assert re.search(said, str(refused.value)), str(refused.value)
    assert not (tmp_path / "out").exists()


def test_a_notebook_may_call_it(model: Path, tmp_path: Path) -> None:
    """Inside a running event loop a refusal comes out like anywhere else, and so does a result."""

    async def cell() -> None:
        with pytest.raises(ArealError, match="does not exist"):
            evaluate(tmp_path / "nothing", TASKS, out=tmp_path / "out")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("areal_evaluate.run.make_scheduler", lambda config, registry, logs: OneProcess())
            patch.setattr("areal_evaluate.benchmark.Benchmark._rewards", lambda benchmark, events: Letters())
            assert evaluate(model, TASKS, ["samples=1", "k=[]", "benchmarks.long.k=[]"], out=tmp_path / "out").finished

    asyncio.run(cell())


def test_ctrl_c_keeps_what_is_done_and_leaves_nobody_behind(model: Path, tmp_path: Path) -> None:
    """In processes of its own: exit code 130, samples in the store, and a resume that ends with 0."""
    out, file = tmp_path / "out", tmp_path / "tasks.yaml"
    file.write_text(yaml.safe_dump(dict(TASKS), sort_keys=False))
    words = [sys.executable, "-m", "areal_core.cli.main", "evaluate", str(model), str(file), f"out={out}"]
    settings = ["max_concurrent=1", "rollout.sampling.max_new_tokens=64", "benchmarks.short.data.options.size=40"]
    with live_run([*words, *settings], out) as run:
        run.wait_until(lambda: _count(out) >= 3, "samples")
        run.send(signal.SIGINT)
        code, output = run.watch()
        assert (code, run.survivors()) == (130, []), output
    kept = _count(out)
    with live_run([*words, *settings, "max_concurrent=64", "--resume"], out) as run:
        again, told = run.watch()
        assert (again, run.survivors()) == (0, []), told

    assert "--resume" in output and 3 <= kept < 40 * SAMPLES
    assert _count(out) == 40 * SAMPLES + 6


_REPEATABLE = "deterministic=true"
_PICKY = """
from pathlib import Path

from areal_core import reward

CALLS = []

@reward("NAME")
def picky(**_):
    CALLS.append(1)
    if len(CALLS) > int(Path(__file__).with_name("limit").read_text()):
        raise ValueError("not this one")
    return 1.0
"""


def _picky(folder: Path, name: str, limit: int) -> tuple[str, ...]:
    """Return settings with a reward that fails after so many calls, one at a time; the file `limit` moves the limit."""
    mine = folder / "mine.py"
    mine.write_text(_PICKY.replace("NAME", name))
    (folder / "limit").write_text(str(limit))
    return f"imports=[{mine}]", f"rollout.reward.name={name}", "max_concurrent=1", "k=[]"


class _Stopping(Nobody):
    """Asks to stop after some samples."""

    def __init__(self, after: int, stop: asyncio.Event) -> None:
        self._left, self._stop = after, stop

    def scored(self, benchmark: str, done: int, of: int, mean: float) -> None:
        self._left -= 1
        if not self._left:
            self._stop.set()


def _until(after: int, model: Path, out: Path) -> Evaluated:
    """Evaluate until so many samples are done, two at a time."""

    async def run() -> Evaluated:
        stop, registry = asyncio.Event(), default_registry()
        plan = plan_evaluation(model, load_tasks(TASKS, [f"out={out}", "max_concurrent=2", _REPEATABLE]), registry)
        return await Evaluation(plan, registry, view=_Stopping(after, stop), stop=stop).execute()

    return asyncio.run(run())


def _greedy(model: Path, prompts: Sequence[str]) -> list[str]:
    """Return what transformers says to each prompt, alone."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer, policy = AutoTokenizer.from_pretrained(model), AutoModelForCausalLM.from_pretrained(model)
    said = []
    for prompt in prompts:
        ids = torch.tensor([tokenizer.encode(prompt)])
        out = policy.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=TOKENS)
        said.append(tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True))
    return said


def _rewards(folder: Path) -> dict[str, dict[int, list[float]]]:
    """Return benchmark -> prompt -> rewards, as the store has them."""
    found: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    with Reader(folder) as reader:
        for facts in reader.facts(Filter(fate="evaluated")):
            _, benchmark, index = facts["task_id"].split("/")
            found[benchmark][int(index)].append(facts["reward"])
    return found


def _samples(folder: Path) -> dict[tuple[str, int], tuple[int, object]]:
    """Return task and member -> place in the store and what was said."""
    with Reader(folder) as reader:
        return {
            (facts["task_id"], facts["member"]): (facts["id"], reader.content(facts["id"])[1])
            for facts in reader.facts(Filter(fate="evaluated"))
        }


def _count(folder: Path) -> int:
    """Return how many samples are in the store, which may not be there yet."""
    try:
        with Reader(folder) as reader:
            return reader.count(Filter(fate="evaluated"))
    except ArealError:
        return 0
