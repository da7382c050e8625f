"""`areal doctor` names what is wrong, says what to do, and is wrong about nothing itself."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent

import pytest
from tests.benches.command import Run

from areal_conformance.probes.distributions import manifest_source, write_distribution
from areal_core.contract.device import Device, SeenDevice
from areal_core.plugins.findings import Finding, Report, Severity
from areal_core.plugins.manifest import Manifest
from areal_core.plugins.probe import Probe
from areal_local.doctor import deep, host, packages
from areal_local.doctor.installed import check_rows
from areal_local.inventory import Row

GIB = 1 << 30


def plugin(site: Path, name: str, manifest: str, engine: str = "class Engine: ...") -> None:
    """Install a distribution with one train backend."""
    modules = {f"areal_{name}.manifest": manifest, f"areal_{name}.engine": engine}
    entry_points = {"areal.train": {name: f"areal_{name}.manifest:MANIFEST"}}
    write_distribution(site, f"areal-{name}", entry_points=entry_points, modules=modules)


def findings(areal: Run, *words: str, **environ: str) -> tuple[int, dict[str, Mapping[str, str]]]:
    """Return the exit code and the findings by subject."""
    done = areal("doctor", "--json", *words, **environ)
    assert done.stderr == ""
    data = json.loads(done.stdout)
    assert data["exit_code"] == done.returncode
    return done.returncode, {finding["subject"]: finding for finding in data["findings"]}


def test_a_broken_plugin_and_a_broken_hook_are_named(areal: Run, site: Path) -> None:
    """Both kinds of plugin are found by distribution, with the exception and its line."""
    plugin(site, "bad", "raise RuntimeError('boom')")
    write_distribution(
        site, "areal-loud", entry_points={"areal.hooks": {"loud": "loud_hooks"}}, modules={"loud_hooks": "1 / 0"}
    )

    code, found = findings(areal)

    assert code == 2
    bad, loud = found["train backend bad (areal-bad 1.0)"], found["hooks 'loud' of areal-loud 1.0"]
    assert (bad["level"], bad["code"]) == ("error", "AREAL-E103")
    assert "RuntimeError: boom" in bad["what"] and "manifest.py:1" in bad["what"]
    assert (loud["level"], loud["code"]) == ("error", "AREAL-E103")
    assert "ZeroDivisionError" in loud["what"]


def test_a_missing_engine_is_a_choice_until_the_backend_is_asked_for(areal: Run, site: Path) -> None:
    """Shells of engines one does not use may lie around, where another one runs; the one asked about must run."""
    plugin(site, "hollow", manifest_source("train", "hollow", requires=("absent-engine>=2",), extra="engine"))

    _, everything = findings(areal)
    code, asked = findings(areal, "--backend", "hollow")

    subject = "train backend hollow (areal-hollow 1.0)"
    assert (everything[subject]["level"], everything[subject]["code"]) == ("ok", "AREAL-E102")
    assert everything[subject]["what"].endswith("(optional)")
    assert everything[subject]["fix"] == "pip install 'areal-hollow[engine]'"
    assert (code, asked[subject]["level"]) == (2, "error")
    assert not [other for other in asked if other.startswith("train backend") and other != subject]


def test_a_machine_that_can_train_and_generate_is_fine(areal: Run) -> None:
    """Exit code 0, whatever else is installed without its engine: a laptop has no NPU."""
    levels = {subject: one["level"] for subject, one in findings(areal)[1].items() if " backend " in subject}

    assert set(levels.values()) == {"ok"}
    assert {"train backend ascend (areal-ascend 0.1.0)", "infer backend vllm (areal-vllm 0.1.0)"} <= set(levels)


def test_a_role_nobody_can_play_is_a_warning() -> None:
    """Without any engine for it, a missing one is no choice."""
    manifest = Manifest(role="train", name="hollow", contract=(1, 2), factory="a:b")
    hollow = Row(
        role="train", name="hollow", origin="x 1", manifest=manifest, probe=Probe(missing=("engine",), versions={})
    )
    fine = Row(role="train", name="fine", origin="y 1", manifest=manifest, probe=Probe(versions={}, devices=("cpu",)))

    (alone,) = check_rows([hollow], wanted=False)
    beside = check_rows([hollow, fine], wanted=False)[0]
    (asked,) = check_rows([hollow], wanted=True)

    assert (alone.level, beside.level, asked.level) == (Severity.WARNING, Severity.OK, Severity.ERROR)


def test_a_mismatch_and_a_clash_are_errors(areal: Run, site: Path) -> None:
    """Neither could ever be used."""
    plugin(site, "future", manifest_source("train", "future", contract=(9, 0)))
    for distribution in ("clash-one", "clash-two"):
        write_distribution(site, distribution, entry_points={"areal.train": {"clash": "a:b"}})

    code, found = findings(areal)

    assert code == 2
    assert found["train backend future (areal-future 1.0)"]["code"] == "AREAL-E104"
    (clash,) = [finding for subject, finding in found.items() if "train backend clash" in subject]
    assert clash["code"] == "AREAL-E105"
    assert "clash-one 1.0" in clash["what"] and "clash-two 1.0" in clash["what"]


def test_a_hook_adds_its_finding_and_sees_the_others(areal: Run, site: Path) -> None:
    """A site can add its own check, which also decides the exit code."""
    source = """
        from areal_core.plugins.findings import Finding, Severity
        from areal_core.plugins.hooks import hookimpl

        @hookimpl
        def areal_doctor_findings(report):
            what = f"after {len(report.findings)} findings"
            return [Finding(code="site.quota", level=Severity.ERROR, subject="quota", what=what, fix="ask")]
    """
    write_distribution(
        site, "our-site", entry_points={"areal.hooks": {"site": "our_site"}}, modules={"our_site": source}
    )

    code, found = findings(areal, "--backend", "disk", AREAL_PLUGINS="site,areal-local")

    assert code == 2
    assert found["quota"]["what"] == f"after {len(found) - 1} findings"


def test_the_machine_and_the_core_are_examined(areal: Run) -> None:
    """Every check of the issue has its line, in text as in JSON."""
    subjects = {"python", "processors", "memory", "disk", "shared memory", "ports", "devices", "areal-core", "torch"}

    _, found = findings(areal, "--backend", "disk")
    text = areal("doctor", "--backend", "disk").stdout

    assert subjects <= set(found)
    assert [subject for subject in subjects if f" {subject}: " not in text] == []


def test_a_visible_kind_of_device_is_described(areal: Run, site: Path) -> None:
    """Vendor, resource, IPC and attention kernel of every kind that is seen, and how many the environment leaves."""
    device = """
        from areal_core.contract.device import Device, SeenDevice
        from areal_core.plugins.manifest import Manifest

        MANIFEST = Manifest(role="device", name="paper", contract=(1, 0), factory=f"{__name__}:paper")

        def paper():
            sheets = [SeenDevice(id=str(number), name="sheet") for number in range(4)]
            return Device(name="paper", vendor="Mill", torch_type="cpu", see=lambda environ: sheets, ipc=True,
                          visible_variables=("PAPER_VISIBLE",), resource="SHEET", attention="mill.kernels:folded")
        """
    entry_points = {"areal.device": {"paper": "areal_paper:MANIFEST"}}
    write_distribution(site, "areal-paper", entry_points=entry_points, modules={"areal_paper": dedent(device)})

    _, found = findings(areal, "--backend", "disk", PAPER_VISIBLE="1,3")

    assert found["device paper"]["level"] == "ok"
    assert found["device paper"]["what"] == (
        "2 of 4 visible to this process, vendor Mill, scheduler resource SHEET, "
        "memory can be shared between processes (IPC), attention kernel mill.kernels:folded"
    )


def test_a_kind_of_device_that_declares_nothing_is_described_as_such() -> None:
    """The defaults of the contract: no resource, no IPC, torch's attention."""
    plain = Device(
        name="paper", vendor="Mill", torch_type="cpu", see=lambda environ: [SeenDevice(id="0", name="sheet")]
    )

    assert host.describe_kind(plain).what == (
        "1 of 1 visible to this process, vendor Mill, scheduler resource not named, "
        "no memory shared between processes (IPC), attention kernel of torch"
    )


