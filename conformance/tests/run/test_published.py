"""Reports worth publishing: a hash, a schema, a badge, a site, and an end when the contract goes on."""

from __future__ import annotations

import hashlib
import json
import xml.etree.ElementTree as xml
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import attrs
import jsonschema  # type: ignore[import-untyped]
import pytest
from tools.report_table import table

from areal_conformance.check import Level, Tier
from areal_conformance.inventory import Inventory, Pinned, read_inventory
from areal_conformance.report import write_reports
from areal_conformance.report.badge import badge
from areal_conformance.report.schema import PATH, schema, text
from areal_conformance.report.seal import expired, look_at, outdated
from areal_conformance.report.site import write_site
from areal_conformance.run.plan import closed
from areal_conformance.run.profile import pinned_for
from areal_conformance.run.record import Record, Row, Source, Subject
from areal_core.cli.main import main
from areal_core.contract.errors import ConfigError
from areal_core.contract.version import CONTRACT

REPORTS = Path(__file__).parents[3] / "docs/conformance"
VALIDATOR = jsonschema.Draft202012Validator(schema())
NOW = {role: ".".join(map(str, version)) for role, version in CONTRACT.items()}
Published = Callable[..., Path]


TOY = Subject(role="workflow", name="toy", device="cpu", ranks=1, level=4, contract="1.3")


def recorded(row: Callable[..., Row], *rows: Row, **fields: Any) -> Record:
    """Return the record of a run of the workflow toy. Any: fields of the record."""
    about = fields.pop("subject", TOY)
    source = Source(name="areal-toy", version="2.1", commit="0123456789ab", sha256="f" * 64, files=3)
    given = {"suite": "1.0", "core": "1.0", "contract": NOW, "sources": (source,), "started": "2026-01-02T03:04:05"}
    made = rows or (row("a.one", numbers={"gap": 1e-7}), row("b.one"))
    return closed(Record(subject=about, checks=made, **{**given, **fields}), made, 1.5)


@pytest.fixture
def owed(row: Callable[..., Row]) -> tuple[Row, ...]:
    """Return a row for every check that a run of the workflow toy owes today."""
    pinned = pinned_for("workflow", read_inventory(), level=4, ranks=1, contract=CONTRACT["workflow"])
    return tuple(attrs.evolve(row("owed"), id=key) for key in pinned)


@pytest.fixture
def published(tmp_path: Path, row: Callable[..., Row], owed: tuple[Row, ...]) -> Published:
    """Return a function that writes the reports of a record of this suite and returns their folder."""

    def written(name: str = "out", *rows: Row, **fields: Any) -> Path:
        given = rows or (row("a.one", numbers={"gap": 1e-7}), row("b.one"))
        write_reports(recorded(row, *given, *owed, **fields), tmp_path / name)
        return tmp_path / name

    return written


