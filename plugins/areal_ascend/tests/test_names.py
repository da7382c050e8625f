"""What the plugin and the core ask of torch_npu is in the wheel, the real one, whatever runs below it."""

from __future__ import annotations

import ast
import re
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.ascend
READERS = (
    "areal_ascend.attention",
    "areal_ascend.engine",
    "areal_torch.device",
    "areal_torch.collective.group",
)


def source(module: str) -> str:
    """Return the text of a module."""
    return Path(str(import_module(module).__file__)).read_text()


def chains(tree: ast.AST) -> set[str]:
    """Return every dotted name that starts at torch_npu, and every name imported from it."""
    found = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch_npu"):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in found if re.fullmatch(r"torch_npu(\.\w+)+", name)}


def used() -> set[str]:
    """Return all names used; `module` and `npu` are torch.npu where the core looks after devices."""
    found = set().union(*(chains(ast.parse(source(module))) for module in READERS))
    for module in READERS[2:]:
        found |= {f"torch.npu.{name}" for name in re.findall(r"\b(?:module|npu)\.(\w+)\(", source(module))}
    return found


def test_every_name_is_there() -> None:
    """The scan finds the names one knows of, and each of them exists."""
    import torch
    import torch_npu

    names = used()
    missing = []
    for name in names:
        first, *rest = name.split(".")
        thing: Any = {"torch": torch, "torch_npu": torch_npu}[first]
        for part in rest:
            thing = getattr(thing, part, None)
        if thing is None:
            missing.append(name)

    assert {"torch_npu.npu_fusion_attention", "torch.npu.set_device", "torch.npu.current_device"} <= names
    assert "torch_npu._C._distributed_c10d.ProcessGroupHCCL" in names
    assert missing == []


def test_the_real_group_has_what_weights_are_streamed_with() -> None:
    """Methods of the group and options it is made with, of torch_npu's own class, which the stand-in hides."""
    from areal_ascend.testing.hccl import HostHCCL

    group = source("areal_torch.collective.group")
    methods = set(re.findall(r"\b(?:self\._)?group\.(\w+)\(", group))
    made = group[group.index("ProcessGroupHCCL.Options()") :]
    options = set(re.findall(r"\boptions\.(\w+) =", made))

    assert {"broadcast", "abort", "abort_hccl_comm", "clear_workmeta_list", "shutdown"} == methods
    assert {"_timeout", "group_id", "global_ranks_in_group"} == options
    assert [name for name in methods if not hasattr(HostHCCL.Real, name)] == []
    assert [name for name in options if not hasattr(HostHCCL.Real.Options(), name)] == []


def test_the_real_group_has_no_abort_that_torch_would_call() -> None:
    """Why groups over HCCL are left in another way than others. Once it overrides torch's, this fails."""
    import torch_npu

    header = Path(str(torch_npu.__file__)).parent / "include/torch_npu/csrc/distributed/ProcessGroupHCCL.hpp"
    text = header.read_text()

    assert "bool abort(c10::optional<std::string> abortReason" in text
    assert text.count("void abort() override") == 1, "that of its works; another would be the group's"


def test_an_npu_tells_how_much_memory_is_held() -> None:
    """What vLLM's workers are asked for on any device, by the name of its kind."""
    import torch

    assert "getattr(torch, kind).memory_reserved()" in source("areal_vllm.inside.worker")
    assert isinstance(torch.npu.memory_reserved(), int)  # type: ignore[attr-defined]  # torch_npu adds it


def test_the_kernel_has_every_argument_that_is_passed() -> None:
    """By name and by place."""
    import torch

    arguments = [argument.name for argument in torch.ops.npu.npu_fusion_attention.default._schema.arguments]
    calls = [
        node
        for node in ast.walk(ast.parse(source("areal_ascend.attention")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch_npu.npu_fusion_attention"
    ]

    assert len(calls) == 1
    assert arguments[: len(calls[0].args)] == ["query", "key", "value", "head_num", "input_layout"]
    assert {keyword.arg for keyword in calls[0].keywords} <= set(arguments)


def test_the_wheel_is_the_one_these_tests_speak_of() -> None:
    """Another version may need other stand-ins; say so here first."""
    assert metadata.version("torch-npu").startswith("2.13.")
