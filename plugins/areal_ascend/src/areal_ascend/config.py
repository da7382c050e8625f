"""Options of the Ascend engine, as they stand under `options:` of a training role."""

from __future__ import annotations

from typing import Any

from attrs import Attribute, field, frozen

from areal_core.contract.errors import PlanError
from areal_fsdp.config import FSDPConfig


def _refuse(_: object, __: Attribute[Any], value: bool) -> None:
    if value:
        raise PlanError(
            "layers are not compiled on an NPU",
            why="torch.compile needs a kernel compiler for NPUs, and none has been tried",
            fix="leave out options.compile",
        )


@frozen(kw_only=True)
class AscendConfig(FSDPConfig):
    """Those of `fsdp`, but for compilation."""

    compile: bool = field(default=False, validator=_refuse)
    """Refused."""
