"""Plugins that are not what they say: manifests, packaging and source with one defect each."""

from __future__ import annotations

import socket
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from areal_conformance.probes.distributions import manifest_source, write_distribution
from areal_conformance.target import Target, locate
from areal_core.contract.inference import PauseMode
from areal_core.plugins.claims import Claim, full, not_yet
from areal_core.plugins.registry import Registry
from areal_proof.mutants import mutant
from areal_proof.mutants.rows import breaking, row, then
from areal_reference.infer.engine import ReferenceInferenceEngine
from areal_reference.train.engine import ReferenceTrainEngine

_ENGINE = '''
from areal_reference.train.engine import ReferenceTrainEngine
class Engine(ReferenceTrainEngine):
    """The whole backend under another name."""
'''
breaks = breaking("train/reference", ReferenceTrainEngine)


def _installed(
    whole: Target, name: str, *, before: str = "", source: str = _ENGINE, metadata: str = "", **fields: Any
) -> Target:
    """Install a distribution of one train backend for this process, and find it. Any: fields of a manifest."""
    site = Path(tempfile.mkdtemp(prefix="areal-mutant-"))
    given = {"summary": "a mutant", "requires": ("torch>=2.11", "transformers>=5"), "extra": None, **fields}
    write_distribution(
        site,
        f"areal-{name}",
        entry_points={"areal.train": {name: f"areal_{name}.manifest:MANIFEST"}},
        modules={
            f"areal_{name}.manifest": before + manifest_source("train", name, **given),
            f"areal_{name}.engine": source,
        },
    )
    with (site / f"areal_{name}-1.0.dist-info" / "METADATA").open("a") as file:
        file.write(metadata)
    sys.path.insert(0, str(site))
    return locate(attrs.evolve(whole.locator, name=name))


def _described(whole: Target, **fields: Any) -> Target:
    """Return the target with another manifest. Any: fields of a manifest."""
    assert whole.manifest is not None
    manifest = attrs.evolve(whole.manifest, **fields)
    factory = whole.registry.load(whole.role, whole.name)
    registry = Registry(entries={(whole.role, whole.name): (manifest, factory)})
    return attrs.evolve(whole, manifest=manifest, registry=registry)


def _claiming(whole: Target, claims: Mapping[str, Claim]) -> Target:
    assert whole.manifest is not None
    return _described(whole, claims={**whole.manifest.claims, **claims})


@mutant("train/reference", killers=("static.import.light",), incident="llm#732")
def HeavyManifest(whole: Target) -> Target:
    """Imports torch to say its name, so that every listing pays for it."""
    return _installed(whole, "heavymanifest", before="import torch\n")


@mutant("train/reference", killers=("static.manifest.devices",))
def UnknownDevice(whole: Target) -> Target:
    """Says it runs on `gpu`, which no plan asks for."""
    return _described(whole, devices=("cpu", "gpu"))


@mutant("train/reference", killers=("static.manifest.summary",))
def NothingToShow(whole: Target) -> Target:
    """Has no line for the listing."""
    return _described(whole, summary="")


@mutant("train/reference", killers=("static.requires.extra",))
def ExtraNobodyProvides(whole: Target) -> Target:
    """Tells people to install an extra that its distribution does not have."""
    return _installed(whole, "extranobodyprovides", extra="engine")


@mutant("train/reference", killers=("static.requires.shell",))
def EngineInBaseInstall(whole: Target) -> Target:
    """Brings torch with the base install, so that two plugins cannot be installed side by side."""
    return _installed(whole, "engineinbaseinstall", metadata="Requires-Dist: torch (==2.13.0)\n")


@mutant("train/reference", killers=("static.requires.complete",), incident="verl __init__.py:74", row="visible-plugin")
def SwallowsMissingEngine(whole: Target) -> Target:
    """Imports its engine under a handler that says nothing, and requires nothing."""
    source = "try:\n    import vllm\nexcept ImportError:\n    vllm = None\n" + _ENGINE
    return _installed(whole, "swallowsmissingengine", source=source)


@mutant("train/reference", killers=("static.requires.enforced",), incident="verl __init__.py:74", row="visible-plugin")
def RequiresUnderAFalseMarker(whole: Target) -> Target:
    """Requires its engine for another Python only, and starts without it."""
    return _installed(
        whole,
        "requiresunderafalsemarker",
        requires=("torch>=2.11; python_version < '3'",),
        source="class Engine:\n    version = 0\n",
    )


@mutant("train/reference", killers=("static.anchors.hold",), incident="NeMo-RL#4155", row="shim-moved")
def AnchorMoved(whole: Target) -> Target:
    """Hooks into a private place of torch that is no longer there."""
    adapter = attrs.evolve(whole.adapter, anchors=("torch.distributed:_functional_moved", "torch.nn:Module.forward"))
    return attrs.evolve(whole, adapter=adapter)


