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

from collections.abc import Iterable, Mapping

from attrs import Factory, field, frozen

from areal_core.contract.errors import ManifestError
from areal_core.contract.version import ROLES
from areal_core.plugins.claims import Claim


def _words(values: Iterable[str]) -> tuple[str, ...]:
    return (values,) if isinstance(values, str) else tuple(values)


@frozen(kw_only=True)
class Manifest:
    """What `areal backends` and the plan know of a plugin without importing its engine.

    `factory` and `config` are `module:name` strings, resolved when the plugin is loaded:
    the factory is called with one instance of the config class, or with nothing if `config` is None.
    `requires` are requirement strings, checked by the probe; `extra` is named in the fix line.
    `environment` is for an engine that runs under an interpreter of its own: the folder of its
    recipe and locks as `package:folder`, for example `areal_vllm:locks`.
    """

    role: str = field()
    name: str
    contract: tuple[int, int]
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
        module, _, name = value.partition(":")
        if not (module and name):
            raise ManifestError(f"factory {value!r} names no object", fix="write it as 'package.module:Name'")
