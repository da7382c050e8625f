"""A plugin's description of itself: plain data in a module that imports only areal_core.

Example, in `areal_fsdp/manifest.py`, named by the entry point `fsdp` of group `areal.train`:

    MANIFEST = Manifest(
        role="train", name="fsdp", contract=(1, 0),
        factory="areal_fsdp.engine:FSDPEngine", config="areal_fsdp.config:FSDPConfig",
        requires=("torch>=2.11", "transformers>=5"), extra="engine", devices=("cpu", "cuda"),
        claims={"parallel.data": full(), "parallel.pipeline": unsupported("FSDP2 has no pipeline schedule")},
    )
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import Converter, Factory, field, frozen

from areal_core.contract.errors import ManifestError
from areal_core.contract.version import ROLES, accepts
from areal_core.plugins.claims import Claim


def _driven(given: Any, by: Any) -> Any:  # Any: what a plugin wrote, and its Manifest, of which only the role is there
    several = isinstance(given, tuple) and {*map(type, given)} == {tuple}
    return max(given, key=lambda one: (by.role in ROLES and accepts(by.role, one), one)) if several else given


@frozen(kw_only=True)
class Manifest:
    """What `areal backends` and the plan know of a plugin without importing its engine.

    `contract` may be several, ((1, 4), (2, 0)), for one release that two majors of the core drive: it is then the
    newest that this core drives. `factory` and `config` are `module:name` strings, resolved when the plugin is
    loaded: the factory is called with one instance of the config class, or with nothing if `config` is None.
    `requires` are requirement strings, checked by the probe; `extra` is named in the fix line. `environment` is for an
    engine with an interpreter of its own: the folder of recipe and locks as `package:folder`, say `areal_vllm:locks`.
    """

    role: str = field()
    name: str
    contract: tuple[int, int] = field(converter=Converter(_driven, takes_self=True))  # type: ignore[misc]  # mypy: functions only
    factory: str = field()
    config: str | None = None
    requires: tuple[str, ...] = field(default=(), converter=tuple[str, ...])
    extra: str | None = None
    devices: tuple[str, ...] = field(default=("cpu",), converter=tuple[str, ...])
    claims: Mapping[str, Claim] = Factory(dict)
    conformance: str | None = None
    environment: str | None = None
    summary: str = ""

    @role.validator
    def _known_role(self, _attribute: object, value: str) -> None:
        if value not in ROLES:
            raise ManifestError(f"unknown role {value!r}", why=f"roles are {', '.join(ROLES)}")

    @factory.validator
    def _has_module_and_name(self, _attribute: object, value: str) -> None:
        if not all(value.partition(":")):
            raise ManifestError(f"factory {value!r} names no object", fix="write it as 'package.module:Name'")
