"""A folder on the server's import path with exactly what its processes need of areal.

The engine's environment has neither areal nor this plugin, and the trainer's packages must not get into it.

Knows: which packages, and the entry point by which SGLang finds its plugins.
Does not know: when a server is started.
"""

from __future__ import annotations

from pathlib import Path

import areal_core
import areal_serving
import areal_torch

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
    for package in (areal_core.__file__, areal_torch.__file__, areal_serving.__file__, __file__):
        folder_of = Path(package).parent
        (site / folder_of.name).symlink_to(folder_of)
    return site
