"""`areal train` and `areal quickstart` up to the moment a run would start: arguments, plan, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest
import yaml
from tests.benches.command import Run

from areal_core.cli.main import main
from areal_core.config import plan
from areal_core.config.load import dump_config, load_config
from areal_core.config.schema import RunConfig
from areal_tasks.quickstart import quickstart as quickstart_command
from areal_tasks.quickstart.quickstart import preset_path
from areal_tasks.tiny import make_spell_model

pytest.importorskip("areal_reference")
pytest.importorskip("areal_fsdp")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real model folder; no test here loads it."""
    return make_spell_model(tmp_path_factory.mktemp("model"), seed=1)


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:  # Any: a function
    """Return a function that runs `areal WORDS...` here and returns the configuration that reached the plan."""
    seen: list[RunConfig] = []
    make_plan = plan.make_plan

    def noting(run: RunConfig, *rest: Any, **named: Any) -> Any:  # Any: as make_plan
        seen.append(run)
        return make_plan(run, *rest, **named)

    monkeypatch.setattr(plan, "make_plan", noting)

    def run(*words: str) -> RunConfig:
        assert main(words) == 0, capsys.readouterr()
        return seen[-1]

    return run


def test_a_dry_run_shows_the_plan_and_leaves_no_trace(areal: Run, model: Path, tmp_path: Path) -> None:
    """Roles, ranks, devices and memory; no process, no folder, no model."""
    before = sorted(tmp_path.rglob("*"))
    words = ("train", str(preset_path("spell")), f"model.path={model}", "out=run", "actor.backend=fsdp:d2", "--dry-run")

    done = areal(*words)
    rows = {line.split()[0]: line.split() for line in done.stdout.splitlines() if line}

    assert (done.returncode, done.stderr) == (0, "")
    assert rows["role"] == ["role", "backend", "ranks", "device", "dtype", "model", "memory", "each"]
    assert rows["actor"][1:6] == ["fsdp:d2", "2", "cpu", "float32", "Qwen3ForCausalLM"]
    assert rows["rollout"][1:6] == ["reference:d1", "1", "cpu", "float32", "Qwen3ForCausalLM"]
    assert "787 KiB + activations or cache" in done.stdout
    assert "100 steps of 16 prompts x 8 samples, max staleness 2 (wait), objective ppo, weights by shm" in done.stdout
    assert sorted(tmp_path.rglob("*")) == before


def test_overrides_reach_the_run(planned: Any, model: Path) -> None:  # Any: a function
    """After the file, and without one they are told apart from it."""
    run = planned(
        "train", str(preset_path("spell")), f"model.path={model}", "steps=7", "rollout.max_staleness=0", "--dry-run"
    )

    assert (run.steps, run.rollout.max_staleness, run.model.path) == (7, 0, str(model))


def test_resume_reads_the_folders_own_configuration(planned: Any, model: Path, tmp_path: Path) -> None:  # Any: as above
    """`areal train --resume DIR a.b=c`: the folder it stands in is the run folder, wherever it was made."""
    made = load_config(preset_path("spell"), [f"model.path={model}", "out=elsewhere", "steps=30"])
    (tmp_path / "config.yaml").write_text(dump_config(made))

    run = planned("train", "--resume", str(tmp_path), "steps=60", "--dry-run")
    first = planned("train", "steps=61", "--resume", str(tmp_path), "--dry-run")

    assert (run.out, run.steps, run.data) == (str(tmp_path), 60, made.data)
    assert (first.out, first.steps) == (str(tmp_path), 61)


