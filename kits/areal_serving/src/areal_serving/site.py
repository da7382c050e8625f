"""A folder on a server's import path with exactly what its processes need of areal, for engines that load hooks.

The engine's environment may lack areal and the plugin, and the trainer's packages must not get into it.

Knows: which of our packages code inside an engine may import: the contract, both kits.
Does not know: when a server is started, or what the hooks do.
"""

from __future__ import annotations

from pathlib import Path

import areal_core
import areal_serving
import areal_torch


def make_site(folder: Path, package: Path, entry_points: str) -> Path:
    """Make the folder `site` in `folder`, once, and return it.

    Example: make_site(launch.folder, Path(areal_sglang.__file__).parent, "[sglang.srt.plugins]\\nareal = ...\\n")

    Args:
        package: the plugin's package, which is linked beside ours.
        entry_points: by which the engine finds the hooks, as entry_points.txt has them.
    """
    site = folder / "site"
    if site.is_dir():
        return site
    info = site / f"{package.name}-0.dist-info"
    info.mkdir(parents=True)
    name = package.name.replace("_", "-")
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0\n")
    (info / "entry_points.txt").write_text(entry_points)
    ours = [Path(module.__path__[0]) for module in (areal_core, areal_torch, areal_serving)]
    for found in (*ours, package):
        (site / found.name).symlink_to(found)
    return site
