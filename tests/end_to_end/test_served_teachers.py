"""A teacher on a real server, asked by scoring or by its OpenAI-compatible URL, teaches what the same role teaches.

Needs the environments of the engines. `make test-vllm`, `make test-sglang`
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.end_to_end.live_server import KEY, Server, both_engines

from areal_core.cli.train import train
from areal_core.config.load import load_config
from areal_core.observe.jsonl import read_lines
from areal_tasks.tiny import make_spell_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
STEPS = 3
CLOSE = 2e-4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A student, a teacher and prompts."""
    folder = tmp_path_factory.mktemp("teachers")
    make_spell_model(folder / "student", 1)
    make_spell_model(folder / "teacher", 2)
    words = ["abc", "bcd", "cde", "def", "efa", "fab", "ace", "bdf"]
    (folder / "rows.jsonl").write_text("\n".join(json.dumps({"prompt": f"{word}>", "answer": word}) for word in words))
    return folder


def told(folder: Path, out: Path, **options: Any) -> list[tuple[float, float]]:
    """Distill, and return the distance to the teacher and the loss of each step."""
    base = {
        "kind": "distill",
        "out": str(out),
        "steps": STEPS,
        "options": options,
        "model": {"path": str(folder / "student")},
        "data": {"name": "jsonl", "options": {"path": str(folder / "rows.jsonl")}},
        "rollout": {"prompts_per_step": 4, "group_size": 2, "max_staleness": 0, "sampling": {"max_new_tokens": 6}},
        "actor": {"optimizer": {"lr": 1e-3}},
    }
    assert train(load_config(None, (), base), quiet=True) == 0
    steps = list(read_lines(out / "metrics.jsonl"))
    assert len(steps) == STEPS
    return [(step["train/reference_kl"], step["loss"]) for step in steps]


def role(folder: Path) -> dict[str, Any]:
    return {"teacher": {"path": str(folder / "teacher")}}


@both_engines
def test_a_fleet_judges_as_the_role(folder: Path, tmp_path: Path, engine: str) -> None:
    """Started with the run and asked by scoring."""
    scorer = {"path": str(folder / "teacher"), "backend": f"{engine}:d1", "options": {"kv_cache_gib": 0.25}}

    found = told(folder, tmp_path / "fleet", scorer=scorer)

    for step, wanted in zip(found, told(folder, tmp_path / "role", **role(folder)), strict=True):
        assert step == pytest.approx(wanted, abs=CLOSE)


@pytest.fixture(scope="module")
def server(engine: str, folder: Path) -> Iterator[Server]:
    """A server of the teacher."""
    started = Server(engine, folder / "teacher")
    try:
        yield started
    finally:
        started.close()


@both_engines
def test_a_url_judges_as_the_role(
    folder: Path, tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`/v1/completions` of the server itself."""
    monkeypatch.setenv(KEY, server.key)
    served = {"url": f"{server.url}/v1", "model": "policy", "api_key_env": KEY}

    found = told(folder, tmp_path / "url", served=served)

    for step, wanted in zip(found, told(folder, tmp_path / "role", **role(folder)), strict=True):
        assert step == pytest.approx(wanted, abs=CLOSE)


@pytest.mark.vllm
@pytest.mark.parametrize("engine", ["vllm"], scope="module")
def test_a_url_names_tokens_as_the_role(
    folder: Path, tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `top_k`, over the most probable tokens."""
    monkeypatch.setenv(KEY, server.key)
    served = {"url": f"{server.url}/v1", "model": "policy", "api_key_env": KEY}

    found = told(folder, tmp_path / "url", served=served, top_k=5)

    for step, wanted in zip(found, told(folder, tmp_path / "role", **role(folder), top_k=5), strict=True):
        assert step == pytest.approx(wanted, abs=CLOSE)
