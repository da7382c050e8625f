"""Is this machine fit to run torch on an NPU? Looked up in files, variables and metadata, before torch is asked.

Knows: where the driver and CANN leave traces, and which versions torch_npu says it fits.
Does not know: torch; importing it is what fails when any of this is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from attrs import frozen
from packaging.requirements import Requirement

from areal_core.contract.errors import EngineMissing, ResourceError
from areal_core.plugins.findings import Finding, Severity
from areal_core.plugins.install import pip_install
from areal_devices.npu import npu

SOURCE = "source /usr/local/Ascend/ascend-toolkit/set_env.sh"
VISIBLE = "ASCEND_RT_VISIBLE_DEVICES"
_DRIVER = "usr/local/Ascend/driver/version.info"
_DEVICE_FILES = ("davinci_manager", "devmm_svm", "hisi_hdc")
"""Beside /dev/davinci0 and so on; a container must be given them too."""
_LIBRARIES = ("libascendcl.so", "libhccl.so")


@frozen(kw_only=True)
class Installed:
    """Versions found in this interpreter, "" where there is none; `pin` is what torch_npu asks of torch.

    Example: Installed(torch="2.13.0+cpu", torch_npu="2.13.0", pin="torch==2.13.0.*")
    """

    torch: str = ""
    torch_npu: str = ""
    pin: str = ""
    stand_ins: str = ""
    """What answers for the NPU where there is none (`areal_ascend.testing`)."""

    @classmethod
    def here(cls) -> Installed:
        """Read the metadata of this interpreter's packages."""
        asked = metadata.requires("torch-npu") or [] if _version("torch-npu") else []
        pins = [text for text in asked if Requirement(text).name == "torch"]
        return cls(
            torch=_version("torch"),
            torch_npu=_version("torch-npu"),
            pin=pins[0] if pins else "",
            stand_ins=npu().stand_in,
        )


def examine(environ: Mapping[str, str], installed: Installed, root: Path = Path("/")) -> list[Finding]:
    """Run every check; none on a machine that has neither an NPU nor torch_npu.

    Args:
        root: the root of the file system; another one in tests.
    """
    seen = [device.id for device in npu(root).see(environ)]
    findings: list[Finding] = []
    if seen:
        findings += [check_driver(root), *check_device_files(root), *check_visible(environ, seen)]
    if installed.torch_npu:
        findings += [check_versions(installed), check_toolkit(environ), *check_libraries(environ)]
    return [*findings, *check_real(installed)]


def require(environ: Mapping[str, str], installed: Installed, root: Path = Path("/")) -> None:
    """Refuse an interpreter without torch_npu, and a machine on which an examination finds an error.

    Raises:
        EngineMissing: there is no torch_npu.
        ResourceError: tells all errors.
    """
    if not installed.torch_npu:
        raise EngineMissing("torch_npu is not installed", fix=pip_install("areal-ascend[engine]"))
    errors = [finding for finding in examine(environ, installed, root) if finding.level is Severity.ERROR]
    if errors:
        raise ResourceError(
            "this process cannot use an NPU",
            why="; ".join(f"{finding.subject}: {finding.what}" for finding in errors),
            fix="; ".join(dict.fromkeys(finding.fix for finding in errors)) + "; see `areal doctor`",
        )


def check_driver(root: Path) -> Finding:
    """Read the driver's version. Containers often see the devices without it."""
    version = _value(root / _DRIVER, "version")
    if version:
        return Finding(code="ascend.driver", level=Severity.OK, subject="NPU driver", what=version)
    return Finding(
        code="ascend.driver",
        level=Severity.WARNING,
        subject="NPU driver",
        what=f"there are NPUs and no /{_DRIVER}",
        fix="install the driver; in a container: docker run -v /usr/local/Ascend/driver:/usr/local/Ascend/driver",
    )


def check_device_files(root: Path) -> list[Finding]:
    """Look for the device files that belong to all NPUs together."""
    missing = [name for name in _DEVICE_FILES if not (root / "dev" / name).exists()]
    if not missing:
        return []
    return [
        Finding(
            code="ascend.files",
            level=Severity.WARNING,
            subject="NPU device files",
            what="there is no " + ", ".join(f"/dev/{name}" for name in missing),
            fix="docker run " + " ".join(f"--device /dev/{name}" for name in missing),
        )
    ]


