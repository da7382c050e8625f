"""The lock for development pins what our packages ask for, and nothing of the machine it was made on."""

from __future__ import annotations

import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
LOCK = (ROOT / "requirements/dev.lock").read_text().splitlines()
MANIFESTS = [ROOT / "pyproject.toml", *ROOT.glob("kits/*/pyproject.toml"), *ROOT.glob("plugins/*/pyproject.toml")]
MANIFESTS += [ROOT / "conformance/pyproject.toml", ROOT / "conformance/proof/pyproject.toml"]
EXTRAS = {"dev", "docs", "engine", "torch", "gym", "hub", "images", "fp8"}
NOT_LOCKED = {"torch", "torch-npu"}  # TORCH of the Makefile says which; NPUs have an environment of their own


def pins() -> dict[str, set[Version]]:
    """Return the versions pinned per distribution; markers may choose between several."""
    found = defaultdict(set)
    for line in LOCK:
        if line and not line.startswith("#"):
            name, _, rest = line.partition("==")
            found[canonicalize_name(name)].add(Version(rest.partition(";")[0].strip()))
    return found


def wanted() -> Iterator[Requirement]:
    """Yield what our packages ask of others: always, and for the extras `make test` installs."""
    projects = [tomllib.loads(path.read_text())["project"] for path in MANIFESTS]
    ours = {project["name"] for project in projects}
    for project in projects:
        extras = project.get("optional-dependencies", {})
        for line in project.get("dependencies", []) + [r for name in EXTRAS & set(extras) for r in extras[name]]:
            if (requirement := Requirement(line)).name not in ours:
                yield requirement


def test_every_requirement_is_pinned_at_a_version_that_satisfies_it() -> None:
    """A requirement that was added or raised calls for `make lock`."""
    pinned = pins()

    stale = [
        str(requirement)
        for requirement in wanted()
        if requirement.name not in NOT_LOCKED
        and not any(v in requirement.specifier for v in pinned.get(canonicalize_name(requirement.name), ()))
    ]
    assert stale == []


def test_the_lock_names_no_host_no_path_and_no_cuda() -> None:
    """It constrains versions wherever packages come from, and leaves the build of torch to TORCH."""
    assert [line for line in LOCK if re.search(r"://|^[-./]|^(torch|triton)==|^(nvidia|cuda)-", line)] == []