def test_resume_does_not_take_a_redacted_secret_for_one(
    planned: Any,  # Any: as above
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """config.yaml holds no secrets; the run's own file brings them back."""
    file, folder = tmp_path / "run.yaml", tmp_path / "run"
    content = yaml.safe_load(preset_path("spell").read_text())
    content["data"]["options"]["api_key"] = "hunter2"
    file.write_text(yaml.safe_dump(content))
    folder.mkdir()
    (folder / "config.yaml").write_text(dump_config(load_config(file, [f"model.path={model}"])))

    code = main(["train", "--resume", str(folder), "--dry-run"])
    said = capsys.readouterr().err

    assert code == 2
    assert "data.options.api_key" in said and "hunter2" not in said
    assert f"fix: give it again with the run's own file: areal train run.yaml --resume {folder}" in said


def test_a_resume_with_what_must_not_change_is_refused_before_anything_starts(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both values and the reason are told, as is that the other change is none; the run's configuration stays."""
    file, folder = tmp_path / "run.yaml", tmp_path / "run"
    made = load_config(preset_path("spell"), [f"model.path={model}", "steps=30"])
    file.write_text(dump_config(attrs.evolve(made, seed=7, steps=60)))
    (folder / "checkpoints" / "step-000020").mkdir(parents=True)
    (folder / "checkpoints" / "step-000020" / "loop.json").write_text(
        '{"format": 1, "version": 20, "tasks": {}, "totals": {}, "roles": ["actor"]}'
    )
    (folder / "config.yaml").write_text(dump_config(made))

    code = main(["train", str(file), "--resume", str(folder)])
    said = capsys.readouterr().err

    assert code == 2
    assert f"run folder {folder} cannot be resumed with seed: {made.seed} -> 7 [AREAL-E206]" in said
    assert "why: the order of the prompts depends on it" in said
    assert "The other changes are accepted: steps: 30 -> 60" in said
    assert load_config(folder / "config.yaml").seed == made.seed
    assert not (folder / "events.jsonl").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train"], ["no configuration given", "fix: areal train run.yaml"]),
        (["train", "steps=3"], ["no configuration given"]),
        (["train", "missing.yaml"], ["configuration file missing.yaml does not exist"]),
        (["train", "missing.yaml", "steps"], ["override 'steps' is not key=value"]),
        (
            ["train", "--resume", "nowhere"],
            ["run folder nowhere has nothing to resume", "why: there is no such folder"],
        ),
        (["train", "--resume", "."], ["has nothing to resume", "why: it holds no config.yaml"]),
        (["quickstart", "smollm2"], ["override 'smollm2' is not key=value", "--model"]),
        (["quickstart", "--model", "nonsense"], ["--model 'nonsense' is neither a preset nor a folder", "smollm2"]),
        (["quickstart", "--model", "."], ["model folder '.' has no config.json"]),
    ],
)
def test_arguments_that_lead_nowhere_are_answered(
    words: list[str],
    said: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What, why, fix, exit code 2, and nothing made."""
    monkeypatch.chdir(tmp_path)

    code = main(words)
    error = capsys.readouterr().err

    assert code == 2
    assert all(part in error for part in said), error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [["train", "--max-staleness", "1"], ["quickstart", "--steps", "many"]])
def test_an_unknown_option_is_bad_input(words: list[str]) -> None:
    """What the parser refuses has the same exit code."""
    assert main(words) == 2


def test_quickstart_takes_the_places_of_the_presets_values(planned: Any, model: Path) -> None:  # Any: as above
    """Each argument is one key of the configuration; the data set keeps its own held-out words."""
    run = planned(
        *("quickstart", "--dry-run", "--model", str(model), "--seed", "3", "--steps", "5", "--max-staleness", "0"),
        *("--train", "fsdp:d2", "--infer", "reference:d2", "--out", "somewhere"),
    )

    assert (run.seed, run.steps, run.rollout.max_staleness, run.out) == (3, 5, 0, "somewhere")
    assert (run.actor.backend, run.rollout.backend, run.model.path) == ("fsdp:d2", "reference:d2", str(model))
    assert (run.data.options["seed"], run.data.options["split"]) == (3, "train")


def test_quickstart_takes_overrides_as_train_does(planned: Any, model: Path) -> None:  # Any: as above
    """Any key of the run, over the preset and over options of the command."""
    run = planned("quickstart", "--dry-run", "--model", str(model), "rollout.group_size=5", "steps=7", "--steps", "3")

    assert (run.rollout.group_size, run.steps) == (5, 7)


def test_quickstart_keeps_the_presets_values_otherwise(planned: Any, model: Path) -> None:  # Any: as above
    """Zero is a value, nothing is not."""
    run = planned("quickstart", "--dry-run", "--model", str(model))
    preset = load_config(preset_path("spell"))

    assert (run.seed, run.steps, run.rollout) == (preset.seed, preset.steps, preset.rollout)
    assert run.out == str(Path("runs/quickstart"))
    assert {"spell", "long_spell", "smollm2", "spell_again", "sums"} == set(quickstart_command.PRESETS)