def check_visible(environ: Mapping[str, str], seen: list[str]) -> list[Finding]:
    """Compare the NPUs that this process may use with those there are."""
    named = environ.get(VISIBLE)
    if named is None:
        return []
    ids = [part.strip() for part in named.split(",") if part.strip()]
    odd = [name for name in ids if name not in seen]
    if ids and not odd:
        what = f"{len(ids)} of {len(seen)} NPUs"
        return [Finding(code="ascend.visible", level=Severity.OK, subject=VISIBLE, what=what)]
    return [
        Finding(
            code="ascend.visible",
            level=Severity.ERROR,
            subject=VISIBLE,
            what=f"it names NPU {', '.join(odd)}; there are {', '.join(seen)}" if odd else "it hides every NPU",
            fix=f"unset {VISIBLE}, or name NPUs that are there",
        )
    ]


def check_versions(installed: Installed) -> Finding:
    """Compare torch with what torch_npu was built for: another one crashes in ways of its own."""
    what = f"torch_npu {installed.torch_npu}, torch {installed.torch or 'none'}"
    fits = not installed.pin or (
        bool(installed.torch) and Requirement(installed.pin).specifier.contains(installed.torch, prereleases=True)
    )
    if fits:
        return Finding(code="ascend.versions", level=Severity.OK, subject="torch_npu", what=what)
    return Finding(
        code="ascend.versions",
        level=Severity.ERROR,
        subject="torch_npu",
        what=f"{what}; it was built for {installed.pin}",
        fix=f"pip install '{installed.pin}', or the torch-npu of this torch",
    )


def check_toolkit(environ: Mapping[str, str]) -> Finding:
    """Look for CANN where its own script says it is; without that script not even torch can be imported."""
    home, operators = environ.get("ASCEND_HOME_PATH", ""), environ.get("ASCEND_OPP_PATH", "")
    if home and Path(home).is_dir() and operators and Path(operators).is_dir():
        what = f"{toolkit_version(Path(home)) or 'of unknown version'}, in {home}"
        return Finding(code="ascend.cann", level=Severity.OK, subject="CANN", what=what)
    absent = next((path for path in (home, operators) if path and not Path(path).is_dir()), "")
    return Finding(
        code="ascend.cann",
        level=Severity.ERROR,
        subject="CANN",
        what=(f"there is no {absent}" if absent else "its environment is not set")
        + "; torch_npu will not load, nor will torch and transformers, which try to",
        fix=f"{SOURCE}; where there is no NPU: pip uninstall torch-npu",
    )


def check_real(installed: Installed) -> list[Finding]:
    """Say that it is not an NPU which torch_npu finds, where that is so."""
    if not installed.stand_ins:
        return []
    return [
        Finding(
            code="ascend.stand_ins",
            level=Severity.WARNING,
            subject="NPU",
            what=f"there is none in this process. {installed.stand_ins}",
            fix="leave out `python -m areal_ascend.testing` where there are NPUs",
        )
    ]


def check_libraries(environ: Mapping[str, str]) -> list[Finding]:
    """Look for the libraries that torch_npu is linked to on the loader's path."""
    folders = [Path(part) for part in environ.get("LD_LIBRARY_PATH", "").split(":") if part]
    missing = [name for name in _LIBRARIES if not any((folder / name).exists() for folder in folders)]
    if not missing:
        return []
    return [
        Finding(
            code="ascend.libraries",
            level=Severity.WARNING,
            subject="CANN libraries",
            what=f"no {', '.join(missing)} in LD_LIBRARY_PATH",
            fix=SOURCE,
        )
    ]


def toolkit_version(home: Path) -> str:
    """Return the version CANN was installed with, "" if it left none."""
    for pattern in ("ascend_*_install.info", "*-linux/ascend_*_install.info"):
        for file in sorted(home.glob(pattern)):
            version = _value(file, "version")
            if version:
                return version
    return ""


def _value(file: Path, name: str) -> str:
    """Return what a file says after `name=`, in whichever case."""
    try:
        text = file.read_text(errors="replace")
    except OSError:
        return ""
    match = re.search(rf"^{name}\s*=\s*(\S+)", text, re.MULTILINE | re.IGNORECASE)
    return match[1] if match else ""


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
