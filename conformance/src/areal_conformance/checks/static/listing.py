"""Cheap to list, honest to install: the manifest module, requirements and metadata."""

from __future__ import annotations

import json
import re
from importlib.metadata import packages_distributions

from areal_conformance.benches.static import HEAVY, StaticBench, imported
from areal_conformance.check import Level, check
from areal_conformance.outcome import Inconclusive, Violation, expect
from areal_core.plugins.probe import import_roots


@check("static.import.light", level=Level.STATIC, law=0, spec="index#optional-abilities")
def import_light(bench: StaticBench) -> None:
    """The manifest can be read where no engine is installed, and loads none where one is."""
    if not bench.packaged:
        return
    roots = sorted(import_roots(bench.manifest) | set(HEAVY))
    module, _, name = bench.entry.value.partition(":")
    code = f"import {module} as m\nmanifest = m.{name}\nprint(json.dumps([n for n in {roots!r} if n in sys.modules]))"
    try:
        bench.python(code, absent=roots)
    except Violation as error:
        raise Violation(f"importing {module} needs an engine: {error}") from error
    loaded = bench.python(code)
    expect(not loaded, f"importing {module} loads {', '.join(loaded)}: keep manifests to areal_core and literals")


@check("static.manifest.devices", level=Level.STATIC, law=0, spec="index#optional-abilities")
def manifest_devices(bench: StaticBench) -> None:
    """Devices are kinds that a plugin of the role `device` brings, and there is at least one."""
    known = bench.target.registry.names("device")
    unknown = [word for word in bench.manifest.devices if word not in known]
    expect(bench.manifest.devices, "the manifest names no device")
    expect(not unknown, f"unknown devices {unknown}; installed here are {', '.join(known)}")


@check("static.manifest.summary", level=Level.STATIC, law=0, spec="index#optional-abilities")
def manifest_summary(bench: StaticBench) -> None:
    """A listing has one line to show for it."""
    summary = bench.manifest.summary
    expect(summary.strip() and "\n" not in summary, f"summary is {summary!r}: write one line for `areal backends`")


@check("static.requires.extra", level=Level.STATIC, law=0, spec="index#optional-abilities")
def requires_extra(bench: StaticBench) -> None:
    """The extra that errors tell people to install exists."""
    extra = bench.manifest.extra
    if extra is None or not bench.packaged:
        return
    provided = bench.distribution.metadata.get_all("Provides-Extra") or []
    told = f"extra {extra!r} is not one of {bench.entry.distribution}: {', '.join(provided) or 'none'}"
    expect(extra in provided, told)


@check("static.requires.shell", level=Level.STATIC, law=0, spec="index#optional-abilities")
def requires_shell(bench: StaticBench) -> None:
    """A base install brings no engine, so that any plugins can be installed side by side."""
    if not bench.packaged:
        return
    base = [text for text in bench.distribution.requires or [] if "extra ==" not in text]
    names = {re.split(r"[\s\[<>=!~;(]", text, maxsplit=1)[0].lower().replace("-", "_") for text in base}
    engines = sorted(names & {root.lower() for root in import_roots(bench.manifest) & set(HEAVY)})
    expect(not engines, f"the base install requires {', '.join(engines)}: move them to an extra, for example [engine]")


INSIDE = "inside"
"""Folder of a plugin whose engine has an environment of its own: code that runs in the engine's workers."""

_ENGINES = set(HEAVY) - {"numpy", "tensordict"}


@check("static.requires.complete", level=Level.STATIC, law=0, spec="index#optional-abilities")
def requires_complete(bench: StaticBench) -> None:
    """Every engine module the plugin imports is among its requirements, so that its absence is told by name."""
    declared = import_roots(bench.manifest)
    used: dict[str, str] = {}
    for path, tree in bench.engine_sources():
        if bench.manifest.environment and path.parent.name == INSIDE:
            continue  # runs under the engine's own interpreter, which has it
        for name in {module.partition(".")[0] for module in imported(tree)} & _ENGINES:
            used.setdefault(name, path.name)
    missing = [f"{name} ({where})" for name, where in sorted(used.items()) if name not in declared]
    expect(not missing, f"imported but not in `requires`: {', '.join(missing)}")


@check("static.requires.enforced", level=Level.STATIC, law=0, spec="index#optional-abilities")
def requires_enforced(bench: StaticBench) -> None:
    """Where a requirement is absent the plugin is refused by name with the command that brings it."""
    roots = sorted(import_roots(bench.manifest))
    if not roots or not bench.packaged:
        return
    code = (
        "from areal_core.contract.errors import ArealError\n"
        "from areal_core.plugins.registry import Registry\n"
        "try:\n"
        f"    Registry().load({bench.target.role!r}, {bench.target.name!r})\n"
        "    print(json.dumps(['', '']))\n"
        "except ArealError as error:\n"
        "    print(json.dumps([type(error).__name__, str(error)]))\n"
    )
    for root in roots:
        kind, message = bench.python(code, absent=[root])
        expect(kind == "EngineMissing", f"without {root} loading gives {kind or 'a factory'}: {message}")
        names = [root, *packages_distributions().get(root, ())]  # what is imported as PIL is installed as pillow
        named = any(name.replace("_", "-") in message.replace("_", "-") for name in names)
        expect(named and "pip install" in message, f"the error does not name {root} and a pip command: {message}")


@check("static.anchors.hold", level=Level.STATIC, law=0, spec="index#optional-abilities")
def anchors_hold(bench: StaticBench) -> None:
    """Every private place of its engine that the plugin hooks into is still there."""
    anchors = bench.target.adapter.anchors
    if not anchors:
        return
    probe = bench.target.registry.probe(bench.target.role, bench.target.name)
    if probe.missing:
        raise Inconclusive(f"the engine is not installed: missing {', '.join(probe.missing)}")
    code = (
        "import functools, importlib\n"
        "gone = []\n"
        f"for anchor in {list(anchors)!r}:\n"
        "    module, _, path = anchor.partition(':')\n"
        "    try:\n"
        "        functools.reduce(getattr, path.split('.'), importlib.import_module(module))\n"
        "    except (ImportError, AttributeError) as error:\n"
        "        gone.append(f'{anchor}: {error}')\n"
        "print(json.dumps(gone))"
    )
    gone = bench.python(code)
    expect(not gone, f"moved or gone: {json.dumps(gone)}")
