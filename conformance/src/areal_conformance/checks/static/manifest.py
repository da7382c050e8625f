"""Manifests: cheap to list, honest to install, and claiming what the class behind them has."""

from __future__ import annotations

import inspect
import json
import re
from importlib.metadata import packages_distributions
from typing import Any

from areal_agentic.endpoint import AgentEndpoint
from areal_agentic.renderer import Renderer
from areal_conformance.benches.static import HEAVY, StaticBench, imported
from areal_conformance.check import Level, check
from areal_conformance.outcome import Inconclusive, Violation, expect
from areal_core import contract
from areal_core.contract.abilities import ABILITIES
from areal_core.contract.errors import UnknownKey
from areal_core.contract.version import CONTRACT
from areal_core.plugins.claims import Support
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

TESTING = "testing"
"""Folder of a plugin with what its own tests and adapters need."""

_ENGINES = set(HEAVY) - {"numpy", "tensordict"}


@check("static.requires.complete", level=Level.STATIC, law=0, spec="index#optional-abilities")
def requires_complete(bench: StaticBench) -> None:
    """Every engine module the plugin imports is among its requirements, so that its absence is told by name."""
    declared = import_roots(bench.manifest)
    used: dict[str, str] = {}
    for path, tree in bench.engine_sources():
        if bench.manifest.environment and path.parent.name == INSIDE:
            continue  # runs under the engine's own interpreter, which has it
        if path.parent.name == TESTING:
            continue  # loaded by nothing that a run builds
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


@check("static.claims.known", level=Level.STATIC, law=8, spec="index#optional-abilities")
def claims_known(bench: StaticBench) -> None:
    """Every claim is a word of the role; words left unanswered are noted."""
    words = ABILITIES.get(bench.target.role, {})
    unknown = sorted(set(bench.manifest.claims) - set(words))
    silent = sorted(set(words) - set(bench.manifest.claims))
    if silent:
        bench.notes.append(f"not answered, so not claimed: {', '.join(silent)}")
    expect(not unknown, f"no ability of a {bench.target.role} backend is called {', '.join(unknown)}")


@check("static.claims.reasons", level=Level.STATIC, law=8, spec="index#optional-abilities")
def claims_reasons(bench: StaticBench) -> None:
    """A no and a condition come with the reason a user is told."""
    silent = [
        key
        for key, claim in bench.manifest.claims.items()
        if claim.support is not Support.FULL and not claim.why.strip()
    ]
    expect(not silent, f"no reason is given for {', '.join(silent)}")
    empty = [
        key for key, claim in bench.manifest.claims.items() if claim.support is Support.WHEN and not claim.condition
    ]
    expect(not empty, f"claimed under an empty condition: {', '.join(empty)}; write full(), or the condition")


@check("static.claims.protocols", level=Level.STATIC, law=8, spec="index#optional-abilities")
def claims_protocols(bench: StaticBench) -> None:
    """An ability with methods is claimed exactly if the engine has them."""
    engine = bench.built()
    for key, ability in ABILITIES.get(bench.target.role, {}).items():
        if ability.protocol is None:
            continue
        has = isinstance(engine, ability.protocol)
        claim = bench.manifest.claims.get(key)
        says = claim is not None and claim.claimed
        name = ability.protocol.__name__
        expect(has or not says, f"{key!r} is claimed and the engine does not satisfy {name}")
        expect(says or not has, f"the engine satisfies {name} and {key!r} is not claimed")


@check("static.contract.version", level=Level.STATIC, law=0, spec="index#versions")
def contract_version(bench: StaticBench) -> None:
    """The manifest is written for a contract this core speaks; an older minor is noted."""
    ours, theirs = CONTRACT[bench.target.role], bench.manifest.contract
    expect(theirs[0] == ours[0] and theirs[1] <= ours[1], f"written for {theirs}, this core speaks {ours}")
    if theirs != ours:
        bench.notes.append(f"written for contract {theirs[0]}.{theirs[1]}, this core speaks {ours[0]}.{ours[1]}")


@check("static.config.defaults", level=Level.STATIC, law=8, spec="index#optional-abilities")
def config_defaults(bench: StaticBench) -> None:
    """Options have defaults, and an option nobody reads is refused by name."""
    registry, role, name = bench.target.registry, bench.target.role, bench.target.name
    registry.options(role, name, bench.target.options())
    try:
        registry.options(role, name, {**bench.target.options(), "no_such_option": 1})
    except UnknownKey as error:
        expect("no_such_option" in str(error), f"the error does not name the option: {error}")
        return
    expect(False, "an option nobody reads was accepted: give the manifest a config class")


@check("static.signature.methods", level=Level.STATIC, law=0, spec="index")
def signature_methods(bench: StaticBench) -> None:
    """Every method of the protocol is there, asynchronous where it must be, and takes the contract's arguments."""
    engine, protocol = bench.built(), _protocol(bench.target.role)
    for name, wanted in inspect.getmembers(protocol, inspect.isfunction):
        if name.startswith("_"):
            continue
        found = getattr(engine, name, None)
        expect(callable(found), f"{name} is missing: {protocol.__name__} has it")
        assert found is not None
        asks, gives = inspect.iscoroutinefunction(wanted), inspect.iscoroutinefunction(found)
        expect(asks == gives, f"{name} must {'be' if asks else 'not be'} a coroutine function")
        _takes(name, wanted, found)


def _takes(name: str, wanted: Any, found: Any) -> None:
    """Expect that a call written for the protocol fits the method. Any: functions."""
    theirs = inspect.signature(found)
    ours = [parameter for key, parameter in inspect.signature(wanted).parameters.items() if key != "self"]
    by_place = [object() for _ in ours]
    by_name = {parameter.name: object() for parameter in ours}
    for places, names in ((by_place, dict[str, object]()), (list[object](), by_name)):
        try:
            theirs.bind(*places, **names)
        except TypeError as error:
            signature = ", ".join(parameter.name for parameter in ours)
            expect(False, f"{name}{theirs} does not take ({signature}): {error}")


def _protocol(role: str) -> type:
    return {
        "train": contract.TrainEngine,
        "infer": contract.InferenceEngine,
        "scheduler": contract.Scheduler,
        "transport": contract.WeightTransport,
        "workflow": contract.RolloutWorkflow,
        "endpoint": AgentEndpoint,
        "renderer": Renderer,
        "device": contract.Device,
    }[role]
