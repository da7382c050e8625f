"""Models by name: fetched from a hub once, pinned to a commit, told of clearly where they cannot be had."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from areal_core.config.load import load_config
from areal_hub.card import Trained, card
from areal_hub.hub import HUB
from areal_hub.names import HubName, hub_name
from areal_hub.testing import COMMIT, OLDER, LocalHub, serving
from areal_torch.testing.models import make_tiny_model

RUN = """
model: {path: MODEL}
data: {name: jsonl, options: {path: rows.jsonl}}
rollout: {reward: {name: exact_match}, prompts_per_step: 1, group_size: 2, sampling: {max_new_tokens: 4}}
device: cpu
steps: 1
out: runs/one
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Return the files of a tiny model."""
    folder = tmp_path_factory.mktemp("model")
    make_tiny_model(folder)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def hub(model: dict[str, bytes]) -> Iterator[LocalHub]:
    """Return a hub that has the model, with files beside it that nobody should fetch."""
    made = LocalHub()
    made.add("org/tiny", model, OLDER, "old")
    made.add("org/tiny", {**model, "pytorch_model.bin": b"pickle", "modeling.py": b"raise", "onnx/m.json": b"{}"})
    with serving(made):
        yield made


def areal(folder: Path, hub: str, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a command of areal that asks this hub, with a cache of its own."""
    (folder / "rows.jsonl").write_text('{"prompt": "a", "answer": "b"}\n')
    own = {"HF_ENDPOINT": hub, "HF_HOME": str(folder / "home"), "HF_TOKEN": "hf_test", "HF_HUB_DISABLE_XET": "1"}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    return subprocess.run(
        [sys.executable, "-m", "areal_core.cli.main", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**kept, **own, **environ},  # type: ignore[call-overload]
    )


def run_file(folder: Path, model: str) -> str:
    (folder / "run.yaml").write_text(RUN.replace("MODEL", model))
    return "run.yaml"


def test_a_name_is_one_where_no_folder_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies here comes first; a path that could be no name never asks anybody."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()

    assert hub_name("Qwen/Qwen3-0.6B") == HubName("Qwen/Qwen3-0.6B")
    assert str(hub_name("Qwen/Qwen3-0.6B@refs/pr/1")) == "Qwen/Qwen3-0.6B@refs/pr/1"
    for path in ("runs/first", "model", "/abs/model", "./a/b", "../b", "a/b/c", "~/m", "", "a/b@", "ö/b"):
        assert hub_name(path) is None, path


@pytest.mark.slow
def test_a_run_fetches_its_model_once_and_records_its_commit(tmp_path: Path, hub: LocalHub) -> None:
    """No pickle, no code, no folder beside; the run's config.yaml goes on with the commit, without a network."""
    done = areal(tmp_path, hub.address, "train", run_file(tmp_path, "org/tiny"), "--quiet")

    assert done.returncode == 0, done.stdout + done.stderr
    assert load_config(tmp_path / "runs/one/config.yaml").model.path == f"org/tiny@{COMMIT}"
    snapshot = tmp_path / f"home/hub/models--org--tiny/snapshots/{COMMIT}"
    assert {path.name for path in snapshot.iterdir()} & {"pytorch_model.bin", "modeling.py", "onnx"} == set()
    asked = len([each for each in hub.asked if "/resolve/" in each])
    recorded = ("train", "runs/one/config.yaml", "out=runs/two", "--dry-run")
    again = areal(tmp_path, "http://127.0.0.1:9", *recorded, HF_HUB_OFFLINE="1")
    assert again.returncode == 0, again.stdout + again.stderr
    assert len([each for each in hub.asked if "/resolve/" in each]) == asked


def test_a_revision_is_a_branch_a_tag_or_a_commit(tmp_path: Path, hub: LocalHub) -> None:
    """Named behind an @; another role may have another."""
    script = (
        "from areal_core import load_config\nfrom areal_hub.hub import HUB\n"
        "run = HUB.pinned(load_config(base={'model': {'path': 'org/tiny@old'}, 'reference': {'path': 'org/tiny'},"
        " 'rollout': {'adapters': {'critic': 'org/tiny', 'here': '/a/folder'}},"
        " 'data': {'name': 'hub', 'options': {'path': 'org/tiny', 'revision': 'old'}}}))\n"
        "print(run.model.path, run.reference.path, *run.rollout.adapters.values(), run.data.options)"
    )
    environ = {**os.environ, "HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path)}
    hub.files["datasets/org"] = {}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environ, check=True)

    *named, options = done.stdout.split(maxsplit=4)
    assert named == [f"org/tiny@{OLDER}", f"org/tiny@{COMMIT}", f"org/tiny@{COMMIT}", "/a/folder"]
    assert f"'revision': '{OLDER}'" in options


