"""The ledger: strict when read, strict when applied."""

from __future__ import annotations

import tomllib
from datetime import date
from pathlib import Path

import pytest

from areal_conformance.outcome import Outcome, Result
from areal_conformance.run.ledger import Ledger, read_ledger, suggestion
from areal_core.contract.errors import ConfigError

TODAY = date(2026, 3, 1)
IDS = ("infer.pause.freezes", "infer.close.callers", "train.lora.trains")
ENTRY = {
    "check": '"infer.pause.freezes"',
    "kind": '"bug"',
    "match": '"3 tokens"',
    "reason": '"pause drains first"',
    "issue": '"https://example.org/1"',
    "expires": "2026-06-30",
}


def written(folder: Path, *entries: dict[str, str]) -> Path:
    """Write a ledger of entries given as toml values."""
    path = folder / "conformance.toml"
    blocks = ["[[known]]\n" + "".join(f"{key} = {value}\n" for key, value in entry.items()) for entry in entries]
    path.write_text("\n".join(blocks), encoding="utf-8")
    return path


def read(path: Path, **changes: object) -> Ledger:
    """Read a ledger for a run of `infer mine` on the CPU."""
    given: dict[str, object] = {
        "today": TODAY,
        "ids": IDS,
        "retired": ("infer.old.one",),
        "device": "cpu",
        "backend": "mine",
    }
    return read_ledger(path, **{**given, **changes})  # type: ignore[arg-type]


def result(outcome: Outcome, message: str = "", check: str = "infer.pause.freezes") -> Result:
    """Return the end of a check."""
    return Result(check=check, outcome=outcome, message=message)


def test_a_failure_that_matches_is_known(tmp_path: Path) -> None:
    """The message keeps what happened and adds the reason."""
    judged, kind = read(written(tmp_path, ENTRY)).judge(result(Outcome.FAIL, "law 7: x\nexpected 0, got 3 tokens"))

    assert (judged.outcome, kind) == (Outcome.KNOWN_FAIL, "bug")
    assert "pause drains first" in judged.message
    assert "got 3 tokens" in judged.message


def test_another_failure_still_fails(tmp_path: Path) -> None:
    """An entry excuses one thing."""
    judged, _ = read(written(tmp_path, ENTRY)).judge(result(Outcome.FAIL, "it hangs"))

    assert Outcome.FAIL is judged.outcome
    assert "Not the known failure" in judged.message


def test_a_listed_check_that_passes_is_an_unexpected_pass(tmp_path: Path) -> None:
    """Stale entries do not stay."""
    judged, _ = read(written(tmp_path, ENTRY)).judge(result(Outcome.PASS))

    assert Outcome.UNEXPECTED_PASS is judged.outcome
    assert "Remove the entry" in judged.message


@pytest.mark.parametrize("outcome", [Outcome.ERROR, Outcome.INCONCLUSIVE, Outcome.SKIP])
def test_other_ends_are_not_excused(tmp_path: Path, outcome: Outcome) -> None:
    """Only a failure of the backend can be known."""
    judged, kind = read(written(tmp_path, ENTRY)).judge(result(outcome, "3 tokens"))

    assert (outcome, "") == (judged.outcome, kind)


def test_other_checks_are_not_concerned(tmp_path: Path) -> None:
    """Ids match whole, never by a part."""
    ledger = read(written(tmp_path, ENTRY))
    given = result(Outcome.FAIL, "3 tokens", check="infer.pause.freezes_longer")

    assert (given, "") == ledger.judge(given)


def test_flaky_may_pass_or_fail(tmp_path: Path) -> None:
    """And is marked either way."""
    ledger = read(written(tmp_path, {**ENTRY, "kind": '"flaky"'}))

    assert (ledger.judge(result(Outcome.PASS))[0].outcome, "flaky") == (Outcome.PASS, "flaky")
    assert Outcome.KNOWN_FAIL is ledger.judge(result(Outcome.FAIL, "3 tokens"))[0].outcome
    assert Outcome.FAIL is ledger.judge(result(Outcome.FAIL, "other"))[0].outcome


def test_only_hang_is_not_run(tmp_path: Path) -> None:
    """Every other kind runs."""
    assert read(written(tmp_path, {**ENTRY, "kind": '"hang"'})).hangs("infer.pause.freezes") is not None
    for kind in ("bug", "not-yet", "upstream", "flaky"):
        assert read(written(tmp_path, {**ENTRY, "kind": f'"{kind}"'})).hangs("infer.pause.freezes") is None


