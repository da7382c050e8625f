"""Steps that a server is asked to trace: when its profiler is told, where its files end up, what it may not cost."""

from __future__ import annotations

import asyncio
import re

import pytest

from areal_core.contract.inference import PauseMode
from areal_torch.profile import VARIABLE, profile_variables
from areal_torch.testing.serving import ask

from .toy import ToyDialect, ToyProfiler, beside, kill_server, other_weights, restarts, started


@pytest.fixture
def run_folder(tmp_path, monkeypatch):
    """Return a run folder whose replica is asked for steps 1 and 3."""
    for name, value in profile_variables({"steps": [1, 3]}, 10, tmp_path, "rollout").items():
        monkeypatch.setenv(name, value)
    return tmp_path


async def update(engine, model, version):
    """Have the engine serve other weights, as a run does."""
    await engine.receive_weights(other_weights(model, version).offer(version), version)
    await engine.pause(PauseMode.KEEP)
    await engine.commit_weights(version)
    await engine.resume()


async def four_steps(model, dialect=None):
    """Generate in four steps, each with its own weights; return what the server was told."""
    async with started(model, dialect or ToyDialect(["--auto"]), profiler=ToyProfiler()) as engine:
        for version in range(4):
            if version:
                await update(engine, model, version)
            await engine.generate(ask(5, 9, max_new_tokens=3))
        return [what for what in await engine.story() if what.startswith(("generate", "load", "start_", "stop_"))]


def files(folder):
    """Return what lies in a folder, as paths in it."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_the_steps_asked_for_are_traced_and_no_other(model, run_folder, nothing_left):
    """A record begins when a step's weights serve, ends before the next ones do, and has a file of every rank."""
    told = asyncio.run(four_steps(model))

    assert [what.partition(" areal")[0] for what in told if what != "start_profile"] == [
        *("generate", "stop_profile", "load 1", "generate", "load 2"),
        *("generate", "stop_profile", "load 3", "generate"),
    ]
    assert told.index("stop_profile") < told.index("load 1")
    second = told.index("start_profile", told.index("load 1"))
    assert told[second - 1] == "load 2"
    assert files(run_folder) == [
        f"profile/step-{step}/rollout-rank{rank}.json.gz" for step in (1, 3) for rank in (0, 1)
    ]
    made = [run_folder / name for name in ("profile", "profile/step-3", "profile/step-3/rollout-rank1.json.gz")]
    assert [path.stat().st_mode & 0o777 for path in made] == [0o700, 0o700, 0o600]
    assert made[-1].read_text().count("start_profile") == 2


def test_without_a_step_the_server_hears_nothing_of_it(model, monkeypatch, tmp_path):
    """Neither at its start nor later."""
    monkeypatch.delenv(VARIABLE, raising=False)
    dialect = ToyDialect(["--auto"])

    told = asyncio.run(four_steps(model, dialect))

    assert not [what for what in told if "profile" in what]
    assert dialect.launches[0].traces is None


def test_a_server_of_ours_is_told_at_its_start_where_to_write(model, run_folder, nothing_left):
    """Into a folder of its own, which goes with it; a replica has its number in the name; a close ends the record."""
    dialect = ToyDialect(["--auto"])

    async def run():
        async with started(model, dialect, profiler=ToyProfiler()) as engine:
            await engine.generate(ask(5, max_new_tokens=2))

    asyncio.run(run())

    assert dialect.launches[0].traces == dialect.launches[0].folder / "traces"
    assert files(run_folder / "profile") == ["step-1/rollout-rank0.json.gz", "step-1/rollout-rank1.json.gz"]


