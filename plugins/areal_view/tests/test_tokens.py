"""Tokens get the text, the shade and the words that belong to them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models

from areal_view.tokens import MAX_SHOWN, columns_of, decoder_of, pieces, tokens_of, with_learned


class Spoken:
    """A tokenizer that drops the space a text begins with, and makes one letter of two tokens."""

    words = (" the", " cat", "s", "\N{REPLACEMENT CHARACTER}", "\N{REPLACEMENT CHARACTER}")

    def decode_batch(self, sequences: Sequence[Sequence[int]], *, skip_special_tokens: bool) -> list[str]:
        """Decode as such a tokenizer does."""
        texts = ["".join(self.words[token_id] for token_id in each) for each in sequences]
        return [text.removeprefix(" ").replace("\N{REPLACEMENT CHARACTER}" * 2, "é") for text in texts]


def test_pieces_keep_the_spaces_between_words() -> None:
    """Put together they are the text."""
    assert pieces([0, 1, 2, 0], Spoken()) == ["the", " cat", "s", " the"]


def test_a_letter_of_two_tokens_stands_at_the_second() -> None:
    """Neither shows a mark for what it lacks."""
    assert pieces([1, 3, 4, 2], Spoken()) == ["cat", "", "é", "s"]
    assert pieces([], Spoken()) == []


def test_a_byte_level_tokenizer_gives_back_the_whole_text() -> None:
    """The kind most models have."""
    alphabet = {letter: number for number, letter in enumerate("Ġabcé")}
    tokenizer = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()

    assert "".join(pieces([1, 0, 2, 3], tokenizer)) == "a bc"


def test_surprise_is_shaded_alike_in_every_episode(made_trajectory: Callable[..., Any]) -> None:
    """From certain to surprising, given tokens without a shade; infinite surprise is the last shade."""
    trajectory = made_trajectory("ab", "x" * 8)
    trajectory.logprobs[-1] = float("-inf")

    shown = tokens_of(trajectory, "logprob", None)

    shades = [token.shade for token in shown]
    assert shades[:2] == [None, None]
    assert shades[2] == 0
    assert shades[2:] == sorted(shades[2:])
    assert shades[-1] == 7
    assert [token.given for token in shown] == [True] * 2 + [False] * 8


def test_a_column_without_spread_or_with_infinite_values_is_shaded(made_trajectory: Callable[..., Any]) -> None:
    """Whatever a workflow stored, the page opens."""
    odd = {"flat": torch.ones(5), "odd": torch.tensor([0.0, 0.0, float("nan"), float("inf"), 2.0])}
    trajectory = made_trajectory("ab", "xyz", token_extras={**odd, "ok": torch.tensor([True] * 5)})

    assert list(columns_of(trajectory)) == ["logprob", "version", "flat", "odd", "ok"]
    for name in columns_of(trajectory):
        assert len(tokens_of(trajectory, name, None)) == 5


def test_what_a_step_computed_can_colour_tokens(made_trajectory: Callable[..., Any]) -> None:
    """Advantages and ratios are shaded around their middle, alike everywhere; what a workflow named so stays."""
    own = made_trajectory("a", "xyz", token_extras={"ratio": torch.full((4,), 7.0)})
    columns = [
        {"advantage": torch.tensor([0.0, -1.2, 0.0, 1.2]), "ratio": torch.tensor([0.0, 0.4, 1.0, 2.5])},
        {"advantage": torch.full((4,), 0.3), "ratio": torch.zeros(4)},
    ]

    one, other = with_learned([made_trajectory("a", "xyz"), own], columns)

    assert [token.shade for token in tokens_of(one, "advantage", None)] == [None, 0, 3, 7]
    assert [token.shade for token in tokens_of(one, "ratio", None)] == [None, 0, 3, 7]
    assert "advantage -1.2 · ratio 0.4" in tokens_of(one, "ratio", None)[1].tip
    assert [token.shade for token in tokens_of(other, "advantage", None)][1:] == [5, 5, 5]
    assert "ratio 7" in tokens_of(other, "ratio", None)[1].tip
    assert list(columns_of(with_learned([own], [])[0])) == ["logprob", "version", "ratio"]


def test_a_long_trajectory_is_shown_in_parts(made_trajectory: Callable[..., Any]) -> None:
    """One page holds so many tokens and no more."""
    trajectory = made_trajectory("a", "x" * (MAX_SHOWN + 9))

    assert (len(tokens_of(trajectory, "version", None)), len(tokens_of(trajectory, "version", None, MAX_SHOWN))) == (
        MAX_SHOWN,
        10,
    )


def test_a_tokenizer_is_found_or_is_not(tmp_path: Path, make_run: Any) -> None:
    """Beside the model, in the newest checkpoint; damaged files and odd configurations are no tokenizer."""
    run = make_run("a")
    none = decoder_of(run.folder)
    run.tokenizer()
    found = decoder_of(run.folder)
    checkpoint = run.folder / "checkpoints/step-000040/model"
    checkpoint.mkdir(parents=True)
    (run.folder / "model/tokenizer.json").rename(checkpoint / "tokenizer.json")
    in_checkpoint = decoder_of(run.folder)
    for config in ("model: [", "model: 3", "- 1", "model: {path: 5}", "x" * 10):
        (run.folder / "config.yaml").write_text(config)
        assert decoder_of(run.folder) is not None
    (checkpoint / "tokenizer.json").write_text("{}")

    assert none is None
    assert found is not None
    assert in_checkpoint is not None
    assert decoder_of(run.folder) is None


@pytest.mark.parametrize("started_in", [".", "elsewhere"])
def test_a_relative_model_is_found_where_the_run_was_started(
    started_in: str, tmp_path: Path, make_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder the run folder is in, or where the page is opened; before the first checkpoint there is no other."""
    run = make_run("a")
    run.tokenizer()
    (tmp_path / started_in / "models").mkdir(parents=True)
    (run.folder / "model").rename(tmp_path / started_in / "models" / "small")
    (run.folder / "config.yaml").write_text("model: {path: models/small}")
    monkeypatch.chdir(tmp_path / started_in)

    assert decoder_of(run.folder) is not None
    monkeypatch.chdir("/")
    assert (decoder_of(run.folder) is not None) == (started_in == ".")


@pytest.mark.parametrize("path", ["~nobody-of-this-name/model", "x" * 5_000, "/" + "x" * 5_000, "a\0b"])
def test_a_model_that_cannot_be_looked_for_is_no_tokenizer(path: str, make_run: Any) -> None:
    """The page opens; it shows ids."""
    run = make_run("a")
    (run.folder / "config.yaml").write_text(json.dumps({"model": {"path": path}}))

    assert decoder_of(run.folder) is None
