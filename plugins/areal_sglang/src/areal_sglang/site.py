"""A folder on the server's import path with exactly what its processes need of areal.

The engine's environment has neither areal nor this plugin, and the trainer's packages must not get into it.

Knows: which two packages, and the entry point by which SGLang finds its plugins.
Does not know: when a server is started.
"""

from __future__ import annotations

from pathlib import Path

import areal_core

_METADATA = "Metadata-Version: 2.1\nName: areal-sglang\nVersion: 0.1.0\n"
_ENTRY_POINT = "[sglang.srt.plugins]\nareal = areal_sglang.inside.hooks:register\n"


def make_site(folder: Path) -> Path:
    """Make the folder `site` in `folder`, once, and return it."""
    site = folder / "site"
    if site.is_dir():
        return site
    info = site / "areal_sglang-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(_METADATA)
    (info / "entry_points.txt").write_text(_ENTRY_POINT)
    (site / "areal_core").symlink_to(Path(areal_core.__file__).parent)
    (site / "areal_sglang").symlink_to(Path(__file__).parent)
    return site
