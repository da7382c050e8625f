"""What a report says about where it was made: versions, commit, claims, models.

Knows: how to read them without importing an engine.
Does not know: reports, or what a plugin is made of (`provenance`).
"""

from __future__ import annotations

import platform
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from areal_conformance.laws import LAWS
from areal_conformance.run.provenance import commit, sources_of
from areal_conformance.run.record import Answer, Family
from areal_conformance.target import Target
from areal_conformance.zoo.architectures import ARCHITECTURES
from areal_conformance.zoo.sample import claimed, claims
from areal_core.contract.version import CONTRACT

ALWAYS = ("torch", "transformers", "areal-core", "areal-conformance")


def facts_of(target: Target) -> dict[str, Any]:
    """Return the fields of a record that the checks do not change. Any: they have several types."""
    return {
        "suite": _version("areal-conformance"),
        "core": _version("areal-core"),
        "contract": {role: ".".join(map(str, pair)) for role, pair in CONTRACT.items()},
        "laws": {str(number): sentence for number, sentence in LAWS.items()},
        "versions": versions_of(target),
        "git": commit(Path.cwd()),
        "sources": sources_of(target),
    }


def versions_of(target: Target) -> dict[str, str]:
    """Return Python, the platform, and every distribution the target requires that is installed."""
    sides = list(target.parts.values()) or [target]
    required = [text for side in sides if side.manifest for text in side.manifest.requires]
    names = sorted({*ALWAYS, *(Requirement(text).name for text in required)})
    found = {name: _version(name) for name in names}
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        **{name: version for name, version in found.items() if version},
    }


def claims_of(target: Target) -> tuple[Answer, ...]:
    """Return what the manifest says, and for a pair what both say, in order."""
    answers = []
    sides = target.parts or {"": target}
    for side, part in sides.items():
        for key, claim in sorted(part.manifest.claims.items()) if part.manifest else ():
            full = f"{side}.{key}" if side else key
            answers.append(
                Answer(
                    key=full,
                    support=str(claim.support),
                    counts=target.claimed(full),
                    condition=claim.condition,
                    why=claim.why,
                    issue=claim.issue,
                )
            )
    return tuple(answers)


def families_of(target: Target) -> tuple[Family, ...]:
    """Return what an engine's adapter says of models, in the order of the zoo; of other roles nothing."""
    if target.role not in ("train", "infer"):
        return ()
    named = [family for family in ARCHITECTURES if claims(target.adapter, family)]
    return tuple(Family(name=family, drawn=sum(1 for _ in claimed(target, family))) for family in named)


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""
