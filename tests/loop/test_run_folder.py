"""The run folder: one owner, complete checkpoints, nothing lost."""

from __future__ import annotations

import errno
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from areal_core.contract.errors import RunFolderError, StorageError
from areal_core.loop.run_folder import RunFolder
from areal_core.observe.jsonl import JsonLines


def _checkpoint(folder: RunFolder, step: int, keep: int = 2) -> None:
    with folder.new_checkpoint(step, keep) as path:
        (path / "loop.json").write_text("{}")


def test_two_runs_cannot_share_a_folder(tmp_path: Path) -> None:
    """The second process is told that another live run owns it."""
    folder = RunFolder(tmp_path / "run")
    code = (
        "import sys; from pathlib import Path; from areal_core.loop.run_folder import RunFolder\n"
        "with RunFolder(Path(sys.argv[1])).held(resume=False): pass"
    )
    command = [sys.executable, "-c", code, str(folder.root)]

    with folder.held(resume=False):
        second = subprocess.run(command, capture_output=True, text=True, check=False)

    assert second.returncode != 0
    assert "is in use" in second.stderr


def test_the_lock_ends_with_the_run(tmp_path: Path) -> None:
    """A finished run's folder can be taken again, to resume."""
    folder = RunFolder(tmp_path)
    with folder.held(resume=False):
        _checkpoint(folder, 1)

    with RunFolder(tmp_path).held(resume=True):
        assert folder.latest() is not None


def test_a_folder_with_a_run_is_not_mixed_with_another(tmp_path: Path) -> None:
    """The error says how to continue it if it can be, and the folder is free again."""
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    folder = RunFolder(tmp_path)

    with (
        pytest.raises(RunFolderError, match=r"already holds a run(.|\n)*out=DIR") as without,
        folder.held(resume=False),
    ):
        pass
    _checkpoint(folder, 1)
    with pytest.raises(RunFolderError) as resumable, folder.held(resume=False):
        pass

    assert "--resume" not in without.value.fix, "whatever made these steps, it began elsewhere"
    assert f"areal train --resume {tmp_path}" in resumable.value.fix
    with RunFolder(tmp_path).held(resume=False, archive=True):
        assert not folder.metrics.exists()


def test_a_run_that_failed_before_its_first_step_does_not_stand_in_the_way(tmp_path: Path) -> None:
    """Whoever corrected a typo starts again in the same folder; the failed try is moved aside with its logs."""
    root = tmp_path / "run"
    with RunFolder(root).held(resume=False):
        (root / "metrics.jsonl").touch()
        (root / "events.jsonl").write_text("{}\n")

    with RunFolder(root).held(resume=False):
        pass

    assert not (root / "events.jsonl").exists()
    assert (tmp_path / "run.1" / "events.jsonl").exists()


def test_archiving_moves_every_file_of_the_earlier_run(tmp_path: Path) -> None:
    """Nothing is deleted; the second archive gets the next number."""
    root = tmp_path / "run"
    for text in ("first", "second"):
        folder = RunFolder(root)
        with folder.held(resume=False, archive=True):
            folder.metrics.write_text(text)
    with RunFolder(root).held(resume=False, archive=True):
        pass

    archived = [(tmp_path / f"run.{number}" / "metrics.jsonl").read_text() for number in (1, 2)]
    assert archived == ["first", "second"]
    assert not folder.metrics.exists()


def test_an_archived_run_is_readable_by_those_who_could_read_it_before(tmp_path: Path) -> None:
    """A run folder belongs to its user alone, and so do its journals, also when they were moved aside."""
    folder = RunFolder(tmp_path / "run")
    with folder.held(resume=False):
        JsonLines(folder.metrics).write({"step": 1})
    with folder.held(resume=False, archive=True):
        pass

    aside = tmp_path / "run.1"
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (folder.root, aside, aside / "metrics.jsonl")]
    assert modes == [0o700, 0o700, 0o600]


def test_nothing_to_resume_is_said(tmp_path: Path) -> None:
    """A folder that no run was started in cannot be resumed, nor one with steps that began somewhere unknown."""
    folder = RunFolder(tmp_path)
    (tmp_path / "checkpoints" / "step-000004.partial").mkdir(parents=True)
    folder.config.write_text("name: mine")

    with pytest.raises(RunFolderError, match="nothing to resume"), folder.held(resume=True):
        pass
    folder.events.touch()
    folder.metrics.write_text("{}\n")
    with pytest.raises(RunFolderError, match="nothing to resume"), folder.held(resume=True):
        pass

    assert folder.config.read_text() == "name: mine"


@pytest.mark.parametrize("begun", [False, True])
def test_a_run_without_a_checkpoint_is_resumed_where_it_is(tmp_path: Path, begun: bool) -> None:
    """Nothing of it is moved aside; whoever asks is told the command once there are episodes to go on with."""
    folder = RunFolder(tmp_path)
    folder.events.write_text('{"kind": "run_started"}\n')
    if begun:
        folder.beginning.write_text("{}")
        folder.metrics.write_text('{"step": 1}\n')
        with pytest.raises(RunFolderError) as refused, folder.held(resume=False):
            pass
        assert f"continue it with: areal train --resume {tmp_path}" in refused.value.fix

    with folder.held(resume=True):
        assert folder.latest() is None and folder.events.stat().st_size

    wanted = f"no checkpoint yet, the run goes on from its beginning. To continue: areal train --resume {tmp_path}"
    assert folder.how_to_go_on() == (wanted if begun else "")


def test_a_checkpoint_appears_all_at_once(tmp_path: Path) -> None:
    """While it is written there is none; then it is the latest."""
    folder = RunFolder(tmp_path)
    with folder.new_checkpoint(5, keep=2) as path:
        (path / "loop.json").write_text("{}")
        assert folder.latest() is None

    assert folder.latest() == tmp_path / "checkpoints" / "step-000005"


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), RuntimeError("worker died")])
def test_a_failed_checkpoint_leaves_the_previous_one_and_no_rest(tmp_path: Path, error: Exception) -> None:
    """A full disk becomes StorageError; any other error stays itself."""
    folder = RunFolder(tmp_path)
    _checkpoint(folder, 5)

    with pytest.raises(StorageError if isinstance(error, OSError) else RuntimeError), folder.new_checkpoint(6, keep=1):
        raise error

    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-000005"]


def test_old_checkpoints_go_only_when_the_new_one_is_complete(tmp_path: Path) -> None:
    """`keep` counts complete ones, newest kept, in numeric order."""
    folder = RunFolder(tmp_path)
    for step in (9, 10, 999_999, 1_000_000):
        _checkpoint(folder, step)

    assert [path.name for path in folder.checkpoints()] == ["step-999999", "step-1000000"]
    assert folder.latest() == folder.checkpoints()[-1]


def test_an_unwritable_place_is_named(tmp_path: Path) -> None:
    """A file where the folder should be."""
    (tmp_path / "file").write_text("")

    with pytest.raises(StorageError, match="file"), RunFolder(tmp_path / "file" / "run").held(resume=False):
        pass
