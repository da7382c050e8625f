"""What is forgotten with tensors: a wide dtype, a copy, the graph that must not grow, evaluation mode.

Knows: the names these things have in torch and numpy.
Does not know: reductions.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from areal_conformance.mutate.source import Change, Source

_NARROWER = {"float64": "float32", "float32": "bfloat16", "int64": "int32", "int32": "int16", "uint64": "uint32"}
_OF_NUMPY = {"float32": "float16"}
"""Where numpy has not what torch has."""
_CASTS = {"double": "float", "float": "bfloat16", "long": "int"}
_OWN_COPY = ("detach", "clone", "contiguous", "copy")
_LIBRARIES = ("torch", "np", "numpy")


def narrowed(source: Source, node: ast.AST) -> Iterator[Change]:
    """`torch.float32` becomes `torch.bfloat16`, `np.float32` `np.float16`, `x.double()` becomes `x.float()`."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in _LIBRARIES:
        library = node.value.id
        narrower = _NARROWER if library == "torch" else _NARROWER | _OF_NUMPY
        if node.attr in narrower:
            yield source.replace(node, f"{library}.{narrower[node.attr]}")
    elif _bare_call(node) and node.func.attr in _CASTS:  # type: ignore[attr-defined]
        yield _renamed(source, node, _CASTS[node.func.attr])  # type: ignore[attr-defined]


def aliased(source: Source, node: ast.AST) -> Iterator[Change]:
    """`x.detach()`, `x.clone()`, `x.contiguous()` and `x.copy()` become `x`."""
    if _bare_call(node) and node.func.attr in _OWN_COPY:  # type: ignore[attr-defined]
        yield source.replace(node, f"({source.segment(node.func.value)})")  # type: ignore[arg-type, attr-defined]


def with_grad(source: Source, node: ast.AST) -> Iterator[Change]:
    """`torch.no_grad()` becomes `torch.enable_grad()`, `torch.inference_mode()` is switched off."""
    if not isinstance(node, ast.Call) or node.args or node.keywords:
        return
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name == "no_grad" and isinstance(node.func, ast.Attribute):
        yield _renamed(source, node, "enable_grad")
    elif name == "inference_mode":
        yield source.replace(node, f"{source.segment(node.func)}(False)")


def training(source: Source, node: ast.AST) -> Iterator[Change]:
    """`model.eval()` becomes `model`: dropout stays on."""
    if _bare_call(node) and node.func.attr == "eval":  # type: ignore[attr-defined]
        yield source.replace(node, f"({source.segment(node.func.value)})")  # type: ignore[arg-type, attr-defined]


def _bare_call(node: ast.AST) -> bool:
    """Tell whether a node is `x.name()`."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not node.args and not node.keywords


def _renamed(source: Source, node: ast.AST, name: str) -> Change:
    assert isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    end = source.end(node.func)
    return source.splice(node, end - len(node.func.attr), end, name)
