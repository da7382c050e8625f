"""`areal kube`: the manifest is one that Kubernetes and KubeRay take, and it runs what was asked for."""

from __future__ import annotations

import copy
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from areal_core.contract.errors import ArealError, ConfigError, ResourceError, StorageError
from areal_ray.kube.command import kube_command
from areal_tasks.tiny import make_spell_model

from .schema import check

SPELL = Path(__file__).parents[4] / "examples" / "offline" / "spell.yaml"
Documents = Mapping[str, Any]  # Any: objects of Kubernetes, by their kind


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An override that names a model."""
    return f"model.path={make_spell_model(tmp_path_factory.mktemp('made') / 'model', seed=1)}"


def written(folder: Path, *words: str, config: Path = SPELL, **options: Any) -> Documents:  # Any: of one kind each
    """Return what `areal kube` writes into a file."""
    file = folder / "job.yaml"
    kube_command(config, *words, image="registry/areal:1", claim="runs", output=file, **options)
    return {document["kind"]: document for document in yaml.safe_load_all(file.read_text())}


def cluster(documents: Documents) -> Any:
    """Return the cluster of a RayJob. Any: an object of Kubernetes."""
    return documents["RayJob"]["spec"]["rayClusterSpec"]


def limits(group: Mapping[str, Any]) -> Mapping[str, str]:
    """Return what a pod of a group is given."""
    found: Mapping[str, str] = group["template"]["spec"]["containers"][0]["resources"]["limits"]
    return found


def test_the_manifest_is_one_that_kubernetes_and_kuberay_take(model: str, tmp_path: Path) -> None:
    """With everything that can be asked for in it."""
    documents = written(
        tmp_path,
        model,
        "name=My run / 5",
        namespace="me",
        claim_size="100Gi",
        storage_class="fast",
        env_from=["wandb"],
        auth_secret="token",
        gpus_per_worker=1,
        workers=2,
    )

    assert list(documents) == ["PersistentVolumeClaim", "ConfigMap", "RayJob"]
    for document in documents.values():
        check(document)
    assert documents["RayJob"]["metadata"]["name"] == "my-run-5"
    assert {each["metadata"]["namespace"] for each in documents.values()} == {"me"}
    assert cluster(documents)["authOptions"] == {"mode": "token", "secretName": "token"}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("spec", "backofLimit"), 3),
        (("spec", "backoffLimit"), "3"),
        (("spec", "rayClusterSpec", "rayStartParams"), {}),
        (("spec", "rayClusterSpec", "headGroupSpec", "template", "spec", "container"), []),
        (("spec", "rayClusterSpec", "headGroupSpec", "template", "spec", "volumes"), [{"name": 1}]),
    ],
)
def test_the_check_sees_what_is_wrong(model: str, tmp_path: Path, path: tuple[str, ...], value: object) -> None:
    """A misspelt field, a wrong type, a field in another place: of KubeRay and of the pods."""
    spoiled = copy.deepcopy(written(tmp_path, model)["RayJob"])
    place = spoiled
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value

    with pytest.raises(Exception, match=r"backo|3|rayStartParams|container|1"):
        check(spoiled)


@pytest.mark.parametrize(
    ("words", "asked", "workers", "each"),
    [
        ([], {}, 1, 2),
        (["actor.backend=fsdp:d12"], {}, 2, 8),
        (["actor.backend=fsdp:d12"], {"gpus_per_worker": 4}, 4, 4),
        (["actor.backend=fsdp:d12"], {"workers": 4}, 4, 4),
    ],
)
def test_workers_are_sized_from_the_plan(
    model: str, tmp_path: Path, words: list[str], asked: dict[str, int], workers: int, each: int
) -> None:
    """13 devices are 2 pods of 8, or what was asked for; the head takes no work."""
    documents = written(tmp_path, model, *words, **asked)

    group = cluster(documents)["workerGroupSpecs"][0]
    assert (group["replicas"], group["minReplicas"], group["maxReplicas"]) == (workers,) * 3
    assert limits(group)["nvidia.com/gpu"] == str(each)
    assert cluster(documents)["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"


def test_a_run_on_cpus_asks_for_no_device(model: str, tmp_path: Path) -> None:
    """And for as many processors as its workers keep."""
    group = cluster(written(tmp_path, model, gpus_per_worker=0))["workerGroupSpecs"][0]

    assert limits(group)["cpu"] == "2"
    assert "nvidia.com/gpu" not in limits(group)


def test_the_run_of_a_pod_is_the_one_asked_for_and_goes_on_when_tried_again(model: str, tmp_path: Path) -> None:
    """The script calls `areal train` with the user's words as they are; --resume once the run has begun."""
    own = tmp_path / "my_reward.py"
    own.write_text("from areal_core import reward\n\n\n@reward('mine')\ndef mine(value):\n    return 1.0\n")
    odd = 'name=it\'s "$HOME" `id`'
    files = written(tmp_path, model, odd, f"imports=[{own}]", "out=/here", name="demo", in_pod=["model.path=/areal/m"])
    data = files["ConfigMap"]["data"]
    program = tmp_path / "areal"
    program.write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)

    def words_of(runs: Path) -> list[str]:
        script = data["run.sh"].replace("/areal/runs/demo", str(runs))
        env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
        done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True, check=True, timeout=20)
        return done.stdout.splitlines()

    first = words_of(tmp_path / "run")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "events.jsonl").write_text("")
    second = words_of(tmp_path / "run")

    start = ["train", "/etc/areal/run.yaml", model, odd]
    start += [f"imports=[{own}]", "imports=[/etc/areal/my_reward.py]", "model.path=/areal/m"]
    assert first == [*start, f"out={tmp_path}/run", "scheduler.backend=ray"]
    assert second == [*start, "--resume", f"{tmp_path}/run", "scheduler.backend=ray"]
    assert data["my_reward.py"] == own.read_text()
    assert yaml.safe_load(data["run.yaml"])["name"] == "quickstart"
    assert files["RayJob"]["spec"]["entrypoint"] == "bash /etc/areal/run.sh"
    assert files["RayJob"]["spec"]["backoffLimit"] == 3


