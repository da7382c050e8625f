"""What can be changed in a source: each operator is a function from a node to the edits of that node.

A new operator is one function and a line of the table. It gives edits whose result still compiles, and nothing for
nodes that are not its business.

Knows: the operators by name.
Does not know: which nodes are shown to them (`mutants`).
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from areal_conformance.mutate.operators import (
    calls,
    conditions,
    constants,
    groups,
    keys,
    reductions,
    statements,
    symbols,
    tensors,
)
from areal_conformance.mutate.source import Change, Source

Operator = Callable[[Source, ast.AST], Iterator[Change]]

OPERATORS: Mapping[str, Operator] = MappingProxyType(
    {
        "arithmetic": symbols.arithmetic,
        "comparison": symbols.comparison,
        "boundary": symbols.boundary,
        "condition": conditions.condition,
        "flag": constants.flag,
        "off-by-one": constants.off_by_one,
        "constant": constants.nudged,
        "default": constants.default,
        "statement": statements.dropped,
        "swallowed": statements.swallowed,
        "await": calls.not_awaited,
        "argument": calls.swapped,
        "group": groups.other,
        "dtype": tensors.narrowed,
        "detach": tensors.aliased,
        "no-grad": tensors.with_grad,
        "eval": tensors.training,
        "reduction": reductions.other,
        "key": keys.shortened,
    }
)
