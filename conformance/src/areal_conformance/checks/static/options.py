"""Every option of a plugin is looked at by something, or the adapter says why not.

Knows: the config class, and where an adapter names options.
Does not know: what an option means.
"""

from __future__ import annotations

import attrs

from areal_conformance.benches.static import StaticBench
from areal_conformance.check import Level, check
from areal_conformance.outcome import expect


@check("static.options.accounted", level=Level.STATIC, law=8, spec="index#optional-abilities")
def accounted(bench: StaticBench) -> None:
    """Where an adapter has variants, each option is in one, in other options, a threshold, or excused; each shows."""
    target, adapter = bench.target, bench.target.adapter
    config = target.registry.config_class(target.role, target.name)
    known = {one.name.lstrip("_") for one in attrs.fields(config)} if config and attrs.has(config) else set()
    looked_at = {name for options in adapter.options.values() for name in options}
    looked_at |= {name for one in adapter.variants.values() for name in one.options}
    looked_at |= {name for one in adapter.thresholds for name in one.options}
    open_ones = sorted(known - looked_at - set(adapter.without_effect))
    if not adapter.variants and not adapter.without_effect:
        bench.notes += [f"no variant looks at {', '.join(open_ones)}"] if open_ones else []
        return
    expect(
        not open_ones, f"the adapter's variants have no {', '.join(open_ones)}: name one, or say why in without_effect"
    )
    looked_at |= {name for option, others in adapter.folders.items() for name in (option, *others)}
    strange = sorted((set(adapter.without_effect) | looked_at) - known)
    expect(
        not strange, f"the adapter names {', '.join(strange)}, which are no options of it: {', '.join(sorted(known))}"
    )
    hidden = sorted(name for name, one in adapter.variants.items() if one.shows is None and not one.unseen.strip())
    told = "say with shows what their options do, or in unseen why nothing shows it"
    expect(not hidden, f"what the variants {', '.join(hidden)} do is looked at by nothing: {told}")
    silent = sorted(name for name, why in adapter.without_effect.items() if not why.strip())
    expect(not silent, f"without_effect says of {', '.join(silent)} no reason")
