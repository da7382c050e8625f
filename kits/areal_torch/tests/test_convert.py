"""Checkpoints into other formats and back: equal to the bit, readable by torch itself, taken up where they stopped."""

from __future__ import annotations

import pickle
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file
from torch import Tensor

from areal_core.cli.main import main
from areal_core.contract.errors import CheckpointError, RunFolderError, StorageError
from areal_torch.conversion import grouping
from areal_torch.conversion.convert import JOURNAL, Converted, convert
from areal_torch.conversion.dcp import DCPFolder, read_index
from areal_torch.conversion.format import Format, Writer
from areal_torch.conversion.formats import detected, formats
from areal_torch.conversion.hf import HFFolder
from areal_torch.testing.models import make_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tied weights and biases."""
    return make_tiny_model(tmp_path_factory.mktemp("convert") / "model", kind="qwen2")


@pytest.fixture
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of 100 kB, so that a tiny model has several."""
    monkeypatch.setattr(grouping, "FILE_BYTES", 100_000)


def run(source: Path, target: Path, form: Format, **options: Any) -> Converted:
    return convert(source, detected(source, formats()).open(source), target, form, **options)


def weights(folder: Path) -> dict[str, Tensor]:
    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}


def same(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.usefixtures("small_files")
def test_there_and_back_is_the_same_folder(model: Path, tmp_path: Path) -> None:
    """Weights are equal to the bit, and transformers finds all it needs beside them."""
    run(model, tmp_path / "dcp", DCPFolder())
    done = run(tmp_path / "dcp", tmp_path / "hf", HFFolder())

    assert same(weights(model), weights(tmp_path / "hf"))
    assert done.num_tensors == len(weights(model))
    assert len(list((tmp_path / "hf").glob("*.safetensors"))) > 1
    from transformers import AutoModelForCausalLM, AutoTokenizer

    _, info = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert AutoTokenizer.from_pretrained(tmp_path / "hf")
    assert sorted(f.name for f in tmp_path.iterdir()) == ["dcp", "hf"]
    assert not (tmp_path / "hf" / JOURNAL).exists()


@pytest.mark.usefixtures("small_files")
def test_torch_reads_what_is_written(model: Path, tmp_path: Path) -> None:
    """torch.distributed.checkpoint loads our files as its own."""
    run(model, tmp_path / "dcp", DCPFolder(prefix="model."))
    expected = {f"model.{name}": tensor for name, tensor in weights(model).items()}
    held = {name: torch.zeros_like(tensor) for name, tensor in expected.items()}

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.load(held, checkpoint_id=tmp_path / "dcp", no_dist=True)

    assert same(held, expected)


def test_what_torch_writes_is_read(model: Path, tmp_path: Path) -> None:
    """Other entries, of an optimizer or a step count, are left out; config.json comes from `--like`."""
    named = {f"model.{name}": tensor for name, tensor in weights(model).items()}
    torch_saves({**named, "optim": {"step": torch.tensor(3)}, "steps": 7}, tmp_path / "dcp")

    code = main(
        [
            "convert",
            str(tmp_path / "dcp"),
            str(tmp_path / "hf"),
            "--to",
            "hf",
            "--prefix",
            "model.",
            "--like",
            str(model),
        ]
    )

    assert code == 0
    assert same(weights(tmp_path / "hf"), weights(model))


def test_weights_may_be_cast(model: Path, tmp_path: Path) -> None:
    """The new folder says what dtype it is of."""
    run(model, tmp_path / "half", HFFolder(), dtype="bfloat16")

    assert same(weights(tmp_path / "half"), {name: t.bfloat16() for name, t in weights(model).items()})
    assert '"dtype": "bfloat16"' in (tmp_path / "half" / "config.json").read_text()


def torch_saves(state: Mapping[str, Any], folder: Path) -> None:
    """Save as one process does; torch warns that it is one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(dict(state), checkpoint_id=folder, no_dist=True)


class Stopping(Exception):
    """What ends a conversion midway."""


class StopsAt:
    """A format whose writer ends after some files."""

    name = "dcp"

    def __init__(self, files: int) -> None:
        self.files, self.inner, self.written = files, DCPFolder(), list[int]()

    def __repr__(self) -> str:
        return repr(self.inner)

    def detect(self, folder: Path) -> bool:
        return self.inner.detect(folder)

    def open(self, folder: Path) -> Any:
        return self.inner.open(folder)

    def create(self, folder: Path, tensors: Any, companions: Path) -> Writer:
        writer, outer = self.inner.create(folder, tensors, companions), self

        class Ends:
            files = writer.files
            finish = writer.finish

            def write(self, number: int, tensors: Mapping[str, Tensor]) -> None:
                if len(outer.written) == outer.files:
                    raise Stopping
                outer.written.append(number)
                writer.write(number, tensors)

        return Ends()


@pytest.mark.usefixtures("small_files")
def test_it_goes_on_where_it_stopped(model: Path, tmp_path: Path) -> None:
    """Files that are whole are not written again; until all are there the target does not exist."""
    first, second = StopsAt(2), StopsAt(99)
    with pytest.raises(Stopping):
        run(model, tmp_path / "dcp", first)
    assert not (tmp_path / "dcp").exists()

    done = run(model, tmp_path / "dcp", second)

    assert done.resumed == 2
    assert set(first.written).isdisjoint(second.written)
    run(tmp_path / "dcp", tmp_path / "hf", HFFolder())
    assert same(weights(tmp_path / "hf"), weights(model))


@pytest.mark.usefixtures("small_files")
def test_what_is_left_of_another_conversion_is_not_taken_up(model: Path, tmp_path: Path) -> None:
    """Other weights, or another dtype, begin anew."""
    with pytest.raises(Stopping):
        run(model, tmp_path / "dcp", StopsAt(2))

    assert run(model, tmp_path / "dcp", StopsAt(99), dtype="bfloat16").resumed == 0


@pytest.mark.usefixtures("small_files")
def test_weights_that_changed_meanwhile_are_converted_anew(model: Path, tmp_path: Path) -> None:
    """Others of the same sizes, under the same names: half of each would be no model."""
    source = shutil.copytree(model, tmp_path / "source")
    with pytest.raises(Stopping):
        run(source, tmp_path / "dcp", StopsAt(2))
    for file in source.glob("*.safetensors"):
        size = file.stat().st_size
        save_file({name: -tensor for name, tensor in load_file(file).items()}, file, metadata={"format": "pt"})
        assert file.stat().st_size == size

    assert run(source, tmp_path / "dcp", StopsAt(99)).resumed == 0
    run(tmp_path / "dcp", tmp_path / "hf", HFFolder())
    assert same(weights(tmp_path / "hf"), weights(source))


@pytest.mark.usefixtures("small_files")
def test_a_file_spoiled_before_the_end_is_found(model: Path, tmp_path: Path) -> None:
    """Every tensor is read back: one flipped bit in what an earlier attempt wrote is an error that names a tensor."""
    with pytest.raises(Stopping):
        run(model, tmp_path / "dcp", StopsAt(2))
    file = tmp_path / "dcp.partial" / "__0_0.distcp"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 4
    file.write_bytes(content)

    with pytest.raises(CheckpointError, match=r"was changed during conversion|cannot be read"):
        run(model, tmp_path / "dcp", StopsAt(99))
    assert not (tmp_path / "dcp").exists()


class Evil:
    """Runs a command when it is unpickled."""

    def __reduce__(self) -> Any:
        return (exec, ("raise SystemExit('ran')",))


def test_no_code_of_a_checkpoint_is_run(tmp_path: Path) -> None:
    """An index that asks for anything but an index's own classes is refused before it is built."""
    (tmp_path / ".metadata").write_bytes(pickle.dumps(Evil()))

    with pytest.raises(CheckpointError, match="not part of an index"):
        read_index(tmp_path / ".metadata")


def test_no_code_of_a_module_that_an_index_has_classes_of_is_run(tmp_path: Path) -> None:
    """What such a module imports can be named by its way there."""
    named = b"\x80\x04ctorch.distributed.checkpoint.filesystem\nos.getcwd\n)R."
    assert pickle.loads(named) == str(Path.cwd())
    (tmp_path / ".metadata").write_bytes(named)

    with pytest.raises(CheckpointError, match="not part of an index"):
        read_index(tmp_path / ".metadata")


def test_an_index_that_points_outside_is_refused(model: Path, tmp_path: Path) -> None:
    """A piece may lie in the checkpoint's own folder only."""
    run(model, tmp_path / "dcp", DCPFolder())
    index = read_index(tmp_path / "dcp" / ".metadata")
    for place in index.storage_data.values():
        place.relative_path = "../elsewhere"
    (tmp_path / "dcp" / ".metadata").write_bytes(pickle.dumps(index))

    with pytest.raises(CheckpointError, match="outside of the folder"):
        run(tmp_path / "dcp", tmp_path / "hf", HFFolder())


def test_bad_input_is_refused_before_anything_is_written(model: Path, tmp_path: Path, capsys: Any) -> None:
    """A target that exists, a folder of no format, a format nobody has, a source without config.json."""
    (tmp_path / "there").mkdir()
    with pytest.raises(RunFolderError, match="nothing is overwritten"):
        run(model, tmp_path / "there", DCPFolder())
    with pytest.raises(CheckpointError, match="is not a checkpoint areal can read"):
        run(tmp_path / "there", tmp_path / "new", DCPFolder())
    assert main(["convert", str(model), str(tmp_path / "new"), "--to", "zip"]) == 2
    assert "formats are dcp, hf" in capsys.readouterr().err
    torch_saves(weights(model), tmp_path / "bare")
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        run(tmp_path / "bare", tmp_path / "new", HFFolder())
    with pytest.raises(CheckpointError, match="set --prefix"):
        DCPFolder(prefix="actor.").open(tmp_path / "bare")
    assert not (tmp_path / "new").exists()


def test_a_missing_file_is_told_from_the_index(model: Path, tmp_path: Path, small_files: None) -> None:
    """Before anything is converted."""
    run(model, tmp_path / "hf", HFFolder())
    next((tmp_path / "hf").glob("*-00002-of-*")).unlink()

    with pytest.raises(CheckpointError, match="a file is missing"):
        run(tmp_path / "hf", tmp_path / "dcp", DCPFolder())


def test_a_place_that_cannot_be_written_is_named(model: Path) -> None:
    """StorageError, not a traceback of the operating system."""
    with pytest.raises(StorageError, match="/proc/nowhere"):
        run(model, Path("/proc/nowhere/model"), DCPFolder())