@mutant("train/reference", killers=("static.claims.known",))
def InventsAClaim(whole: Target) -> Target:
    """Claims an ability no plan can ask for."""
    return _claiming(whole, {"parallel.tensors": full()})


@mutant("train/reference", killers=("static.claims.reasons",))
def NoWithoutReason(whole: Target) -> Target:
    """Denies an ability and does not say why."""
    return _claiming(whole, {"lora": not_yet("")})


@mutant("infer/reference", killers=("static.claims.protocols",))
class ClaimsWithoutMethods(ReferenceInferenceEngine):
    """Claims sleeping and has no such method."""

    sleep = None  # type: ignore[assignment]


@mutant("train/reference", killers=("static.contract.version",))
def FromTheFuture(whole: Target) -> Target:
    """Is written for a contract this core does not speak yet."""
    return _described(whole, contract=(1, 99))


@mutant("train/reference", killers=("static.config.defaults",))
def TakesAnyOption(whole: Target) -> Target:
    """Accepts options that nobody reads, so that a misspelt one is silence."""
    return _described(whole, config="builtins:dict")


@mutant("infer/reference", killers=("static.signature.methods",))
class PausesItsOwnWay(ReferenceInferenceEngine):
    """Pauses without being told how, under an argument of another name."""

    async def pause(self, how: PauseMode = PauseMode.ABORT) -> None:
        await super().pause(how)


@mutant("infer/reference", killers=("static.signature.methods",))
class CommitsSynchronously(ReferenceInferenceEngine):
    """Has a plain `commit_weights` where a coroutine is awaited."""

    def commit_weights(self, version: int) -> None:  # type: ignore[override]
        """Commit."""


@mutant("train/reference", killers=("static.source.no_pickle",))
def UnpicklesItsState(whole: Target) -> Target:
    """Loads a checkpoint with pickle: whoever writes the file runs code in the trainer."""
    source = _ENGINE + "    def load_state(self, path):\n        import pickle\n        pickle.load(path.open('rb'))\n"
    return _installed(whole, "unpicklesitsstate", source=source)


@mutant("train/reference", killers=("static.source.no_pickle",))
def LoadsUnsafely(whole: Target) -> Target:
    """Calls torch.load in its unsafe mode."""
    source = _ENGINE + (
        "    def load_state(self, path):\n        import torch\n        torch.load(path, weights_only=False)\n"
    )
    return _installed(whole, "loadsunsafely", source=source)


@mutant("train/reference", killers=("static.source.no_remote_code",))
def TrustsRemoteCode(whole: Target) -> Target:
    """Runs the Python files that come with a model."""
    source = _ENGINE + (
        "    def load(self, path):\n        from transformers import AutoModelForCausalLM\n"
        "        return AutoModelForCausalLM.from_pretrained(path, trust_remote_code=True)\n"
    )
    return _installed(whole, "trustsremotecode", source=source)


@mutant("train/reference", killers=("static.source.loopback",))
def ListensOnEveryInterface(whole: Target) -> Target:
    """Opens its server to every machine that can reach this one."""
    return _installed(whole, "listensoneveryinterface", source=_ENGINE + "    host = '0.0.0.0'\n")


@mutant("train/reference", killers=("static.source.loopback",))
def BindsEveryInterface(whole: Target) -> Target:
    """Makes the address of its server out of pieces, of which the first is that of every interface."""
    source = _ENGINE + "    def address(self, port):\n        return f'tcp://*:{port}'\n"
    return _installed(whole, "bindseveryinterface", source=source)


@mutant("train/reference", killers=("static.source.no_not_implemented",))
def PromisesAMethod(whole: Target) -> Target:
    """Has a method only to raise NotImplementedError when it is called."""
    source = _ENGINE + "    def export_onnx(self, path):\n        raise NotImplementedError\n"
    return _installed(whole, "promisesamethod", source=source)


@mutant("train/reference", killers=("static.source.no_swallowing",), incident="TRL#6913", row="dead-peer")
def PassesOverErrors(whole: Target) -> Target:
    """Catches every exception of a save and goes on."""
    source = _ENGINE + (
        "    def save_weights(self, path):\n        try:\n            super().save_weights(path)\n"
        "        except Exception:\n            pass\n"
    )
    return _installed(whole, "passesovererrors", source=source)


ROWS = breaks.rows(
    row("ListensWhenBuilt", "Takes a port when it is built, before anybody asked it to start.", "static.build.cheap",
        __init__=then(lambda self: setattr(self, "_listening", socket.create_server(("127.0.0.1", 0))))),
)  # fmt: skip
