"""What `areal slurm` refuses before anything is submitted, each with what, why and fix."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from areal_core.contract.errors import ArealError, ConfigError, ResourceError
from areal_ray.elsewhere import Nodes, plan_elsewhere
from areal_ray.slurm.command import slurm_command
from areal_tasks.tiny import make_spell_model

from .cluster import Slurm, running, why_not

SPELL = Path(__file__).parents[4] / "examples" / "offline" / "spell.yaml"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An override that names a model."""
    return f"model.path={make_spell_model(tmp_path_factory.mktemp('made') / 'model', seed=1)}"


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    """A real Slurm."""
    with running() as cluster, cluster.speaking():
        yield cluster


def told_of(error: ArealError) -> str:
    """Return an error as a user sees it, complete."""
    assert error.why
    assert error.fix
    return str(error)


def test_a_machine_without_sbatch_is_told_to_go_to_a_login_node(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written into the run folder."""
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(ResourceError) as caught:
        slurm_command(SPELL, model, f"out={tmp_path}/run", nodes=2)

    assert "no sbatch on the PATH" in told_of(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "asked", "told"),
    [
        (["actor.backend=fsdp:d4"], {"gpus_per_node": 2}, "take 3 nodes"),
        (["device=cuda"], {}, "--assume cuda:8x80GB"),
        (["rollout.cpus_per_replica=8"], {"cpus_per_node": 4}, "the run needs 9 processors"),
        (["rollout.max_stalenes=1"], {}, "max_staleness"),
        (["loggers=[{name: wandb, options: {api_key: sk-1}}]"], {}, "${oc.env:NAME}"),
        ([], {"assume": "gpu"}, "describes no machine"),
        ([], {"gpus_per_node": -1}, "0 or more"),
    ],
)
def test_a_run_that_cannot_be_is_refused_by_its_plan(
    model: str, words: list[str], asked: dict[str, int], told: str
) -> None:
    """Too few devices or processors, a key that nobody reads, a secret that would be written down."""
    with pytest.raises(ArealError) as caught:
        slurm_command(SPELL, model, *words, nodes=2, dry_run=True, **asked)  # type: ignore[arg-type]  # of one kind each

    assert told in told_of(caught.value)


def test_a_secret_of_the_run_file_is_refused_and_a_variable_is_not(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job reads a copy of the file."""
    monkeypatch.setenv("MY_KEY", "sk-abcdefgh12345678")
    logger = "loggers: [{name: prometheus, options: {port: 0, token: '%s'}}]\n"
    (tmp_path / "told.yaml").write_text(SPELL.read_text() + logger % "sk-abcdefgh12345678")
    (tmp_path / "named.yaml").write_text(SPELL.read_text() + logger % "${oc.env:MY_KEY}")

    with pytest.raises(ConfigError, match=r"holds a secret: loggers\[0\]"):
        slurm_command(tmp_path / "told.yaml", model, nodes=1, dry_run=True)
    with pytest.raises(ArealError) as caught:
        slurm_command(tmp_path / "named.yaml", model, nodes=1, dry_run=True)
    assert "holds a secret" not in str(caught.value)


@pytest.mark.parametrize("nodes", [0, -1])
def test_a_job_of_no_nodes_is_refused(nodes: int) -> None:
    """A job has a node at least."""
    with pytest.raises(ConfigError, match="1 or more"):
        slurm_command(SPELL, nodes=nodes)


def test_what_does_not_fit_a_node_is_a_warning_of_the_plan(model: str) -> None:
    """As `areal train --dry-run --assume` warns: memory is an estimate."""
    nodes = Nodes.of(2, 0, 0, "cuda:1x0.001GB")
    run = plan_elsewhere(SPELL, [model], nodes.kind).on(nodes)

    assert (run.device, run.nodes.gpus) == ("cuda", 1)
    assert any("weights and optimizer states need" in warning for warning in run.plan.warnings)


def test_a_folder_with_a_run_is_resumed_only_if_asked(model: str, tmp_path: Path) -> None:
    """Before the job waits for hours and ends at once; and there must be something to resume."""
    (tmp_path / "run").mkdir()
    words = (model, f"out={tmp_path}/run")
    with pytest.raises(ConfigError, match="nothing to resume"):
        slurm_command(SPELL, *words, nodes=1, resume=True, dry_run=True)

    (tmp_path / "run" / "loop.json").write_text("{}")
    with pytest.raises(ConfigError, match="already holds a run"):
        slurm_command(SPELL, *words, nodes=1, dry_run=True)

    assert slurm_command(SPELL, *words, nodes=1, resume=True, dry_run=True) == 0


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_slurm_itself_judges_what_only_it_knows(model: str, tmp_path: Path, slurm: Slurm) -> None:
    """A partition that is not there is told with those that are; more nodes than it has, in its own words."""
    words = (model, f"out={tmp_path}/run")
    with pytest.raises(ConfigError) as caught:
        slurm_command(SPELL, *words, nodes=1, partition="gpu")
    assert "partitions are main" in told_of(caught.value)

    with pytest.raises(ConfigError) as caught:
        slurm_command(SPELL, *words, nodes=3)
    assert "node configuration is not available" in told_of(caught.value)

    assert slurm.ask("squeue", "--noheader") == ""
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_a_run_folder_of_one_node_is_refused(
    model: str, tmp_path: Path, slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """/tmp is another folder on every node, unless all nodes are this machine."""
    monkeypatch.setattr("socket.gethostname", lambda: "login")

    with pytest.raises(ConfigError) as caught:
        slurm_command(SPELL, model, "out=/tmp/run", nodes=2)

    assert "is not shared" in told_of(caught.value)
