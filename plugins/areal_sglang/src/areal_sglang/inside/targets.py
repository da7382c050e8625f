"""Which methods of SGLang this process registered hooks for, and which of them carry none.

Knows: names of methods.
Does not know: the hooks.
"""

from __future__ import annotations

from sglang.srt.plugins.hook_registry import HookRegistry

registered: set[str] = set()  # filled by `hooks.register`, once per process


def missing() -> list[str]:
    """Return the targets that carry no hook: SGLang logs a hook that fails and starts without it."""
    return sorted(registered - HookRegistry._patched)
