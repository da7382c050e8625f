"""The environment `areal env create sglang --device cpu` makes; with the engine in it where marked."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from areal_core.plugins.registry import default_registry
from areal_serving.environment import find
from areal_serving.environments.inventory import recipe_for

VERSIONS = """
import json, sys
from importlib import metadata
print(json.dumps({name: metadata.version(name) for name in json.loads(sys.argv[1])}))
"""
PARTS = """
import json
import torchvision, sgl_kernel
from sglang.srt.managers import io_struct
from areal_core.weights.tensors import fingerprint
print(json.dumps([torchvision.__version__.partition("+")[0], sgl_kernel.__version__, fingerprint.__name__]))
"""
STAND_IN = Path("sgl_kernel/__init__.py")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_locks_pin_every_package_and_lack_what_is_left_out(device: str) -> None:
    """A lock is a list of exact versions, with the engine among them."""
    recipe = recipe_for(default_registry(), "sglang", device)
    lock = recipe.lock()
    names = {pin.partition("==")[0] for pin in lock.pins}

    assert [pin for pin in lock.pins if pin.count("==") != 1] == []
    assert all(re.fullmatch(r"[0-9a-f]{64}", value) for pin in lock.pins for value in lock.hashes.get(pin, ["none"]))
    assert {"sglang", "torch", "attrs", "safetensors", "xxhash"} <= names
    assert names.isdisjoint(recipe.leave_out)
    assert f"sglang=={lock.version('sglang')}" in recipe.requirements


def test_stand_ins_are_for_the_cpu_only() -> None:
    """On a GPU the real kernels are installed, and nothing is laid over them."""
    for_cpu, for_cuda = (recipe_for(default_registry(), "sglang", device) for device in ("cpu", "cuda"))

    assert set(for_cpu.laid_files()) == {str(STAND_IN), "torchvision/__init__.py.prepend"}
    assert for_cuda.laid_files() == {}
    assert for_cuda.lock().version("sglang-kernel") != ""


def test_a_kernel_that_is_missing_raises_when_it_is_called() -> None:
    """Importing its name is fine, so that the server starts; a wrong number is never computed."""
    done = _run_stand_in("from sgl_kernel import fused_thing\nfused_thing(1, alpha=2)")

    assert done.returncode == 1
    assert "RuntimeError: sgl_kernel.fused_thing has no CPU implementation" in done.stderr


def test_an_operator_of_another_model_is_named_and_raises_when_it_is_called() -> None:
    """The processor of Qwen's images looks it up when it is imported."""
    done = _run_stand_in("import torch, sgl_kernel\ntorch.ops.sgl_kernel.fused_sigmoid_mul_cpu(torch.ones(1))")

    assert done.returncode == 1
    assert "NotImplementedError" in done.stderr


def test_the_one_kernel_copies_rows_of_every_layer_also_where_they_overlap() -> None:
    """Rows move as if read before any is written."""
    done = _run_stand_in(
        "import torch, sgl_kernel\n"
        "keys, values = torch.arange(4.0), torch.arange(4.0) + 10\n"
        "sgl_kernel.copy_all_layer_kv_cache_cpu([keys], [values], torch.tensor([1, 2]), torch.tensor([0, 1]))\n"
        "print(keys.tolist(), values.tolist(), torch.zeros(1, pin_memory=True).tolist())"
    )

    assert (done.stderr, done.stdout) == ("", "[0.0, 0.0, 1.0, 3.0] [10.0, 10.0, 11.0, 13.0] [0.0]\n")


@pytest.mark.sglang
def test_the_environment_is_what_the_lock_says() -> None:
    """Every package has the version of the lock, and the environment is up to date."""
    found, lock = find("sglang", "cpu"), recipe_for(default_registry(), "sglang", "cpu").lock()
    pins = dict(pin.split("==") for pin in lock.pins)

    assert found.warnings == ()
    assert _asked(str(found.path), VERSIONS, json.dumps(list(pins))) == pins


@pytest.mark.sglang
def test_what_the_server_imports_can_be_imported() -> None:
    """torchvision without its operators, the stand-in, the server's messages, and our code beside them."""
    version = recipe_for(default_registry(), "sglang", "cpu").lock().version("torchvision")
    answer = _asked(str(find("sglang", "cpu").path), PARTS)

    assert answer == [version, "0.0.0+areal.cpu", "areal_core.weights.tensors"]


def _run_stand_in(code: str) -> subprocess.CompletedProcess[str]:

    folder = recipe_for(default_registry(), "sglang", "cpu").files_folder
    prelude = f"import sys; sys.path.insert(0, {str(folder)!r})\n"
    command = [sys.executable, "-c", prelude + code]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, cwd="/", check=False)


def _asked(python: str, code: str, *arguments: str) -> object:
    command = [python, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=250, cwd="/")
    return json.loads(done.stdout.strip().splitlines()[-1])
