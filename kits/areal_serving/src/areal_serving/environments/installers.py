"""The commands that make an environment and install into it: uv where it is here, else pip.

uv does not read pip's configuration, so what a site told pip about its indexes is handed on.

Knows: the command lines of both tools.
Does not know: what is installed, or how a command is run (`build`).
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from attrs import Factory, frozen

from areal_serving.environments import places

_FLAGS: Mapping[str, str] = MappingProxyType(
    {"index-url": "--index-url", "find-links": "--find-links", "trusted-host": "--allow-insecure-host"}
)
"""pip's option -> uv's."""
_SECTIONS = ("global.", "install.", ":env:.")
"""Where pip reads an option, the last one wins."""


@frozen(kw_only=True)
class Installer:
    """One way to make environments.

    `pip` begins a command that installs into the environment in `folder`; requirements follow. `more` are words for
    packages that the index may not have: further indexes of this site.
    """

    name: str
    make: Callable[[Path, str], list[str]]
    """(folder, interpreter) -> the command that makes an empty environment."""
    pip: Callable[[Path], list[str]]
    more: tuple[str, ...] = ()
    environ: Mapping[str, str] = Factory(dict)


def choose_installer(config: Mapping[str, str] | None = None) -> Installer:
    """Return uv if it is on the PATH or beside this interpreter, else pip.

    Args:
        config: pip's configuration as `pip_config` gives it; asked for if None.
    """
    uv = find_uv()
    if uv is None:
        return pip_installer()
    return uv_installer(uv, pip_config() if config is None else config)


def find_uv() -> str | None:
    """Return the path of uv, None if it is not here."""
    return shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))


def pip_installer() -> Installer:
    """Return the standard library's venv with the pip it brings; pip reads its own configuration."""
    return Installer(
        name="pip",
        make=lambda folder, python: [python, "-m", "venv", str(folder)],
        pip=lambda folder: [str(places.interpreter(folder)), "-m", "pip", "install", "--progress-bar", "off"],
        environ={"PYTHONUNBUFFERED": "1", "PIP_NO_INPUT": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
    )


def uv_installer(uv: str, config: Mapping[str, str]) -> Installer:
    """Return uv, told what pip was told."""
    flags = uv_flags(config)
    extra = config.get("extra-index-url", "").split()
    return Installer(
        name="uv",
        make=lambda folder, python: [uv, "venv", "--no-project", "--python", python, str(folder)],
        pip=lambda folder: [uv, "pip", "install", "--no-sources", "--python", str(places.interpreter(folder)), *flags],
        more=tuple(word for url in extra for word in ("--extra-index-url", url)),
        environ=uv_environ(config),
    )


def uv_flags(config: Mapping[str, str]) -> list[str]:
    """Return uv's flags for pip's configuration but for further indexes; the first one that has a package wins."""
    flags = ["--no-index"] if config.get("no-index", "").lower() in ("1", "true", "yes", "on") else []
    for option, flag in _FLAGS.items():
        for value in config.get(option, "").split():
            flags += [flag, value]
    return [*flags, "--index-strategy", "first-index"]


def uv_environ(config: Mapping[str, str]) -> dict[str, str]:
    """Return what uv needs in its environment beside the flags: the certificates pip trusts."""
    return {"SSL_CERT_FILE": config["cert"]} if config.get("cert") and "SSL_CERT_FILE" not in os.environ else {}


def pip_config() -> dict[str, str]:
    """Ask pip for its configuration, option -> value; empty where this interpreter has no pip."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    return parse_pip_config(done.stdout.splitlines()) if done.returncode == 0 else {}


def parse_pip_config(lines: Sequence[str]) -> dict[str, str]:
    """Read the output of `pip config list`: `global.find-links='/a /b'`, the environment's last."""
    found: dict[str, str] = {}
    for section in _SECTIONS:
        for line in lines:
            key, _, value = line.partition("=")
            if key.startswith(section):
                found[key.removeprefix(section)] = str(ast.literal_eval(value))
    return found