def test_text_shows_the_code_and_the_fix(areal: Run, site: Path) -> None:
    """A person reads what is wrong, where to look it up, and what to type."""
    plugin(site, "hollow", manifest_source("train", "hollow", requires=("absent-engine>=2",), extra="engine"))

    done = areal("doctor", "--backend", "hollow")

    assert done.returncode == 2
    assert "error   train backend hollow (areal-hollow 1.0): missing: absent-engine>=2 [AREAL-E102]\n" in done.stdout
    assert "        fix: pip install 'areal-hollow[engine]'\n" in done.stdout


def test_an_unknown_backend_is_an_error_of_its_own(areal: Run) -> None:
    """Nothing is examined in the name of a plugin that is not there."""
    done = areal("doctor", "--backend", "fsdpp")

    assert (done.returncode, done.stdout) == (1, "")
    assert "did you mean 'fsdp'?" in done.stderr


def test_deep_survives_engines_that_kill_their_processes(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that raises, crashes or exits is an error of its own, and doctor goes on."""
    fatal = {
        "raises": ("raise RuntimeError('boom')", "RuntimeError: boom"),
        "crashes": ("import os; os.kill(os.getpid(), 11)", "killed by signal 11"),
        "exits": ("import os; os._exit(3)", "exit code 3"),
    }
    monkeypatch.setenv("PYTHONPATH", str(site), prepend=os.pathsep)
    rows = []
    for name, (engine, _) in fatal.items():
        plugin(site, name, manifest_source("train", name), engine)
        made = Manifest(role="train", name=name, contract=(1, 0), factory=f"areal_{name}.engine:Engine")
        probe = Probe(versions={}, devices=("cpu",))
        rows.append(Row(role="train", name=name, origin=f"areal-{name} 1.0", manifest=made, probe=probe))

    found = {finding.subject: finding for finding in deep.check_deep(rows, torch=False)}

    for name, (_, said) in fatal.items():
        one = found[f"train backend {name} (areal-{name} 1.0)"]
        assert (one.level, one.code) == (Severity.ERROR, "AREAL-E103")
        assert said in one.what


def test_deep_runs_torch_and_loads_a_good_engine(areal: Run, site: Path) -> None:
    """A small product, gloo in one process, and the factory: all said to work."""
    pytest.importorskip("torch")
    plugin(site, "fine", manifest_source("train", "fine"), "print('noise at import')\nclass Engine: ...\n")

    _, found = findings(areal, "--backend", "fine", "--deep")

    assert "product and gloo work" in found["torch"]["what"]
    assert (
        found["train backend fine (areal-fine 1.0)"]["level"],
        found["train backend fine (areal-fine 1.0)"]["what"],
    ) == ("ok", "loads")


def test_a_child_that_hangs_is_ended() -> None:
    """The time limit is the caller's, and the child does not outlive it."""
    assert deep.run_child(["-c", "import time; time.sleep(60)"], 0.2) == ("", "no end after 0.2 s")


@pytest.mark.parametrize(
    ("finding", "level"),
    [
        (host.check_python((3, 11, 0)), Severity.OK),
        (host.check_python((3, 10, 9)), Severity.ERROR),
        (host.check_memory(8 * GIB, None), Severity.OK),
        (host.check_memory(8 * GIB, GIB), Severity.WARNING),
        (host.judge_shared_memory(2 * GIB, GIB), Severity.OK),
        (host.judge_shared_memory(GIB // 16, GIB // 16), Severity.WARNING),
        (host.check_shared_memory(Path("/no/such/folder")), Severity.WARNING),
        (host.check_port("127.0.0.1"), Severity.OK),
        (host.check_port("192.0.2.1"), Severity.ERROR),
        (packages.check_torch("2.11.0"), Severity.OK),
        (packages.check_torch("2.13.0+cpu"), Severity.OK),
        (packages.check_torch("2.9.1"), Severity.WARNING),
        (packages.check_torch(None), Severity.WARNING),
        (packages.check_core("0.0.1"), Severity.WARNING),
    ],
)
def test_checks_judge_as_they_say(finding: Finding, level: Severity) -> None:
    """Each threshold is met on both of its sides, and what is not fine has a fix."""
    assert finding.level is level
    assert bool(finding.fix) is (level is not Severity.OK)


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run would fail at its first checkpoint; better said now."""
    monkeypatch.setattr("os.access", lambda *_: False)  # root may write anywhere, so the mode bits prove nothing

    assert host.check_disk(tmp_path).level is Severity.ERROR


def test_a_container_memory_limit_is_read(tmp_path: Path) -> None:
    """What is left of the container's own limit counts, not the machine's memory."""
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.current").write_text("100\n")
    (group / "memory.max").write_text("300\n")
    limited = host.memory_limit(tmp_path)
    (group / "memory.max").write_text("max\n")

    assert (limited, host.memory_limit(tmp_path), host.memory_limit(tmp_path / "elsewhere")) == (200, None, None)


@pytest.mark.parametrize(
    ("levels", "code"), [([], 0), (["ok"], 0), (["ok", "warning"], 1), (["warning", "error", "ok"], 2)]
)
def test_the_worst_finding_decides_the_exit_code(levels: list[str], code: int) -> None:
    """0 fine, 1 warnings, 2 broken."""
    findings = tuple(Finding(code="c", level=Severity(level), subject="s", what="w") for level in levels)

    assert Report(findings=findings).exit_code == code