def test_the_manifest_goes_to_stdout_and_the_plan_to_stderr(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    """So that `areal kube ... | kubectl apply -f -` works."""
    assert kube_command(SPELL, model, image="a", claim="runs") == 0

    shown = capsys.readouterr()
    assert [document["kind"] for document in yaml.safe_load_all(shown.out)] == ["ConfigMap", "RayJob"]
    assert "fsdp:d1" in shown.err
    assert "run: |" not in shown.err


@pytest.mark.parametrize(
    ("words", "asked", "error", "told"),
    [
        (["device=npu", "actor.backend=reference:d1"], {}, ConfigError, "--device-resource NAME"),
        (["actor.backend=fsdp:d12"], {"workers": 1, "gpus_per_worker": 8}, ResourceError, "13 cuda devices"),
        ([], {"name": "A" * 60}, ConfigError, "no name of"),
        ([], {"namespace": "a b"}, ConfigError, "small letters"),
        ([], {"memory_per_worker": "much"}, ConfigError, "is no size"),
        ([], {"storage_class": "fast"}, ConfigError, "--claim-size"),
        ([], {"retries": -1}, ConfigError, "0 or more"),
        (["loggers=[{name: wandb, options: {api_key: sk-1}}]"], {}, ConfigError, "${oc.env:NAME}"),
    ],
)
def test_what_cannot_be_is_refused(
    model: str, tmp_path: Path, words: list[str], asked: dict[str, Any], error: type[ArealError], told: str
) -> None:
    """With what, why and fix, and nothing is written."""
    with pytest.raises(error) as caught:
        written(tmp_path, model, *words, **asked)

    assert told in str(caught.value)
    assert caught.value.why
    assert caught.value.fix
    assert not (tmp_path / "job.yaml").exists()


def test_a_file_that_cannot_be_written_is_said(model: str, tmp_path: Path) -> None:
    """As everywhere: what, why, fix."""
    with pytest.raises(StorageError, match="cannot be written"):
        kube_command(SPELL, model, image="a", claim="runs", output=tmp_path / "none" / "job.yaml")
