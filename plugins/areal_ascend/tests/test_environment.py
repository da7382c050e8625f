"""The examination of a machine: what is wrong, why, and what to do; needs no NPU and no torch_npu."""

from __future__ import annotations

from pathlib import Path

import pytest

from areal_ascend import environment
from areal_ascend.environment import Installed
from areal_core.contract.errors import EngineMissing, ResourceError
from areal_core.plugins.findings import Finding, Severity

GOOD = Installed(torch="2.13.0+cpu", torch_npu="2.13.0", pin="torch==2.13.0.*")
NOTHING = Installed(torch="2.13.0+cpu")


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """Make the root of a machine with two NPUs, a driver and CANN."""
    for name in ("davinci0", "davinci1", "davinci_manager", "devmm_svm", "hisi_hdc"):
        (tmp_path / "dev" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "dev" / name).touch()
    driver = tmp_path / "usr/local/Ascend/driver/version.info"
    driver.parent.mkdir(parents=True)
    driver.write_text("Version=26.0.1\npackage_version=26\n")
    home = tmp_path / "usr/local/Ascend/cann"
    (home / "opp").mkdir(parents=True)
    (home / "lib64").mkdir()
    for name in ("libascendcl.so", "libhccl.so"):
        (home / "lib64" / name).touch()
    (home / "x86_64-linux").mkdir()
    (home / "x86_64-linux/ascend_toolkit_install.info").write_text("package_name=Ascend-cann-toolkit\nversion=9.1.0\n")
    return tmp_path


def sourced(machine: Path, **changes: str) -> dict[str, str]:
    """Return the environment that CANN's script makes."""
    home = machine / "usr/local/Ascend/cann"
    return {
        "ASCEND_HOME_PATH": str(home),
        "ASCEND_OPP_PATH": str(home / "opp"),
        "LD_LIBRARY_PATH": f"/nowhere:{home / 'lib64'}",
        **changes,
    }


def by_code(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.code: finding for finding in findings}


def test_a_good_machine_is_described(machine: Path) -> None:
    """Versions of driver, CANN and torch_npu; nothing to do."""
    found = by_code(environment.examine(sourced(machine, ASCEND_RT_VISIBLE_DEVICES="1"), GOOD, machine))

    assert {Severity.OK} == {finding.level for finding in found.values()}
    assert found["ascend.driver"].what == "26.0.1"
    assert found["ascend.cann"].what.startswith("9.1.0, in ")
    assert found["ascend.versions"].what == "torch_npu 2.13.0, torch 2.13.0+cpu"
    assert found["ascend.visible"].what == "1 of 2 NPUs"


def test_a_machine_without_npus_has_nothing_to_say(tmp_path: Path) -> None:
    """The plugin may be installed anywhere; the engine is another matter."""
    assert environment.examine({}, NOTHING, tmp_path) == []
    with pytest.raises(EngineMissing, match="torch_npu"):
        environment.require({}, NOTHING, tmp_path)


@pytest.mark.parametrize(
    ("changes", "installed", "code", "what", "fix"),
    [
        ({"ASCEND_HOME_PATH": ""}, GOOD, "ascend.cann", "nor will torch", "set_env.sh"),
        ({"ASCEND_HOME_PATH": "/gone"}, GOOD, "ascend.cann", "there is no /gone", "set_env.sh"),
        ({"ASCEND_OPP_PATH": ""}, GOOD, "ascend.cann", "its environment is not set", "pip uninstall torch-npu"),
        ({"ASCEND_RT_VISIBLE_DEVICES": "0,7"}, GOOD, "ascend.visible", "it names NPU 7; there are 0, 1", "unset"),
        ({"ASCEND_RT_VISIBLE_DEVICES": ""}, GOOD, "ascend.visible", "it hides every NPU", "unset"),
        (
            {},
            Installed(torch="2.14.0", torch_npu="2.13.0", pin="torch==2.13.0.*"),
            "ascend.versions",
            "it was built for torch==2.13.0.*",
            "pip install 'torch==2.13.0.*'",
        ),
    ],
)
def test_what_is_wrong_is_an_error_that_stops_the_engine(
    changes: dict[str, str], installed: Installed, code: str, what: str, fix: str, machine: Path
) -> None:
    """One finding for doctor, one refusal for the engine, in the same words."""
    environ = sourced(machine, **changes)

    finding = by_code(environment.examine(environ, installed, machine))[code]
    with pytest.raises(ResourceError) as raised:
        environment.require(environ, installed, machine)

    assert finding.level == Severity.ERROR
    assert what in finding.what and fix in finding.fix
    assert what in raised.value.why and "areal doctor" in raised.value.fix


def test_stand_ins_are_never_taken_for_an_npu() -> None:
    """Where they answer, doctor says so and lets them be used; an NPU machine has no such finding."""
    installed = Installed(torch="2.13.0+cpu", torch_npu="2.13.0", pin="torch==2.13.0.*", stand_ins="CANN over gloo.")

    found = by_code(environment.check_real(installed))

    assert found["ascend.stand_ins"].level is Severity.WARNING
    assert found["ascend.stand_ins"].what == "there is none in this process. CANN over gloo."
    assert environment.check_real(GOOD) == []


def test_what_is_odd_is_a_warning(machine: Path) -> None:
    """Containers see the NPUs and often neither driver nor libraries; the engine is let try."""
    (machine / "usr/local/Ascend/driver/version.info").unlink()
    (machine / "dev/hisi_hdc").unlink()
    environ = sourced(machine, LD_LIBRARY_PATH="")

    found = by_code(environment.examine(environ, GOOD, machine))
    environment.require(environ, GOOD, machine)

    warned = {code for code, finding in found.items() if finding.level is Severity.WARNING}
    assert {"ascend.driver", "ascend.files", "ascend.libraries"} == warned
    assert "--device /dev/hisi_hdc" in found["ascend.files"].fix
