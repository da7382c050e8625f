"""What was judged is known by its files: the same for a wheel and a checkout, another after one changed byte."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from areal_conformance.probes.distributions import manifest_source, write_distribution
from areal_conformance.run.provenance import hash_of, sources_of
from areal_conformance.run.record import Source
from areal_conformance.target import Locator, locate


def git(folder: Path, *words: str) -> str:
    """Run git in a folder, as somebody."""
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    return subprocess.run(["git", *who, *words], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of an installed transport called `told`."""
    modules = {"areal_told.manifest": manifest_source("transport", "told"), "areal_told.engine": "Engine = object\n"}
    entry = {"areal.transport": {"told": "areal_told.manifest:MANIFEST"}}
    write_distribution(tmp_path, "areal-told", version="2.1", entry_points=entry, modules=modules)
    monkeypatch.syspath_prepend(str(tmp_path))
    for module in ("areal_told", "areal_told.manifest"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    return tmp_path


def source() -> Source:
    """Return what the suite finds the plugin made of."""
    (found,) = sources_of(locate(Locator(role="transport", name="told")))
    return found


def test_the_hash_is_that_of_the_files(plugin: Path) -> None:
    """As the shell gives it; caches of Python are no part, and one byte more is another hash."""
    (plugin / "areal_told" / "__pycache__").mkdir()
    (plugin / "areal_told" / "__pycache__" / "engine.pyc").write_bytes(b"0")
    line = "find areal_told -type f ! -path '*/__pycache__/*' | LC_ALL=C sort | xargs sha256sum | sha256sum"
    told = subprocess.run(["sh", "-c", line], cwd=plugin, capture_output=True, text=True, check=True).stdout

    found = source()
    assert (found.name, found.version, found.files) == ("areal-told", "2.1", 3)
    assert found.sha256 == told.split()[0]

    with (plugin / "areal_told" / "engine.py").open("a", encoding="utf-8") as file:
        file.write("\n")
    assert source().sha256 != found.sha256


def test_the_commit_is_that_of_a_checkout(plugin: Path) -> None:
    """`+` where a file of the package is not as committed; nothing for an environment that lies in a repository."""
    git(plugin, "init", "-q")
    (plugin / "README.md").write_text("a", encoding="utf-8")
    git(plugin, "add", "README.md")
    git(plugin, "commit", "-qm", "the environment lies inside")
    assert source().commit == ""

    git(plugin, "add", ".")
    git(plugin, "commit", "-qm", "the package too")
    head = git(plugin, "rev-parse", "--short=12", "HEAD")
    (plugin / "README.md").write_text("b", encoding="utf-8")
    assert source().commit == head

    (plugin / "areal_told" / "engine.py").write_text("Engine = int\n", encoding="utf-8")
    assert source().commit == head + "+"


def test_what_pip_took_from_a_repository_has_its_commit(plugin: Path) -> None:
    """pip notes it beside the metadata."""
    (info,) = plugin.glob("*.dist-info")
    (info / "direct_url.json").write_text('{"url": "u", "vcs_info": {"vcs": "git", "commit_id": "0123456789abcdef"}}')

    assert source().commit == "0123456789ab"


def test_a_pair_has_two_and_a_file_is_its_own(tmp_path: Path) -> None:
    """Each side once, and the user's own file by its name."""
    pair = sources_of(locate(Locator(role="pair", name="fsdp+reference")))
    assert [one.name for one in pair] == ["areal-fsdp", "areal-reference"]

    same = sources_of(locate(Locator(role="pair", name="reference+reference")))
    assert [one.name for one in same] == ["areal-reference"]


def test_no_files_have_no_hash(tmp_path: Path) -> None:
    """An empty folder is not a package of nothing."""
    assert hash_of([tmp_path]) == ("", 0)
