"""The page about conversations: its files are run, its tables are those of the code."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import attrs
import pytest
import yaml
from tests.end_to_end import one_process

from areal_agentic.tools import FunctionTool, Toolbox
from areal_agentic.user_function import user_function
from areal_agents.workflows.judge import JudgeConfig
from areal_agents.workflows.multi_turn import MultiTurnConfig
from areal_agents.workflows.self_play import SelfPlayConfig
from areal_agents.workflows.talks import TalkConfig
from areal_agents.workflows.tools import ToolsConfig
from areal_core.contract.optional import ToolCall
from areal_core.observe.jsonl import read_lines
from areal_core.plugins.registry import Registry
from areal_tasks.tiny_chat import make_chat_model

PAGE = (Path(__file__).parents[2] / "docs/how-to/multi-turn.md").read_text()
_FENCE = re.compile(r"^```python title=\"([^\"]+)\"\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILES = dict(_FENCE.findall(PAGE))


def section(name: str) -> str:
    """Return what stands under a heading."""
    return re.split(r"^## ", PAGE.partition(f"\n## {name}\n")[2], flags=re.MULTILINE)[0]


def options(text: str) -> set[str]:
    """Return the options of a table; several may share a row."""
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", text, re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


@pytest.mark.parametrize(
    ("of", "config"), [("Several tries", MultiTurnConfig), ("Tools", ToolsConfig), ("Exact tokens", TalkConfig)]
)
def test_the_options_are_those_there_are(of: str, config: Any) -> None:
    """Those of every workflow stand once."""
    shared = set(attrs.fields_dict(TalkConfig)) if config is not TalkConfig else set()

    assert options(section(of)) == set(attrs.fields_dict(config)) - shared


@pytest.mark.parametrize(("of", "config"), [("Self-play", SelfPlayConfig), ("A judge in the fleet", JudgeConfig)])
def test_options_told_in_words_are_those_there_are(of: str, config: Any) -> None:
    """Each is named."""
    own = set(attrs.fields_dict(config)) - set(attrs.fields_dict(TalkConfig))

    assert {name for name in own if not re.search(rf"`{name}`|\b{name}:", section(of))} == set()


def test_every_workflow_of_the_package_is_on_the_page() -> None:
    """But that of live traffic, which has a page of its own."""
    listed = set(re.findall(r"^\| \[`(\w+)`\]", PAGE, re.MULTILINE))
    known = {each.name for each in Registry().listings("workflow") if each.origin.startswith("areal-agents")}

    assert listed == known - {"online"}


def test_the_tool_of_the_page_is_called(tmp_path: Path) -> None:
    """And described by its hints and its docstring."""
    (tmp_path / "my_tools.py").write_text(FILES["my_tools.py"])
    tool = FunctionTool.of(user_function(f"{tmp_path}/my_tools.py:search", what="what", fix="fix"))
    called = ToolCall(name="search", arguments='{"query": "ab", "limit": 2}')
    (answer,) = asyncio.run(Toolbox([tool]).answer([called]))

    assert answer["content"] == '["ab (0)","ab (1)"]'
    described: Any = tool.schema["function"]
    assert described["description"] == "Search the encyclopedia."
    assert described["parameters"]["properties"]["query"]["description"] == "what to look for."


def test_the_conversation_of_the_page_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it stands, on the small chat model."""
    monkeypatch.chdir(tmp_path)
    one_process.settle_here(monkeypatch)
    (tmp_path / "debate.py").write_text(FILES["debate.py"])
    small = yaml.safe_load(one_process.FILE.read_text())
    small |= {"imports": ["debate.py"], "steps": 1}
    small["rollout"]["workflow"] = {"name": "debate", "options": {"renderer": "template"}}
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(small))
    monkeypatch.setattr(one_process, "FILE", tmp_path / "small.yaml")
    one_process.train_here(tmp_path / "run", make_chat_model(tmp_path / "model", 1))

    (step,) = read_lines(tmp_path / "run/metrics.jsonl")
    assert step["episodes"] == 4 and step["tokens_trained"] > 0
    assert [each for each in read_lines(tmp_path / "run/events.jsonl") if each["kind"] == "group_failed"] == []
