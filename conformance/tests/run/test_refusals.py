"""What is refused before any check, because it would show as failures of a backend that did nothing wrong."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest

from areal_conformance.adapter import Adapter, Tolerance
from areal_conformance.run.asked import Asked
from areal_conformance.run.refusals import refuse_absent, refuse_adapter
from areal_conformance.target import Locator, Target
from areal_core.contract.errors import ConfigError, EngineMissing, ResourceError
from areal_core.plugins.install import pip_install
from areal_core.plugins.registry import Registry


def absent(role: str, device: str = "cpu", *, torch: bool = True, **asked: Any) -> None:
    """Ask for a run of a backend `toy` on a machine with a CPU, and with torch or without. Any: fields of Asked."""
    refuse_absent(
        Asked(backend="toy", **asked),
        Locator(role=role, name="toy", device=device),
        found=lambda name: torch or name not in ("torch", "transformers"),
        kinds=lambda registry: {"cpu"},
    )


@pytest.mark.parametrize("role", ["train", "infer", "pair", "transport", "workflow"])
def test_without_torch_only_static_checks_run(role: str) -> None:
    """Its absence is not the backend's failure; the command that brings it is told."""
    with pytest.raises(EngineMissing, match="need torch, transformers") as caught:
        absent(role, torch=False, level=1)

    assert pip_install("areal-conformance[engine]") in str(caught.value)
    absent(role, torch=False, level=0)
    absent(role, torch=False, only=("static.import.light",))
    absent(role, level=1)


def test_a_scheduler_needs_no_torch() -> None:
    """It carries calls, not tensors."""
    absent("scheduler", torch=False, level=4)


def test_an_engine_is_not_checked_on_a_device_that_is_not_here() -> None:
    """A hundred failures to start would say nothing of the backend."""
    with pytest.raises(ResourceError, match="there is no npu device here"):
        absent("train", "npu", level=1)
    absent("train", "npu", level=0)
    absent("scheduler", "npu", level=1)


@pytest.mark.parametrize(
    ("adapter", "told"),
    [
        (
            {"tolerances": {"train.forward.logprob": Tolerance(atol=1, why="x")}},
            "did you mean 'train.forward.logprobs'",
        ),
        ({"tolerances": {"train.forward.logprobs": Tolerance(atol=1)}}, "`why` is empty"),
        ({"options": {"packng": {}}}, "did you mean 'packing'"),
        ({"architectures": ("granit",)}, "the zoo has no 'granit'; did you mean 'granite'"),
        ({"traits": ("rope.yarm",)}, "the zoo has no 'rope.yarm'; did you mean 'rope.yarn'"),
        ({"patience": 0.0}, "must be above 0"),
    ],
)
def test_an_adapter_without_effect_is_refused(adapter: Mapping[str, Any], told: str) -> None:
    """A tolerance of no check, an option of no ability: nobody would notice. Any: fields of an adapter."""
    target = Target(locator=Locator(role="train", name="toy"), registry=Registry(), adapter=Adapter(**adapter))
    with pytest.raises(ConfigError, match=re.escape(told)):
        refuse_adapter(target, {"train.forward.logprobs"})


def test_an_adapter_in_words_that_exist_is_taken() -> None:
    """The empty key of options is for every check."""
    adapter = Adapter(
        tolerances={"train.forward.logprobs": Tolerance(atol=1e-2, why="the kernel")},
        options={"": {"fast": True}, "packing": {"packed": True}},
    )
    refuse_adapter(
        Target(locator=Locator(role="train", name="toy"), registry=Registry(), adapter=adapter),
        {"train.forward.logprobs"},
    )