@pytest.mark.parametrize(
    ("route", "told"), [("start_profile", "does not start its profiler"), ("stop_profile", "did not end its record")]
)
def test_a_server_that_cannot_be_traced_is_told_with_a_fix_and_costs_nothing(
    model, run_folder, caplog, nothing_left, route, told
):
    """A server that has no such route answers 404: the run goes on, and the next step is tried again."""

    async def run():
        async with started(model, ToyDialect(["--auto"]), profiler=ToyProfiler()) as engine:
            await engine.misbehave(route, "404")
            made = [await engine.generate(ask(5, max_new_tokens=2))]
            for version in (1, 2, 3):
                await update(engine, model, version)
                made.append(await engine.generate(ask(5, max_new_tokens=2)))
            return made

    made = asyncio.run(run())

    assert [generation.version_spans[0].version for generation in made] == [0, 1, 2, 3]
    warnings = [record.getMessage() for record in caplog.records if record.name == "areal.profile"]
    assert len(warnings) == 1
    assert warnings[0].startswith(f"no trace of step 1: the toy server {told}: /{route} answered 404")
    assert warnings[0].endswith("; start the toy with more")
    assert {name.split("/")[1] for name in files(run_folder)} == {"step-3"}


def test_a_record_that_is_lost_with_its_server_is_told(model, run_folder, caplog, nothing_left):
    """The next server serves on without one; files of half a step are no trace.

    A record begins beside the first request, so the server may be gone before it is told to.
    """

    async def run():
        async with started(model, ToyDialect(["--auto"]), profiler=ToyProfiler()) as engine:
            await engine.generate(ask(5, max_new_tokens=2))
            await kill_server(engine)
            await engine.until(lambda: restarts(engine) == 1 and engine.running.server.serving is not None)
            await update(engine, model, 1)
            return (await engine.generate(ask(5, max_new_tokens=2))).version_spans[0].version

    assert asyncio.run(run()) == 1

    assert re.search("no trace of step 1: the toy server did not end its record|does not start its prof", caplog.text)
    assert files(run_folder) == []


def test_a_file_that_comes_too_late_is_not_taken_for_another_steps(model, run_folder, nothing_left):
    """A server writes on after it was waited for long enough."""
    dialect = ToyDialect(["--auto"])

    async def run():
        async with started(model, dialect, profiler=ToyProfiler()) as engine:
            await engine.generate(ask(5, max_new_tokens=2))
            await update(engine, model, 1)
            (dialect.launches[0].traces / "toy_rank7.17.json.gz").write_text("of step 1")
            await update(engine, model, 2)
            await engine.generate(ask(5, max_new_tokens=2))

    asyncio.run(run())

    assert files(run_folder / "profile") == [
        f"step-{step}/rollout-rank{rank}.json.gz" for step in (1, 3) for rank in (0, 1)
    ]


def test_a_run_folder_that_somebody_removed_is_not_made_again(model, run_folder, caplog, nothing_left):
    """The log says why."""
    gone = run_folder / "gone"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in profile_variables({"steps": [1]}, 10, gone, "rollout").items():
            patch.setenv(name, value)
        asyncio.run(four_steps(model))

    assert "no trace of step 1" in caplog.text and str(gone) in caplog.text
    assert list(run_folder.iterdir()) == []


def test_a_plugin_without_a_profiler_says_so(model, run_folder, caplog, nothing_left):
    """Its server is started like any other."""
    dialect = ToyDialect(["--auto"])

    async def run():
        async with started(model, dialect) as engine:
            await engine.generate(ask(5, max_new_tokens=2))

    asyncio.run(run())

    assert dialect.launches[0].traces is None
    assert "no trace of step 1: the toy plugin knows no profiler" in caplog.text


def test_a_server_that_somebody_else_runs_is_not_traced(model, run_folder, caplog, nothing_left):
    """It may run as another user or on another machine: a folder it cannot write to can be its end. The log says so."""

    async def run():
        async with beside(model, profiler=ToyProfiler()) as (engine, toy):
            toy.auto = True
            await engine.generate(ask(5, max_new_tokens=2))
            return toy.log

    assert "start_profile" not in asyncio.run(run())
    assert "no trace of step 1: the toy server is the one of rollout.options.url; whoever runs it" in caplog.text
