"""Stages two and four: import what an entry point or a manifest names, and say well why that failed.

Knows: `module:name` strings, the contract handshake, whose fault an ImportError is.
Does not know: which entry is meant; it is handed one.
"""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Mapping

from areal_core import __version__
from areal_core.contract.errors import BackendBroken, ContractMismatch, EngineMissing, ManifestError
from areal_core.contract.version import CONTRACT, accepts, range_accepted
from areal_core.plugins.claims import Claim, parse
from areal_core.plugins.discovery import PREFIX, Entry
from areal_core.plugins.install import pip_install
from areal_core.plugins.manifest import Manifest
from areal_core.plugins.probe import engine_command, import_roots

_NOUNS = {"train": "train backend", "infer": "infer backend", "scheduler": "scheduler", "transport": "transport"}


def noun(role: str) -> str:
    """Return what a plugin of the role is called in a sentence."""
    return _NOUNS.get(role, role)


def read_manifest(entry: Entry) -> Manifest:
    """Import the module an entry point names and return its manifest, checked.

    Raises:
        BackendBroken: the module raises or lacks the object.
        ManifestError: the object is no manifest, or not the one the entry point announces.
        ContractMismatch: this core does not speak the plugin's contract.
    """
    role = entry.group.removeprefix(PREFIX)
    title = f"{noun(role)} {entry.name!r} of {entry.origin}"
    try:
        found = resolve(entry.value)
    except ManifestError as exc:
        raise ManifestError(f"{title} has a malformed manifest", why=exc.what, fix=exc.fix or exc.why) from exc
    except (Exception, SystemExit) as exc:
        raise _broken(f"{title} cannot be imported", entry, exc) from exc
    if not isinstance(found, Manifest):
        raise ManifestError(
            f"{title} has no manifest", why=f"{entry.value} is of type {type(found).__name__}, not Manifest"
        )
    if (found.role, found.name) != (role, entry.name):
        raise ManifestError(
            f"{title} announces another plugin",
            why=f"{entry.value} has role {found.role!r} and name {found.name!r}",
            fix="make the entry point and the manifest agree",
        )
    check_manifest(found, title, entry.origin, entry.distribution)
    return found


def check_manifest(manifest: Manifest, title: str, origin: str, distribution: str = "") -> None:
    """Check a manifest, of a distribution or of a user's own file.

    Raises:
        ManifestError: an entry is malformed.
        ContractMismatch: this core does not speak its contract.
    """
    # Manifests are other people's: here the annotations are hopes, and a wrong one must not reach a listing.
    version: object = manifest.contract
    if not (isinstance(version, tuple) and len(version) == 2 and all(type(part) is int for part in version)):
        raise ManifestError(f"{title} has contract {version!r}", fix="write two integers, for example (1, 0)")
    for word in (*manifest.requires, *manifest.devices, manifest.summary):
        if not isinstance(word, str):
            raise ManifestError(f"{title} has {word!r} where a string belongs")
    claims: object = manifest.claims
    if not isinstance(claims, Mapping):
        raise ManifestError(f"{title} has claims of type {type(claims).__name__}", fix="write a dict of claims")
    for key, claim in claims.items():
        _check_claim(str(key), claim, title)
    _shake_hands(manifest, origin, distribution)


def load_object(target: str, manifest: Manifest, entry: Entry) -> object:
    """Import `module:name` for a plugin, its factory or its config class.

    Raises:
        EngineMissing: a module that the plugin's requirements should bring is not there.
        BackendBroken: anything else went wrong in the import.
    """
    try:
        return resolve(target)
    except (Exception, SystemExit) as exc:
        if isinstance(exc, ModuleNotFoundError) and (exc.name or "").partition(".")[0] in import_roots(manifest):
            why, fix = f"not importable: {exc.name}", engine_command(manifest, entry.distribution)
            raise engine_missing(manifest.role, manifest.name, why, fix) from exc
        raise _broken(f"{noun(manifest.role)} {manifest.name!r} of {entry.origin} is broken", entry, exc) from exc


def engine_missing(role: str, name: str, why: str, fix: str) -> EngineMissing:
    """Return the error for a plugin whose engine is absent or too old."""
    return EngineMissing(f"{noun(role)} {name!r} is installed without its engine", why=why, fix=fix)


def reason(exc: BaseException) -> str:
    """Return one line for an exception raised by a plugin: type, message, file and line."""
    text = f"{type(exc).__name__}: {exc}".strip().partition("\n")[0].rstrip(": ")
    frames = [frame for frame in traceback.extract_tb(exc.__traceback__) if "importlib" not in frame.filename]
    theirs = [frame for frame in frames if frame.filename != __file__]
    return f"{text} ({theirs[-1].filename}:{theirs[-1].lineno})" if theirs else text


def resolve(target: str) -> object:
    """Import `module:name` and return the object; lets every exception pass."""
    module, _, name = target.partition(":")
    found: object = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _broken(what: str, entry: Entry, exc: BaseException) -> BackendBroken:
    return BackendBroken(
        what,
        why=reason(exc),
        fix=f"{pip_install(entry.distribution, options='--force-reinstall')}, or report it to its authors",
    )


def _check_claim(key: str, claim: object, title: str) -> None:
    if not isinstance(claim, Claim):
        raise ManifestError(
            f"{title} claims {key!r} as {claim!r}", fix="use full(), when(), not_yet() or unsupported()"
        )
    if claim.condition:
        try:
            parse(claim.condition)
        except ManifestError as exc:
            raise ManifestError(f"{title} claims {key!r} wrongly", why=exc.what, fix=exc.fix) from exc


def _shake_hands(manifest: Manifest, origin: str, distribution: str) -> None:
    ours, role = CONTRACT[manifest.role], manifest.role
    if accepts(role, manifest.contract):
        return
    fix = f"change it to {role} contract {_dotted(ours)}"
    if distribution:
        fix = f"{pip_install(distribution, options='-U')}: a release for {role} contract {_dotted(ours)} is needed"
    if manifest.contract > ours:
        other = f"a release of {distribution} for" if distribution else "change it to"
        fix = f"{pip_install('areal-core', options='-U')}, or {other} {role} contract {_dotted(ours)}"
    raise ContractMismatch(
        f"{origin} speaks {role} contract {_dotted(manifest.contract)}",
        why=f"areal-core {__version__} speaks {role} contract {range_accepted(role)}",
        fix=fix,
    )


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
