"""`areal explain` says what a number is, in letters a terminal has."""

from __future__ import annotations

import pytest

from areal_core.cli.main import main
from areal_core.contract.errors import ConfigError
from areal_report.glossary.entries import METRICS
from areal_report.glossary.explain import find, plain


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.names[0])
def test_an_entry_can_be_read_in_a_terminal(metric: object) -> None:
    """No formula is left half translated; what is not healthy has something to do."""
    for text in (metric.meaning, metric.healthy, metric.act):  # type: ignore[attr-defined]
        assert not set(plain(text)) & set("\\$`{}") or "{" in text
    assert bool(metric.healthy) == bool(metric.act)  # type: ignore[attr-defined]


def test_a_name_has_one_entry() -> None:
    """Nothing is explained twice."""
    names = [name for metric in METRICS for name in metric.all_names]

    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("train/clip_fraction", "train/clip_fraction"),
        ("clip_fraction", "train/clip_fraction"),
        ("approx_kl_k3", "train/approx_kl_k1"),
        ("surprisal", "train/surprisal"),
        ("train/reward_std", "train/reward"),
        ("infer/cache_hits", "infer/<name>"),
        ("eval_reward/math", "eval_reward/NAME"),
        ("staleness_max", "staleness_mean"),
    ],
)
def test_a_name_is_found_as_people_write_it(word: str, name: str) -> None:
    """Whole, without its group, with an ending, or with a part of the run's own."""
    assert name in [metric.names[0] for metric in find(word)]


def test_a_name_nobody_has_is_answered_by_a_near_one() -> None:
    """Also without its group."""
    with pytest.raises(ConfigError, match="did you mean 'train/clip_fraction'"):
        find("clip_fractoin")


def test_formulas_become_letters() -> None:
    """Greek by name, functions by name."""
    assert plain(r"$-\sum p \log p$, $\pi / \pi_b$, $\pm 20$ of [`a`](b.md)") == "-sum p log p, pi / pi_b, +- 20 of a"


def test_the_command_tells_one_and_lists_all(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both fit 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")

    assert main(["explain", "entropy"]) == 0
    one = capsys.readouterr().out
    assert main(["explain"]) == 0
    every = capsys.readouterr().out

    assert "nats" in one and "healthy" in one and "if not" in one
    assert "train/effective_sample_size" in every and "The policy" in every
    assert max(map(len, [*one.splitlines(), *every.splitlines()])) <= 80
