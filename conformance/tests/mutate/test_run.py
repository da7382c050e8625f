"""The whole on a stranger's plugin: a known score; what is asked wrongly is refused before anything starts."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from areal_conformance.mutate import trial
from areal_conformance.mutate.cover import Made
from areal_conformance.mutate.record import Record, Row
from areal_conformance.mutate.report import text
from areal_conformance.mutate.run import Wanted, run
from areal_conformance.mutate.scope import scope_of
from areal_conformance.mutate.triage import NAME, suggestion
from areal_conformance.mutate.trial import Fate
from areal_conformance.target import Locator, Target, locate
from areal_core.cli.main import main
from areal_core.contract.errors import ConfigError

MINE = '''\
from areal_core import DatasetError, RewardInput, TrajectoryBuilder, require_ok, workflow


@workflow("strangers_own")
class StrangersOwn:
    """One turn, and three lines that a machine can change."""

    async def arun_episode(self, engine, data):
        if not isinstance(data.get("prompt"), str):
            raise DatasetError("no prompt", why="it is not there")
        left = 3
        while left > 0:
            left -= 1
        self.spare = left + 7
        turns = TrajectoryBuilder(engine.tokenizer.encode(data["prompt"]))
        last = await engine.generate(turns.input_ids)
        turns.add_generation(last)
        text = engine.tokenizer.decode(last.output_ids, skip_special_tokens=True)
        asked = RewardInput(
            prompt=data["prompt"],
            completion=text,
            completion_ids=last.output_ids,
            stop_reason=str(last.stop_reason),
            row=data,
        )
        reward = require_ok(await engine.reward(asked), "an episode")
        return turns.build(attrs_free(reward))

    def never(self, many):
        return many * 2


def attrs_free(reward):
    return reward
'''


class Silent:
    """Hears everything, and says stop after so many mutants."""

    def __init__(self, stop_after: int = -1) -> None:
        self.unfit: list[Made] = []
        self._stop_after = stop_after

    def said(self, text: str) -> None:
        pass

    def made(self, made: Made, number: int, total: int) -> None:
        if made.outcome != "pass":
            self.unfit.append(made)

    def tried(self, row: Row, number: int, total: int) -> None:
        if number == self._stop_after:
            raise KeyboardInterrupt


@pytest.fixture
def wanted(tmp_path: Path) -> Wanted:
    """Return an order for the stranger's file."""
    path = tmp_path / "strangers.py"
    path.write_text(MINE)
    locator = Locator(role="workflow", name="strangers_own", imports=(str(path),))
    return Wanted(
        subject={"locator": attrs.asdict(locator)},
        checks=("workflow.reward.recorded", "workflow.tokens.prompt"),
        operators=("arithmetic",),
    )


def fates(record: Record) -> dict[str, tuple[Fate, str]]:
    return {row.key.before: (row.trial.fate, row.trial.how) for row in record.rows}


