"""A container image of this machine's own shell and commands: nothing is fetched."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import tarfile
from pathlib import Path, PurePath

COMMANDS = [
    "sh",
    "cat",
    "env",
    "ls",
    "chmod",
    "rm",
    "mkdir",
    "mkfifo",
    "ln",
    "head",
    "dirname",
    "readlink",
    "tr",
    "sleep",
    "id",
    "grep",
    "touch",
]


def image() -> bytes:
    """Return its root folder as an archive."""
    files = {f"/bin/{name}": Path(shutil.which(name) or name).resolve() for name in COMMANDS}
    for program in list(files.values()):
        told = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
        files |= {path: Path(path).resolve() for path in re.findall(r"(/\S+) \(0x", told)}
    folders = {"/tmp", "/etc", "/proc", "/sys", "/dev"} | {str(top) for path in files for top in PurePath(path).parents}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", dereference=True) as archive:
        for folder in sorted(folders):
            made = tarfile.TarInfo(f".{folder}")
            made.type, made.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(made)
        for path, source in sorted(files.items()):
            archive.add(source, f".{path}")
    return packed.getvalue()