def changed(folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """Change report.json by hand, hash and all the rest left as they are. Any: JSON."""
    path = folder / "report.json"
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    return folder


def test_a_report_holds_until_it_is_changed(published: Published, capsys: pytest.CaptureFixture[str]) -> None:
    """Other spaces and another order of keys are no change; one word is."""
    folder = published()
    told = json.loads((folder / "report.json").read_text())["sha256"]
    assert main(["conformance", "verify", str(folder)]) == 0
    assert f"sha256 {told}" in capsys.readouterr().out
    assert main(["conformance", "verify", str(folder), "--sha256", told]) == 0
    assert main(["conformance", "verify", str(folder), "--sha256", "0" * 64]) == 1

    changed(folder, lambda data: data.update(suite=data.pop("suite")))
    assert main(["conformance", "verify", str(folder)]) == 0
    changed(folder, lambda data: data["checks"][0].update(seconds=9.0))
    capsys.readouterr()
    assert main(["conformance", "verify", str(folder)]) == 1
    assert "does not hold: its content was changed" in capsys.readouterr().out


def test_the_hash_can_be_made_without_the_suite(published: Published) -> None:
    """As `report.seal` says."""
    data = json.loads((published() / "report.json").read_text())
    told = data.pop("sha256")

    assert told == hashlib.sha256(json.dumps(data, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def test_a_verdict_that_the_checks_do_not_amount_to_is_seen(published: Published, row: Callable[..., Row]) -> None:
    """Though somebody made the hash anew."""
    folder = published("out", row("a.one", "fail"))
    changed(folder, lambda data: data.update(verdict="success"))
    anew = look_at(folder).sha256
    changed(folder, lambda data: data.update(sha256=anew))

    assert look_at(folder).faults == ("its verdict is 'success', its checks amount to 'failure'",)


def test_a_report_of_an_older_suite_has_no_hash(published: Published) -> None:
    """It is read as ever, and does not hold."""
    folder = changed(published(), lambda data: data.pop("sha256"))

    assert look_at(folder).faults == ("it has no hash: an older suite wrote it",)


def test_a_report_expires_with_the_contract(published: Published, row: Callable[..., Row]) -> None:
    """Of its own role, and for a pair of either engine; another role's contract has no say."""
    workflow = recorded(row, contract={**NOW, "workflow": "1.2", "train": "0.1"})
    assert expired(workflow) == f"workflow contract 1.2, now {NOW['workflow']}"
    assert expired(recorded(row, contract={**NOW, "train": "0.1"})) == ""
    about = Subject(role="pair", name="a+b", device="cpu", ranks=1, level=4)
    pair = recorded(row, subject=about, contract={**NOW, "infer": "1.0"})
    assert expired(pair) == f"infer contract 1.0, now {NOW['infer']}"

    assert main(["conformance", "verify", str(published("old", contract={**NOW, "workflow": "1.2"}))]) == 3


def pinned(level: Level, **facts: Any) -> Pinned:
    """Return a check of workflows as the inventory has it. Any: its fields."""
    return Pinned(role="workflow", level=level, tier=Tier.CORE, **facts)


def test_a_report_without_a_check_that_its_run_would_owe_today_is_outdated(row: Callable[..., Row]) -> None:
    """By role, level, ranks and contract; skipped by claim is not lacking, and what has no say yet is not missed."""
    had = {"workflow.a.one": pinned(Level.SINGLE), "workflow.b.one": pinned(Level.STATIC, requires=("images",))}
    record = recorded(row, row("a.one"), row("b.one", "skip"))
    assert outdated(record, Inventory(checks=had)) == ""

    not_owed = {
        "workflow.a.ranks": pinned(Level.SINGLE, ranks=2),
        "workflow.a.numbers": pinned(Level.NUMBERS),
        "workflow.a.later": pinned(Level.SINGLE, since="9.9"),
        "workflow.a.provisional": pinned(Level.SINGLE, provisional=True),
        "train.a.other": Pinned(role="train", level=Level.SINGLE, tier=Tier.CORE),
    }
    assert outdated(record, Inventory(checks={**had, **not_owed})) == ""

    came = {"workflow.a.two": pinned(Level.SINGLE), "static.a.one": Pinned(role="static", level=0, tier=Tier.CORE)}
    assert outdated(record, Inventory(checks={**had, **came})) == "it lacks 2 checks, e.g. static.a.one"
    deeper = recorded(row, *record.checks, subject=attrs.evolve(TOY, ranks=2))
    assert outdated(deeper, Inventory(checks={**had, **not_owed})) == "it lacks workflow.a.ranks"


def test_an_outdated_report_holds_and_is_told(
    published: Published, owed: tuple[Row, ...], row: Callable[..., Row], capsys: pytest.CaptureFixture[str]
) -> None:
    """In `verify`, in the table and on the site, which say the same."""
    folder = published("reports/old", row("a.one"))
    lost = owed[-1].id
    whole = json.loads((folder / "report.json").read_text())
    assert [look_at(folder).standing, main(["conformance", "verify", str(folder)])] == ["current", 0]

    less = [one for one in whole["checks"] if one["id"] != lost]
    changed(folder, lambda data: data.update(checks=less))
    changed(folder, lambda data: data.update(sha256=look_at(folder).sha256))
    capsys.readouterr()
    assert main(["conformance", "verify", str(folder)]) == 3
    assert f"outdated: it lacks {lost}\n" in capsys.readouterr().out
    assert f"| success | outdated: it lacks {lost} |" in table(folder.parent)
    assert main(["conformance", "site", str(folder.parent), "--out", str(folder.parent / "site")]) == 0
    assert f"outdated: it lacks {lost}" in (folder.parent / "site/index.html").read_text()
    assert f"Outdated: it lacks {lost}." in (folder.parent / "site/old/index.html").read_text()


def test_the_table_tells_what_each_report_is_worth(published: Published, row: Callable[..., Row]) -> None:
    """Beside the verdict, in the words of `verify`."""
    published("reports/now", row("a.one"))
    published("reports/of_old", row("a.one"), contract={**NOW, "workflow": "1.2"})
    changed(published("reports/open", row("a.one")), lambda data: data.pop("sha256"))
    bad = changed(published("reports/spoiled", row("a.one")), lambda data: data.update(seed=5))

    assert [line.split("|")[6].strip() for line in table(bad.parent).splitlines() if "/report.md" in line] == [
        "current",
        f"expired: workflow contract 1.2, now {NOW['workflow']}",
        "unsealed",
        "does not hold",
    ]


def test_a_contract_that_is_no_version_is_told(published: Published) -> None:
    """Whoever wrote it by hand."""
    with pytest.raises(ConfigError, match="the report names contract new"):
        look_at(published("hand", contract={**NOW, "workflow": "new"}))


def test_the_schema_is_that_of_the_record(published: Published) -> None:
    """`python -m areal_conformance.report.schema --write` was run; a report is of it, one with more fields too."""
    assert text() == PATH.read_text(encoding="utf-8")
    jsonschema.Draft202012Validator.check_schema(schema())
    data = json.loads((published() / "report.json").read_text())
    VALIDATOR.validate(data)
    VALIDATOR.validate({**data, "more": 1, "checks": [{**one, "more": 1} for one in data["checks"]]})

    for spoiled in ({**data, "schema": 2}, {**data, "verdict": 1}, {**data, "checks": [{}]}):
        with pytest.raises(jsonschema.ValidationError):
            VALIDATOR.validate(spoiled)


@pytest.mark.parametrize("path", sorted(REPORTS.rglob("report.json")), ids=lambda path: path.parent.name)
def test_committed_reports_are_of_the_schema(path: Path) -> None:
    """Also those from before it was written down."""
    VALIDATOR.validate(json.loads(path.read_text(encoding="utf-8")))


def test_a_badge_is_a_picture_that_says_the_same(row: Callable[..., Row]) -> None:
    """Well formed whatever the name, with a text for whoever does not see it; nothing is fetched."""
    about = Subject(role="workflow", name="<toy> & 'co'", device="npu", ranks=1, level=2, stand_ins="No NPU.")
    drawn = badge(recorded(row, row("a.one", "fail"), subject=about))
    root = xml.fromstring(drawn)

    words = f"<toy> & 'co': areal workflow contract {NOW['workflow']}: failure, levels 0-2 on npu stand-ins"
    assert root.attrib["aria-label"] == words
    assert drawn.count("http") == 1  # the name of the language itself
    assert len({badge(recorded(row, row("a.one", end))) for end in ("pass", "fail", "inconclusive", "not-run")}) == 4


class Site(HTMLParser):
    """Collects the tags of a page, and refuses one that is not closed."""

    VOID = ("meta", "input", "br")

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag: str, given: list[tuple[str, str | None]]) -> None:
        """Take one in."""
        self.tags.append((tag, dict(given)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Close one."""
        assert tag == self.open.pop(), f"</{tag}> closes another element"

    def all(self, tag: str) -> list[dict[str, str | None]]:
        """Return the attributes of every such tag."""
        return [given for name, given in self.tags if name == tag]


def test_a_site_puts_reports_beside_each_other(
    published: Published, tmp_path: Path, row: Callable[..., Row], capsys: pytest.CaptureFixture[str]
) -> None:
    """A line for each, a column for each area, a page of its own; its report is the file that was given."""
    first = published("reports/1.3/toy", row("a.one"), row("a.two", "fail"), row("b.one", "skip"))
    about = Subject(role="workflow", name="<other>", device="cuda", ranks=1, level=4)
    published("reports/1.2/other", row("c.one"), subject=about, contract={**NOW, "workflow": "1.2"})
    changed(published("reports/bad"), lambda data: data.update(suite="2.0"))

    assert main(["conformance", "site", str(tmp_path / "reports"), "--out", str(tmp_path / "site")]) == 0
    assert "3 reports" in capsys.readouterr().out
    page = (tmp_path / "site/index.html").read_text(encoding="utf-8")
    seen = Site(page)

    links = [str(given["href"]) for given in seen.all("a")]
    assert sorted(links) == ["1.2-other/index.html", "1.3-toy/index.html", "bad/index.html"]
    assert all((tmp_path / "site" / link).is_file() for link in links)
    assert (tmp_path / "site/1.3-toy/report.json").read_bytes() == (first / "report.json").read_bytes()
    titles = [given["title"] for given in seen.all("td") if "title" in given]
    assert "workflow.a: 1 fail, 1 pass" in titles
    assert "&lt;other&gt;" in page
    assert f"expired: workflow contract 1.2, now {NOW['workflow']}" in page
    assert page.count("does not hold") == 1
    pages = {name: (tmp_path / "site" / name / "index.html").read_text() for name in ("1.3-toy", "1.2-other", "bad")}
    assert ["Expired: workflow contract 1.2" in text for text in pages.values()] == [False, True, False]
    assert ["does not hold: its content was changed" in text for text in pages.values()] == [False, False, True]
    assert "areal-toy 2.1" in page and "0123456789ab" in page


def test_a_site_fetches_and_runs_nothing(published: Published, tmp_path: Path) -> None:
    """No script on its first page, no address from elsewhere on any."""
    published("reports/toy")
    first, _ = write_site(tmp_path / "reports", tmp_path / "site")

    assert not Site(first.read_text(encoding="utf-8")).all("script")
    for path in (tmp_path / "site").rglob("*.html"):
        for tag, given in Site(path.read_text(encoding="utf-8")).tags:
            assert tag not in ("link", "img", "iframe"), f"<{tag}> in {path}"
            assert "src" not in given
            assert not str(given.get("href", "")).startswith(("http", "//"))


def test_a_site_made_twice_does_not_list_itself(published: Published, tmp_path: Path) -> None:
    """Also where it lies among the reports."""
    published("reports/toy")
    found = [write_site(tmp_path / "reports", tmp_path / "reports/site")[1] for _ in range(2)]

    assert found == [1, 1]


def test_a_folder_without_reports_is_refused(tmp_path: Path) -> None:
    """With what makes one."""
    with pytest.raises(ConfigError, match="--report FOLDER"):
        write_site(tmp_path, tmp_path / "site")


def test_the_report_says_what_was_judged(published: Published) -> None:
    """Files, commit and hash, in text and page."""
    folder = published()
    for name in ("report.md", "report.html"):
        told = (folder / name).read_text(encoding="utf-8")
        assert f"3, commit 0123456789ab, sha256 {'f' * 64}" in told


def test_compare_tells_what_is_lost_and_what_is_measured_otherwise(row: Callable[..., Row]) -> None:
    """A pass that is owed no more by the same run is worse, and so is a new check that fails; files and numbers too."""
    from areal_conformance.report.compare import compare

    one = row("a.one", numbers={"gap": 1.0, "same": 2.0})
    before = recorded(row, one, row("a.lost"))
    source = attrs.evolve(before.sources[0], sha256="e" * 64)
    later = attrs.evolve(one, numbers={"gap": 2.0, "same": 2.1})
    after = recorded(row, later, row("a.new", "fail"), sources=(source,))
    found = compare(before, after)

    assert found.worse == (("workflow.a.new", "none", "fail"), ("workflow.a.lost", "pass", "none"))
    assert "~ number workflow.a.one gap: 1 -> 2" in found.other
    assert not [line for line in found.other if " same:" in line]
    assert "~ files of areal-toy: 2.1 0123456789ab ffffffffffff -> 2.1 0123456789ab eeeeeeeeeeee" in found.other

    shallow = attrs.evolve(after, subject=attrs.evolve(after.subject, level=1))
    assert ("workflow.a.lost", "pass", "none") not in compare(before, shallow).worse
    assert "- workflow.a.lost: was pass" in compare(before, shallow).other