@pytest.mark.slow
def test_a_strangers_plugin_gets_its_known_score(
    wanted: Wanted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One mutant hangs and dies by its deadline, one does nothing, one is never run; a judged one leaves the score."""
    monkeypatch.setattr(trial, "TIMES", 2.0)
    listener = Silent()
    record = run(wanted, listener)

    assert listener.unfit == []
    assert fates(record) == {
        "left -= 1": (Fate.KILLED, "timeout"),
        "left + 7": (Fate.SURVIVED, ""),
        "many * 2": (Fate.UNSEEN, ""),
    }
    assert (record.score.killed, record.score.total) == (1, 3)
    assert record.population == {"strangers.py": 3}
    assert (tmp_path / "strangers.py").read_text() == MINE

    unseen = next(row.key for row in record.rows if row.trial.fate is Fate.UNSEEN)
    judged = (
        suggestion([unseen]).replace('verdict = ""', 'verdict = "out of contract"').replace('why = ""', 'why = "w"')
    )
    (tmp_path / NAME).write_text(judged)
    cut = run(attrs.evolve(wanted, checks=("workflow.tokens.prompt",)), Silent(stop_after=2))

    assert cut.interrupted and len(cut.rows) == 2 and cut.planned == 3
    assert [row.key for row in cut.rows] == [row.key for row in record.rows][:2]
    assert [row.excused for row in cut.rows] == [row.key == unseen for row in cut.rows]

    quick = run(attrs.evolve(wanted, checks=("workflow.tokens.prompt",), skip_excused=True), Silent())

    assert [row.key for row in quick.rows if row.trial.fate is Fate.LEFT and row.excused] == [unseen]

    (tmp_path / NAME).write_text(judged.replace("out of contract", "gap"))
    again = run(attrs.evolve(wanted, checks=("workflow.tokens.prompt",), gaps=True), Silent())

    assert [row.key for row in again.rows] == [unseen]

    short = run(attrs.evolve(wanted, spend_s=1e-6), Silent())
    lived = next(row.trial for row in short.rows if row.trial.fate is Fate.SURVIVED)

    assert (len(lived.checks), lived.not_asked) == (2, 1)
    assert "1 of them were not asked" in text(short) and "a lower bound" in text(short)


@pytest.mark.slow
def test_what_is_no_plugin_is_held_to_checks_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suite_of: Callable[[str], str]
) -> None:
    """A suite is named like a function; modules say what is changed, and without them nothing is."""
    (tmp_path / "own_sums.py").write_text("def double(x):\n    return x + x\n\n\ndef half(x):\n    return x / 2\n")
    (tmp_path / "own_suite.py").write_text(suite_of("own_sums"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    wanted = Wanted(subject={"suite": "own_suite:SUITE"}, modules=("own_sums",), operators=("arithmetic",))
    record = run(wanted, Silent())

    assert fates(record) == {"x + x": (Fate.KILLED, "fail"), "x / 2": (Fate.UNSEEN, "")}
    with pytest.raises(ConfigError, match="nothing says which source is its own"):
        run(attrs.evolve(wanted, modules=()), Silent())


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--backend", "nobody"], "nothing named 'nobody' is installed"),
        (["--backend", "reference"], "plays 2 roles"),
        (["--backend", "disk", "--sample", "0"], "--sample 0 is no sample"),
        (["--backend", "disk", "--operator", "boundery"], "did you mean boundary?"),
        (["--backend", "disk", "--level", "9"], "there is no level 9"),
        (["--backend", "disk", "--at-least", "90"], "between 0 and 1"),
        (["--backend", "disk", "--spend", "0"], "--spend 0 asks nothing"),
        (["--backend", "disk", "--triage", "/no/such.toml"], "there is no such file"),
        (["--backend", "disk", "--module", "nobody.*"], "no module to change: nobody.*"),
        (["--backend", "disk", "--check", "nobody.*"], "no check of transport disk is left"),
        (["--module", "nobody.*"], "nothing says what to change"),
        (["--backend", "disk", "--suite", "tests:X"], "there are two things to change"),
        (["--suite", "no_such_module:X", "--module", "a.*"], "there is no suite 'no_such_module:X'"),
    ],
)
def test_what_cannot_be_meant_is_refused(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With exit code 2, what, why and how to go on, before any process is started."""
    code = main(["conformance", "mutate", *words])

    assert code == 2
    assert told in capsys.readouterr().err


def test_a_platform_without_fork_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says why a fork is needed, and where there is one."""
    monkeypatch.delattr(os, "fork")

    assert main(["conformance", "mutate", "--backend", "disk"]) == 2
    assert "this platform has no fork" in capsys.readouterr().err


def _target(role: str, name: str) -> Target:
    return locate(Locator(role=role, name=name))


def test_a_compiled_backend_has_no_source() -> None:
    """The module is named, and what can be done."""
    found = _target("transport", "disk")
    assert found.manifest is not None
    compiled = attrs.evolve(found, manifest=attrs.evolve(found.manifest, factory="_json:Scanner"))

    with pytest.raises(ConfigError, match="_json has no Python source"):
        scope_of(compiled)


def test_a_backend_is_what_its_factory_imports() -> None:
    """Modules of its own package; of others where they are named; neither manifest nor adapter."""
    alone = set(scope_of(_target("train", "reference")).modules)
    with_kit = set(scope_of(_target("train", "reference"), also=("areal_torch",)).modules)

    assert alone == {"areal_reference.train.config", "areal_reference.train.engine"}
    assert {"areal_torch.step", "areal_torch.logprobs"} <= with_kit
    assert not any(".testing" in name for name in with_kit)
    assert set(scope_of(_target("transport", "disk"), only=("areal_local.transports.s*",)).modules) == {
        "areal_local.transports.seating",
        "areal_local.transports.shm",
        "areal_local.transports.sink",
    }
