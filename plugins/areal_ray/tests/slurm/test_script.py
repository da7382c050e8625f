"""The batch script of `areal slurm`: what stands in it means what was asked, whatever the names."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from areal_core.contract.errors import ConfigError
from areal_ray.elsewhere import Nodes, RunElsewhere, plan_elsewhere
from areal_ray.slurm.request import Request
from areal_ray.slurm.script import batch_script
from areal_tasks.tiny import make_spell_model

SPELL = Path(__file__).parents[4] / "examples" / "offline" / "spell.yaml"
WORDS = st.text(st.characters(exclude_characters="\0\r", exclude_categories=["Cs"]), min_size=1, max_size=12)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunElsewhere:
    """The quickstart on two nodes."""
    model = make_spell_model(tmp_path_factory.mktemp("made") / "model", seed=1)
    return plan_elsewhere(SPELL, [f"model.path={model}", "out=/shared/run"]).on(Nodes(count=2))


def said(script: str) -> list[str]:
    """Return what the variables of a script hold, as bash reads them: every word behind a NUL."""
    asked = script[script.index("run_file=") : script.index("say() {")]
    show = (
        'printf "%s\\0" "$run_file" "$run_folder" "$programs" "${inside[@]}" "--" "${step[@]}" "--" "${overrides[@]}"'
    )
    done = subprocess.run(["bash", "-euc", asked + show], capture_output=True, check=True, timeout=20)
    return done.stdout.decode().split("\0")[:-1]


@settings(max_examples=20)
@given(value=WORDS, image=WORDS, option=WORDS)
def test_bash_reads_every_word_as_it_was_given(run: RunElsewhere, value: str, image: str, option: str) -> None:
    """Quotes, dollars, spaces and line ends of overrides and images are characters, not bash."""
    request = Request(nodes=2, apptainer=image, container_options=(option,))
    odd = evolve(run, overrides=("steps=3", f"name={value}"))

    words = said(batch_script(odd, request, Path("/x/run 1.yaml"), goes_on=False))

    assert words[:3] == ["/x/run 1.yaml", "/shared/run", ""]
    assert words[words.index("--pwd") + 2 : words.index("--")] == [option, image]
    assert words[-2:] == ["steps=3", f"name={value}"]


def test_the_script_is_bash_and_all_of_the_template_is_filled_in(run: RunElsewhere) -> None:
    """`bash -n` takes it, and no @PLACE@ is left."""
    script = batch_script(run, Request(nodes=2, gpus_per_node=8, requeue=True), SPELL, goes_on=True)

    done = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, timeout=20, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    assert re.findall(r"@[A-Z_]+@", script) == []


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="apt install shellcheck")
def test_shellcheck_finds_nothing_in_the_script(run: RunElsewhere) -> None:
    """SC2317 and SC2034 aside: functions and variables that travel to other nodes look unused."""
    script = batch_script(run, Request(nodes=2), SPELL, goes_on=False)
    command = ["shellcheck", "--shell=bash", "--exclude=SC2317,SC2034", "-"]

    done = subprocess.run(command, input=script, text=True, capture_output=True, timeout=60, check=False)

    assert done.returncode == 0, done.stdout


def test_pyxis_gets_its_options_and_programs_of_the_image_are_taken(run: RunElsewhere) -> None:
    """Folders of the run are mounted, and the PATH is the image's."""
    options = ("--container-writable", "--container-mounts=/data:/data")
    request = Request(nodes=2, container_image="site/areal:1", container_options=options)

    words = said(batch_script(run, request, SPELL, goes_on=False))

    here = Path.cwd()
    assert words[2] == ""
    assert words[3 : words.index("--", 4)] == [
        "--",
        "--container-image=site/areal:1",
        f"--container-mounts=/tmp:/tmp,{here}:{here},/shared/run:/shared/run,/data:/data",
        f"--container-workdir={here}",
        "--container-writable",
    ]


def test_what_was_asked_for_stands_in_the_lines_that_sbatch_reads(run: RunElsewhere) -> None:
    """Options before anything else, in quotes where they are words; % is no pattern of sbatch's."""
    request = Request(
        nodes=4, gpus_per_node=8, partition="gpu", account="me", time="1-0", extra=("mem=0", "hold"), requeue=True
    )
    odd = evolve(run, plan=evolve(run.plan, config=evolve(run.plan.config, out="/shared/5%")))

    lines = batch_script(odd, request, SPELL, goes_on=False).split("\n\n", 1)[0].splitlines()[2:]

    assert lines == [
        '#SBATCH --job-name="quickstart"',
        '#SBATCH --output="/shared/5%%/slurm/%j.log"',
        "#SBATCH --open-mode=append",
        "#SBATCH --nodes=4",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --gpus-per-node=8",
        "#SBATCH --exclusive",
        '#SBATCH --partition="gpu"',
        '#SBATCH --account="me"',
        '#SBATCH --time="1-0"',
        "#SBATCH --requeue",
        "#SBATCH --signal=B:USR1@120",
        '#SBATCH --mem="0"',
        "#SBATCH --hold",
    ]


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"extra": ("nodes=4",)}, "use --nodes"),
        ({"extra": ("Mem 4",)}, "no option of sbatch"),
        ({"partition": 'a"\n#SBATCH --uid=0'}, "cannot stand in a script"),
        ({"notice_s": 0}, "it is in seconds"),
        ({"apptainer": "a.sif", "container_image": "a"}, "leave out one"),
        ({"container_options": ("--nv",)}, "add --container-image"),
    ],
)
def test_what_cannot_be_asked_is_refused(run: RunElsewhere, asked: dict[str, object], told: str) -> None:
    """A value that would end a line of the script, an option the script sets itself, two kinds of containers."""
    with pytest.raises(ConfigError, match=re.escape(told)):
        batch_script(run, Request(nodes=2, **asked), SPELL, goes_on=False)  # type: ignore[arg-type]  # of one kind each
