"""A dry run of a resume: what it would change of the run, refused by the same rule, and the folder as it was."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from areal_core.cli.main import main
from areal_core.config.load import dump_config, load_config
from areal_tasks.quickstart.quickstart import preset_path
from areal_torch.tokenizers import save_character_tokenizer

pytest.importorskip("areal_reference")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a run of 30 steps with seed 1, of a model that has the files a plan looks at."""
    model, folder = tmp_path / "model", tmp_path / "run"
    model.mkdir()
    facts = {"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 64, "vocab_size": 32}
    (model / "config.json").write_text(json.dumps(facts))
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (model / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    save_character_tokenizer(model)
    made = load_config(
        preset_path("spell"), [f"model.path={model}", "actor.backend=reference:d1", "steps=30", "seed=1"]
    )
    folder.mkdir()
    (folder / "config.yaml").write_text(dump_config(made))
    return folder


def test_a_dry_run_tells_what_a_resume_would_change(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each key with both values, after the plan; nothing is written."""
    before = (run / "config.yaml").read_text()
    codes = [main(["train", "--resume", str(run), *words, "--dry-run"]) for words in ((), ("steps=60",))]
    said = capsys.readouterr().out

    assert codes == [0, 0]
    assert said.count("changed since the run was started last:\n  steps: 30 -> 60\n") == 1
    assert [path.name for path in run.iterdir()] == ["config.yaml"] and (run / "config.yaml").read_text() == before


def test_a_dry_run_refuses_what_a_resume_refuses(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the same words."""
    code = main(["train", "--resume", str(run), "seed=7", "steps=60", "--dry-run"])
    said = capsys.readouterr().err

    assert code == 2
    assert "cannot be resumed with seed: 1 -> 7 [AREAL-E206]" in said and "accepted: steps: 30 -> 60" in said
