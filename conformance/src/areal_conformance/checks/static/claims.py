"""What a manifest claims, and whether the class behind it can have it."""

from __future__ import annotations

import inspect
from typing import Any

from areal_conformance.benches.static import StaticBench
from areal_conformance.check import Level, check
from areal_conformance.outcome import expect
from areal_core import contract
from areal_core.contract.abilities import ABILITIES
from areal_core.contract.errors import UnknownKey
from areal_core.contract.version import CONTRACT
from areal_core.plugins.claims import Support


@check("static.claims.known", level=Level.STATIC, law=8, spec="index#optional-abilities")
def claims_known(bench: StaticBench) -> None:
    """Every claim is a word of the role; words left unanswered are noted."""
    words = ABILITIES[bench.target.role]
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
    for key, ability in ABILITIES[bench.target.role].items():
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
        "device": contract.Device,
    }[role]