@pytest.mark.parametrize(
    ("name", "environ", "says"),
    [
        ("org/none", {}, ("model 'org/none' does not exist", "no folder of that name here")),
        ("org/tiny@none", {}, ("'org/tiny@none' cannot be fetched", "it has no revision 'none'")),
        ("org/gated", {}, ("'org/gated' cannot be fetched", "ask for access")),
        ("org/tiny", {"HF_HUB_OFFLINE": "1"}, ("HF_HUB_OFFLINE is set", "hf download org/tiny")),
        (
            "org/tiny",
            {"HF_ENDPOINT": "CLOSED"},
            ("no folder of that name here", "cannot be reached", "--local-dir DIR"),
        ),
    ],
)
def test_a_model_that_cannot_be_had_is_told_before_anything_starts(
    tmp_path: Path, hub: LocalHub, name: str, environ: dict[str, str], says: tuple[str, ...]
) -> None:
    """What, why and what to do, by `--dry-run` too, and with the exit code of a wrong configuration."""
    hub.add("org/gated", {})
    hub.gated.add("org/gated")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{closed.getsockname()[1]}"
        given = {key: value.replace("CLOSED", address) for key, value in environ.items()}
        done = areal(tmp_path, hub.address, "train", run_file(tmp_path, name), "--dry-run", **given)

    assert done.returncode == 2, done.stdout + done.stderr
    assert all(part in done.stderr for part in says), done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists()


@pytest.fixture
def trained(tmp_path: Path, model: dict[str, bytes]) -> Path:
    """Return a run folder of two steps with a checkpoint."""
    folder = tmp_path / "runs/speller"
    (folder / "checkpoints/step-000002/model").mkdir(parents=True)
    for name, content in model.items():
        (folder / "checkpoints/step-000002/model" / name).write_bytes(content)
    (folder / "config.yaml").write_text(
        f"name: speller\nmodel: {{path: org/tiny@{COMMIT}}}\nsteps: 2\nrollout: {{reward: {{name: 'a|b'}}}}\n"
        "data: {name: hub, options: {path: openai/gsm8k}}\n"
    )
    records = [{"step": step, "reward": step / 4} for step in (1, 2, 3)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "reward.png").write_bytes(b"png")
    return folder


def test_a_card_says_what_was_trained_on_what_and_how(trained: Path) -> None:
    """In the front matter for the hub, in a table for people; steps after the checkpoint are not the model's."""
    text = card(Trained.of(trained), "me/speller")
    _, front, body = text.split("---\n", 2)

    found = yaml.safe_load(front)
    assert (found["base_model"], found["datasets"], found["library_name"]) == (
        "org/tiny",
        ["openai/gsm8k"],
        "transformers",
    )
    assert "| steps | 2 of 2 |" in body and "| 0.25, 0.5 |" in body and "a\\|b" in body
    assert "![Reward over the steps](reward.png)" in body


def test_a_path_of_this_machine_is_no_base_model(trained: Path) -> None:
    """Metadata names what others can find."""
    (trained / "config.yaml").write_text("model: {path: /home/me/secret}\nsteps: 2\n")

    assert "base_model" not in card(Trained.of(trained), "me/speller")


def test_a_run_is_pushed_with_its_card(trained: Path, hub: LocalHub) -> None:
    """Model, tokenizer, card and picture, into a repository that is made; a dry run uploads nothing."""
    dry = areal(trained.parent, hub.address, "push", "speller", "--to", "me/speller", "--dry-run")
    assert dry.returncode == 0 and "base_model: org/tiny" in dry.stdout and not hub.uploaded
    done = areal(trained.parent, hub.address, "push", "speller", "--to", "me/speller", "--private")

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip() == f"{hub.address}/me/speller"
    assert {"README.md", "reward.png", "config.json", "model.safetensors"} <= set(hub.uploaded)
    assert (
        hub.uploaded["model.safetensors"] == (trained / "checkpoints/step-000002/model/model.safetensors").read_bytes()
    )
    assert hub.created[0]["name"] == "speller" and hub.created[0].get("visibility", hub.created[0].get("private")) in (
        True,
        "private",
    )


def test_a_push_that_cannot_be_is_told(tmp_path: Path, trained: Path, hub: LocalHub) -> None:
    """No trained model; a name that is none."""
    for arguments, says in (
        (("push", "nothing", "--to", "me/x"), "holds no trained model"),
        (("push", "speller", "--to", "x"), "'x' is no name on the hub"),
        (("push", "speller", "--to", "me/--x"), "is no name on the hub"),
    ):
        done = areal(trained.parent, hub.address, *arguments)
        assert done.returncode == 2 and says in done.stderr, done.stderr


def test_every_data_set_of_a_run_is_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own, the held-out ones and those of further sets."""
    monkeypatch.setattr("areal_hub.download.data_commit", lambda _name: COMMIT)
    data = {"name": "hub", "options": {"path": "org/rows"}}
    base = {"data": data, "evaluation": {"data": data, "sets": {"hard": {"data": data}}}}

    run = HUB.pinned(load_config(None, (), base))

    assert run.evaluation.data is not None
    pinned = [run.data, run.evaluation.data, run.evaluation.sets["hard"].data]
    assert [each.options.get("revision") for each in pinned] == [COMMIT] * 3
