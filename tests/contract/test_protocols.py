"""The contract stays small, documented, and light to import."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Mapping

import attrs
import pytest

from areal_core import contract
from areal_core.contract import optional

PROTOCOLS = [
    contract.TrainEngine,
    contract.InferenceEngine,
    contract.RolloutWorkflow,
    contract.Scheduler,
    contract.WeightTransport,
    contract.Objective,
    contract.Worker,
    contract.Session,
    contract.WeightSink,
    contract.WeightSource,
]
OPTIONAL = [value for name, value in vars(optional).items() if name.startswith("Supports")]
TYPES = [value for value in vars(contract).values() if isinstance(value, type) and attrs.has(value)]


def _members(protocol: type) -> Mapping[str, object]:
    names = {name for name in (*vars(protocol), *getattr(protocol, "__annotations__", {})) if not name.startswith("_")}
    return {name: vars(protocol).get(name) for name in names}


@pytest.mark.parametrize("protocol", [*PROTOCOLS, *OPTIONAL])
def test_no_protocol_has_more_than_twelve_members(protocol: type) -> None:
    """A backend author reads it in one sitting."""
    assert 1 <= len(_members(protocol)) <= 12


@pytest.mark.parametrize("protocol", [*PROTOCOLS, *OPTIONAL])
def test_every_method_is_typed_and_documented(protocol: type) -> None:
    """No `*args`, no missing annotation, a docstring that ends its first line with a stop."""
    for name, member in _members(protocol).items():
        function = member.fget if isinstance(member, property) else member
        if not inspect.isfunction(function):
            continue
        signature = inspect.signature(function)
        variadic = [p for p in signature.parameters.values() if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        untyped = [p.name for p in signature.parameters.values() if p.name != "self" and p.annotation is p.empty]

        assert not untyped, f"{protocol.__name__}.{name} has untyped {untyped}"
        assert signature.return_annotation is not signature.empty, f"{protocol.__name__}.{name} returns what?"
        assert not variadic or name in ("call", "apply_chat_template"), f"{protocol.__name__}.{name} is variadic"
        first = (inspect.getdoc(function) or "").split("\n")[0]
        assert first.endswith((".", ":")), f"{protocol.__name__}.{name}: {first!r}"


@pytest.mark.parametrize("kind", TYPES)
def test_every_type_is_frozen_keyword_only_and_documented(kind: type) -> None:
    """Contract types are values; nobody depends on the order of their fields."""
    assert kind.__doc__
    assert all(field.kw_only for field in attrs.fields(kind))
    assert getattr(kind, "__setattr__", None) is not object.__setattr__, f"{kind.__name__} can be changed"


@pytest.mark.parametrize("protocol", OPTIONAL)
def test_an_optional_ability_names_its_claim(protocol: type) -> None:
    """The docstring starts with the key a manifest claims it by."""
    assert (protocol.__doc__ or "").startswith("Claim `")


@pytest.mark.parametrize(
    "module", ["areal_core", "areal_core.contract", "areal_core.plugins.registry", "areal_core.config.load"]
)
def test_importing_the_core_loads_no_engine(module: str) -> None:
    """Neither torch nor ray nor transformers, in a fresh interpreter."""
    code = f"import {module}, sys; print(*[m for m in ('torch', 'ray', 'transformers') if m in sys.modules])"

    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()

    assert loaded == []


def test_a_newer_minor_or_another_major_is_not_spoken() -> None:
    """Older minors of the same major are."""
    major, minor = contract.CONTRACT["train"]

    assert contract.accepts("train", (major, minor))
    assert not contract.accepts("train", (major, minor + 1))
    assert not contract.accepts("train", (major + 1, 0))
