"""The renderer in one file that the documentation shows."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings

from areal_agentic.renderer import Renderer
from areal_core.contract.errors import DatasetError
from areal_core.plugins.registry import Registry
from areal_renderers.proof import TOOLS
from areal_renderers.testing.conversations import TEXTS, histories, user
from areal_renderers.testing.tokenizers import tokenizer

FILE = Path(__file__).parents[3] / "examples/renderers/lines.py"


def test_a_renderer_in_one_file_holds_the_law() -> None:
    """Imported by a run, found by its name, and exact from turn to turn."""
    registry = Registry()
    registry.add_file(FILE)
    renderer = registry.build("renderer", "lines")
    assert isinstance(renderer, Renderer)
    bound = renderer.bind(tokenizer(None, ("<bos>", "<eos>"), (), "<bos>", "<eos>"))

    @settings(max_examples=30, deadline=None, derandomize=True)
    @given(histories(num_calls=0), TEXTS, TEXTS)
    def check(history: list[dict[str, str]], said: str, following: str) -> None:
        answer = {"role": "assistant", "content": said}
        prompt = bound.render(history)
        output = bound.render([*history, answer], ask=False)[len(prompt) :]
        whole = bound.render([*history, answer, user(following)])

        assert said == bound.parse(output).content
        for ended in (output, output[:-1]):
            assert whole == [*prompt, *ended, *bound.bridge(history, ended, [user(following)])]

    check()
    assert not bound.stop_token_ids.intersection(bound.render([user("<eos>")]))
    with pytest.raises(DatasetError, match="no place for tools"):
        bound.render([user("Hi")], tools=TOOLS)
