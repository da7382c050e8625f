"""CANN's libraries over host memory, compiled from `cann.c`.

Knows: which libraries torch_npu is linked to, which of their functions it wants, how to compile them.
Does not know: torch. What `cann.c` lacks and torch_npu wants is written here: a function that refuses, by its name.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from areal_core.contract.errors import EngineMissing, ResourceError
from areal_core.plugins.install import pip_install

LIBRARIES = ("libhccl", "libacl_op_compiler", "libge_runner", "libgraph", "libacl_tdt_channel")
"""Beside libascendcl, which holds all functions; torch_npu looks some up in these, so they lead there."""
_OF_CANN = re.compile(r"^(acl[a-z]*[A-Z]|rt[A-Z]|hccl|Hccl|Msprof|ge[A-Z])\w*$")
_REFUSAL = 'int {name}(void) {{ fprintf(stderr, "CANN over host memory: {name} refused\\n"); return 500002; }}\n'


def build(folder: Path) -> tuple[str, ...]:
    """Compile the libraries into `folder`; return the functions torch_npu wants that only refuse.

    Raises:
        ResourceError: there is no C compiler, or it failed.
        EngineMissing: torch_npu is not installed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    source = Path(__file__).with_name("cann.c")
    whole = folder / "libascendcl.so"
    _compile([str(source)], whole)
    refused = tuple(sorted(wanted() - _symbols(whole, "--defined-only")))
    if refused:
        more = folder / "refused.c"
        more.write_text("#include <stdio.h>\n" + "".join(_REFUSAL.format(name=name) for name in refused))
        _compile([str(source), str(more)], whole)
    empty = folder / "empty.c"
    empty.write_text("int areal_nothing_here;\n")
    for name in LIBRARIES:
        linked = ["-Wl,--no-as-needed", f"-L{folder}", "-lascendcl", "-Wl,-rpath,$ORIGIN"]
        _compile([str(empty), *linked], folder / f"{name}.so")
    return refused


def wanted() -> set[str]:
    """Return the functions of CANN that the installed torch_npu is linked to."""
    spec = find_spec("torch_npu")
    if spec is None or spec.origin is None:
        raise EngineMissing("torch_npu is not installed", fix=pip_install("areal-ascend[engine]"))
    package = Path(spec.origin).parent
    files = [file for file in (*package.glob("_C*.so"), *package.glob("lib/*.so")) if "atb" not in file.name]
    return {name for file in files for name in _symbols(file, "--undefined-only") if _OF_CANN.match(name)}


def _symbols(library: Path, which: str) -> set[str]:
    lines = _run([_tool("nm"), "-D", which, str(library)]).splitlines()
    return {line.split()[-1].partition("@")[0] for line in lines if line}


def _compile(arguments: Sequence[str], result: Path) -> None:
    flags = ("-shared", "-fPIC", "-O1", "-w", f"-Wl,-soname,{result.name}")
    _run([_tool("gcc"), *flags, *arguments, "-o", str(result)])


def _tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise ResourceError(
            f"there is no {name}", why="CANN's stand-in is compiled", fix="apt-get install gcc binutils"
        )
    return found


def _run(command: Sequence[str]) -> str:
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if ended.returncode:
        raise ResourceError(f"{Path(command[0]).name} failed", why=ended.stderr.strip()[-2000:])
    return ended.stdout
