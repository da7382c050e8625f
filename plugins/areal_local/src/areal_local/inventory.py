"""Everything installed, described and probed: what `areal backends` and `areal doctor` both show.

Knows: how to ask a registry about every name and keep what went wrong as data.
Does not know: how it is shown.
"""

from __future__ import annotations

import difflib

from attrs import frozen

from areal_core.contract.errors import BackendNotFound, PluginError
from areal_core.contract.version import ROLES
from areal_core.plugins.catalogue import OWN, PLANNED, official_names, pip_command
from areal_core.plugins.manifest import Manifest
from areal_core.plugins.probe import Probe
from areal_core.plugins.registry import Registry


@frozen(kw_only=True)
class Row:
    """One plugin: its manifest and probe, or the error that kept them away."""

    role: str
    name: str
    origin: str
    manifest: Manifest | None = None
    probe: Probe | None = None
    error: PluginError | None = None

    @property
    def optional(self) -> bool:
        """Whether it is no backend but one of many small things of ours: a missing requirement is a choice then."""
        return self.origin.partition(" ")[0] in OWN


def inventory(registry: Registry, role: str | None = None, name: str | None = None) -> list[Row]:
    """Describe and probe every plugin, or those of one role or one name; raises for none of them.

    What proves the conformance suite is told of only by name.

    Raises:
        PluginError: there is no such role.
    """
    listings = [each for each in registry.listings(role) if name == each.name or (name is None and not each.proof)]
    return [_row(registry, listing.role, listing.name, listing.origin) for listing in listings]


def nothing_named(registry: Registry, name: str, role: str | None = None) -> BackendNotFound:
    """Return the error for a name that no role has, or not the one asked for."""
    what = f"nothing named {name!r} is installed"
    roles = ROLES if role is None else (role,)
    if any(name in PLANNED.get(one, ()) for one in roles):
        return BackendNotFound(what, why="it does not exist yet", fix="areal backends")
    officials = {official: pip_command(one, official) for one in roles for official in official_names(one)}
    if name in officials:
        return BackendNotFound(what, fix=officials[name])
    installed = sorted({listing.name for listing in registry.listings(role)})
    near = difflib.get_close_matches(name, [*installed, *officials], n=1)
    hint = "areal backends"
    if near:
        hint = f"did you mean '{near[0]}'?" + ("" if near[0] in installed else f"  {officials[near[0]]}")
    return BackendNotFound(what, fix=hint)


def plain(row: Row) -> dict[str, object]:
    """Return a row as plain data for JSON."""
    manifest, probe, error = row.manifest, row.probe, row.error
    data: dict[str, object] = {"role": row.role, "name": row.name, "origin": row.origin}
    if manifest is not None:
        data |= {
            "summary": manifest.summary,
            "contract": list(manifest.contract),
            "devices": list(manifest.devices),
            "claims": {
                key: {"support": str(claim.support), "why": claim.why, "when": claim.condition, "issue": claim.issue}
                for key, claim in sorted(manifest.claims.items())
            },
        }
    if probe is not None:
        data["probe"] = {
            "ok": probe.ok,
            "missing": list(probe.missing),
            "versions": dict(probe.versions),
            "devices": list(probe.devices),
            "environments": {
                device: {"python": str(python.path), "engine_version": python.engine_version, "origin": python.origin}
                for device, python in probe.environments.items()
            },
            "fix": probe.fix,
        }
    if error is not None:
        kind = type(error).__name__
        data["error"] = {
            "code": f"AREAL-{error.code}",
            "kind": kind,
            "what": error.what,
            "why": error.why,
            "fix": error.fix,
        }
    return data


def _row(registry: Registry, role: str, name: str, origin: str) -> Row:
    manifest = None
    try:
        manifest = registry.describe(role, name)
        return Row(role=role, name=name, origin=origin, manifest=manifest, probe=registry.probe(role, name))
    except PluginError as exc:
        return Row(role=role, name=name, origin=origin, manifest=manifest, error=exc)