@pytest.mark.parametrize("field", sorted(ENTRY))
def test_every_field_is_needed(tmp_path: Path, field: str) -> None:
    """Without a required field nobody writes the reason."""
    path = written(tmp_path, {key: value for key, value in ENTRY.items() if key != field})

    with pytest.raises(ConfigError, match=f"{field} is missing"):
        read(path)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"check": '"infer.pause.freeze"'}, "no check has this id"),
        ({"check": '"INFER.PAUSE.FREEZES"'}, "no check has this id"),
        ({"check": '"infer.old.one"'}, "is retired"),
        ({"kind": '"wontfix"'}, "is none of bug, not-yet, upstream, flaky, hang"),
        ({"expires": "2026-02-28"}, "expired on 2026-02-28"),
        ({"expires": '"2026-12-31"'}, "expires must be a date"),
        ({"expires": "2026-12-31T10:00:00"}, "expires must be a date"),
        ({"reason": '""'}, "reason is empty"),
        ({"match": '""'}, "match is empty"),
        ({"until": '"later"'}, "unknown field until"),
        ({"versions": '{ torch = "new" }'}, "no version range"),
        ({"match": "3"}, "match must be a str"),
    ],
)
def test_what_breaks_the_rules_is_refused(tmp_path: Path, change: dict[str, str], told: str) -> None:
    """Before any check runs."""
    with pytest.raises(ConfigError, match=told):
        read(written(tmp_path, {**ENTRY, **change}))


def test_the_last_day_still_counts(tmp_path: Path) -> None:
    """`expires` is the last day, not the first without."""
    assert read(written(tmp_path, {**ENTRY, "expires": TODAY.isoformat()})).entries


def test_twice_is_refused(tmp_path: Path) -> None:
    """Two entries of one check for one run."""
    with pytest.raises(ConfigError, match="is there twice"):
        read(written(tmp_path, ENTRY, ENTRY))
    with pytest.raises(ConfigError, match="two entries apply"):
        read(written(tmp_path, ENTRY, {**ENTRY, "device": '"cpu"'}))


def test_rules_hold_for_entries_that_do_not_apply(tmp_path: Path) -> None:
    """An expired entry of another device is expired."""
    with pytest.raises(ConfigError, match="expired"):
        read(written(tmp_path, {**ENTRY, "device": '"npu"', "expires": "2020-01-01"}))


def test_device_backend_and_versions_narrow(tmp_path: Path) -> None:
    """An entry speaks of the run it was made for."""
    for narrowing, applies in (
        ({"device": '"npu"'}, False),
        ({"device": '"cpu"'}, True),
        ({"backend": '"other"'}, False),
        ({"backend": '"mine"'}, True),
        ({"versions": '{ pytest = ">=8" }'}, True),
        ({"versions": '{ pytest = "<1" }'}, False),
        ({"versions": '{ not-installed-here = ">=1" }'}, False),
    ):
        assert applies is bool(read(written(tmp_path, {**ENTRY, **narrowing})).entries), narrowing


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    """Missing, no toml, or something else in it."""
    with pytest.raises(ConfigError, match="cannot be read"):
        read(tmp_path / "none.toml")
    other = tmp_path / "conformance.toml"
    other.write_text("[[known]\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="is no toml"):
        read(other)
    other.write_text("[known]\ncheck = 'x'\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="entries only"):
        read(other)


def test_a_suggestion_is_toml_that_needs_a_person(tmp_path: Path) -> None:
    """It parses; it is refused until reason and issue are written; then it holds."""
    message = 'law 7: All or nothing.\nexpected "a\\b", got 3 tokens'
    text = suggestion([("infer.pause.freezes", message)], ["infer.close.callers"], date(2026, 6, 1))
    path = tmp_path / "conformance.toml"
    path.write_text(text, encoding="utf-8")

    assert tomllib.loads(text)["known"][0]["match"] == 'expected "a\\b", got 3 tokens'
    assert "# remove the entry of infer.close.callers" in text
    with pytest.raises(ConfigError, match="reason is empty"):
        read(path)
    filled = text.replace('reason = ""', 'reason = "r"').replace('issue = ""', 'issue = "i"')
    path.write_text(filled, encoding="utf-8")
    assert Outcome.KNOWN_FAIL is read(path).judge(result(Outcome.FAIL, message))[0].outcome


@pytest.mark.parametrize(
    ("said", "match"),
    [
        ("the backend raised OSError: no room at engine.py:43", "the backend raised OSError: no room"),
        ("a " * 60, "a " * 39 + "a"),
        ("a" * 90, "a" * 80),
    ],
)
def test_a_suggestion_matches_whole_words_and_no_line_number(said: str, match: str) -> None:
    """The next edit of a source file must not turn a known failure into another."""
    text = suggestion([("infer.pause.freezes", f"law 7: All or nothing.\n{said}")], [], date(2026, 6, 1))

    assert tomllib.loads(text)["known"][0]["match"] == match
    assert match in said
