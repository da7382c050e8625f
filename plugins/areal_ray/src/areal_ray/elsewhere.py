"""A run planned on this machine for machines of another place: nodes of Slurm, pods of Kubernetes.

Knows: planning, what a run asks of all nodes together, the command that starts it there.
Does not know: who gives the nodes (`slurm`, `kube`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
from attrs import frozen

from areal_config.machine import Machine, described
from areal_core.config.load import load_config
from areal_core.config.plan import Plan, make_plan
from areal_core.config.schema import AUTO
from areal_core.contract.device import CPU
from areal_core.contract.errors import ConfigError, ResourceError
from areal_core.loop.run_folder import RunFolder
from areal_core.plugins.redact import redact
from areal_core.plugins.registry import Registry, default_registry

_ON_RAY = "scheduler.backend=ray"


@frozen(kw_only=True)
class Nodes:
    """What a run is given: equal nodes.

    Example: Nodes(count=2, gpus=8, cpus=64, kind="cuda", memory=80_000_000_000)
    """

    count: int
    gpus: int = 0
    """Accelerators of one node."""
    cpus: int = 0
    """Processors of one node; 0 is not known."""
    kind: str = CPU
    """Of what a run is on that leaves it open: `device: auto`."""
    memory: int = 0
    """Bytes of one accelerator, or of one node without; 0 is not known."""

    @classmethod
    def of(cls, count: int, gpus: int, cpus: int, assume: str, *, word: str = "node") -> Nodes:
        """Return the nodes that options describe.

        Args:
            assume: one node, as `areal train --assume` describes a machine; empty is not known.
            word: what options call a node.

        Raises:
            ConfigError: an option is no number of such things, or no description.
        """
        for option, value, least in (
            (f"--{word}s", count, 1),
            (f"--gpus-per-{word}", gpus, 0),
            (f"--cpus-per-{word}", cpus, 0),
        ):
            if value < least:
                raise ConfigError(
                    f"{option} {value}", why=f"it is {least} or more", fix=f"for example {option} {least + 1}"
                )
        if not assume:
            return cls(count=count, gpus=gpus, cpus=cpus, kind="cuda" if gpus else CPU)
        one = described(assume, default_registry())
        (kind, memory), *_ = one.memory.items()
        return cls(count=count, gpus=gpus or one.devices.get(kind, 0), cpus=cpus, kind=kind, memory=memory)

    def misfits(self, plan: Plan) -> list[str]:
        """Return, as warnings, what is known not to fit."""
        if not self.memory:
            return []
        if self.kind == CPU:
            return Machine(devices={}, memory={CPU: self.memory * self.count}).misfits(plan)
        return Machine(devices={self.kind: self.gpus * self.count}, memory={self.kind: self.memory}).misfits(plan)


@frozen(kw_only=True)
class RunElsewhere:
    """A planned run."""

    file: Path
    overrides: tuple[str, ...]
    """Those of the user but `out`, which is the run folder."""
    plan: Plan
    nodes: Nodes = Nodes(count=1)

    @property
    def folder(self) -> RunFolder:
        """Return the run folder, as this machine calls it."""
        return RunFolder.of(self.plan.config)

    @property
    def name(self) -> str:
        """Return what the run is called."""
        return self.plan.config.name

    @property
    def imports(self) -> tuple[Path, ...]:
        """Return the user's own Python files."""
        return tuple(Path(file) for file in self.plan.config.imports)

    @property
    def device(self) -> str:
        """Return the kind of device it is on."""
        return self.plan.roles[0].device

    def told(self) -> str:
        """Return the plan for people."""
        return str(self.plan)

    def on(self, nodes: Nodes) -> RunElsewhere:
        """Return the run on nodes, with warnings of what cannot fit there.

        Raises:
            ResourceError: all nodes together have less than the run asks for.
        """
        _check_room(self.plan, nodes)
        plan = attrs.evolve(self.plan, warnings=(*self.plan.warnings, *nodes.misfits(self.plan)))
        return attrs.evolve(self, plan=plan, nodes=nodes)


def plan_elsewhere(
    file: Path, overrides: Sequence[str], kind: str = CPU, registry: Registry | None = None
) -> RunElsewhere:
    """Plan a run of `scheduler.backend=ray` on nodes that are not here.

    Args:
        kind: of devices there, for `device: auto`.

    Raises:
        ConfigError, PluginError: as `areal train --dry-run`; or a secret stands in the file or an override.
    """
    registry = registry or default_registry()
    for override in overrides:
        _check_no_secret(load_plain(None, [override]), f"the override of {override.partition('=')[0]}")
    config = load_config(file, (*overrides, _ON_RAY))
    _check_no_secret(load_plain(file, ()), str(file))
    for each in config.imports:
        registry.add_file(Path(each))  # a kind of device may be among what it brings
    kind = kind if config.device == AUTO else config.device
    # How many there are does not matter here: a scheduler of many machines counts them itself.
    plan = make_plan(config, registry, {} if kind == CPU else {kind: 1}, installed=False)
    others = tuple(each for each in overrides if not each.startswith("out="))
    return RunElsewhere(file=file, overrides=others, plan=plan)


def load_plain(file: Path | None, overrides: Sequence[str]) -> Any:  # Any: plain data
    """Return what a file and overrides say, with `${...}` as it stands there."""
    from omegaconf import OmegaConf

    layers = [OmegaConf.load(file)] if file is not None and file.is_file() else []
    return OmegaConf.to_container(OmegaConf.merge(*layers, OmegaConf.from_dotlist(list(overrides))), resolve=False)


def _check_room(plan: Plan, nodes: Nodes) -> None:
    """Refuse more than all nodes have together; that a gang fits on single nodes is the scheduler's to see."""
    owners = [role for role in plan.roles if not role.placement.owner]
    device = plan.roles[0].device
    asked = {role.role: role.num_workers * role.devices_per_worker for role in owners}
    each, what = nodes.gpus, f"{device} devices"
    if device == CPU:
        asked = {role.role: role.num_workers * role.cpus_per_worker for role in plan.roles}
        each, what = nodes.cpus, "processors"
        if not each:
            return
    total, there = sum(asked.values()), nodes.count * each
    if total > there:
        raise ResourceError(
            f"the run needs {total} {what}, {nodes.count} nodes of {each} have {there}",
            why=", ".join(f"{role} {count}" for role, count in asked.items()),
            fix=f"take {-(-total // each)} nodes, or make the layouts smaller"
            if each
            else f"say how many a node has, or describe one: --assume {device}:8x80GB",
        )


def _check_no_secret(plain: Any, where: str) -> None:  # Any: plain data
    """Refuse a secret that would be written once more, or stand in a list of processes."""
    for path in _secrets(plain, redact(plain), ""):
        raise ConfigError(
            f"{where} holds a secret: {path}",
            why="what starts a run elsewhere is a file that others may read",
            fix=f"set a variable and refer to it: {path}=${{oc.env:NAME}}",
        )


def _secrets(value: Any, without: Any, path: str) -> list[str]:  # Any: plain data
    if isinstance(value, Mapping):
        return [p for key in value for p in _secrets(value[key], without[key], f"{path}.{key}" if path else str(key))]
    if isinstance(value, list):
        return [p for n, item in enumerate(value) for p in _secrets(item, without[n], f"{path}[{n}]")]
    told_elsewhere = isinstance(value, str) and value.startswith("${")
    return [path] if value != without and not told_elsewhere else []
