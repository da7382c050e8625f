"""AReaL's words for layouts into one backend string per role.

Knows: `allocation_mode` and the `backend` of a role, in both of their spellings.
Does not know: what a backend can do; planning does.
"""

from __future__ import annotations

import re

from attrs import frozen

from areal_core.contract.errors import ConfigError

GENERATES = ("sglang", "vllm")
_PART = re.compile(r"(?:(?P<name>[a-z]+)(?:\[(?P<role>\w+)\])?[:.])?(?P<shape>(?:[dtpce]\d+)+)")
_HYBRID = re.compile(r"(?P<name>[a-z]+):\(?attn:(?P<attention>(?:[dtpc]\d+)+)\|ffn:(?P<experts>(?:[dtpe]\d+)+)\)?")
_AXIS = re.compile(r"([dtpce])(\d+)")


@frozen
class Layout:
    """One role's backend. `expert_tensor` is Megatron's tensor degree of experts, 1 where it is not said.

    Example: Layout(backend="megatron:d4p2t2e2", role="actor", expert_tensor=4)
    """

    backend: str
    role: str = ""
    expert_tensor: int = 1
    shares: bool = False
    """Whether it runs on the devices of the one before it."""

    @property
    def generates(self) -> bool:
        """Whether it is an inference engine."""
        return self.backend.partition(":")[0] in GENERATES


def parse_layouts(text: str) -> list[Layout]:
    """Return the parts of an `allocation_mode`, or of one role's `backend`.

    Raises:
        ConfigError: it cannot be read.
    """
    compact = "".join(str(text).split())
    found: list[Layout] = []
    for part in re.split(r"\+(?![^(]*\))", compact):
        hybrid = _HYBRID.fullmatch(part)
        if hybrid:
            found.append(_hybrid(hybrid))
            continue
        for number, word in enumerate(part.split("|")):
            match = _PART.fullmatch(word)
            if match is None:
                raise ConfigError(
                    f"AReaL's layout {text!r} cannot be read",
                    why=f"{word!r} is none of sglang:d4t2, fsdp[actor]:d4, megatron:(attn:d4t2|ffn:d2e4)",
                    fix="write rollout.backend and actor.backend yourself: areal config actor.backend",
                )
            name = match["name"] or "fsdp"
            found.append(Layout(_backend(name, match["shape"]), role=match["role"] or "", shares=number > 0))
    return found


def _hybrid(match: re.Match[str]) -> Layout:
    attention, experts = _sizes(match["attention"]), _sizes(match["experts"])
    shape = {**attention, "e": experts.get("e", 1)}
    words = "".join(f"{axis}{size}" for axis, size in shape.items())
    return Layout(_backend(match["name"], words), expert_tensor=experts.get("t", 1))


def _sizes(shape: str) -> dict[str, int]:
    return {axis: int(size) for axis, size in _AXIS.findall(shape)}


def _backend(name: str, shape: str) -> str:
    """Return a backend string; degrees of 1 say nothing, but for `d`, which is always said."""
    sizes = {"d": 1, **_sizes(shape)}
    return f"{name}:" + "".join(f"{axis}{size}" for axis, size in sizes.items() if axis == "d" or size > 1)
