"""A page and an example for every preset, and their list, made from what each preset says of itself.

    python docs/recipes.py          # writes docs/recipes/ and examples/algorithms/

Knows: where pages and examples lie, and the offline task the examples train.
Does not know: any algorithm; `areal_algorithms.presets` does.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import yaml

from areal_algorithms.presets import Preset, presets
from areal_algorithms.show import PAPER

ROOT = Path(__file__).parents[1]
PAGES, EXAMPLES = ROOT / "docs/recipes", ROOT / "examples/algorithms"
MADE = "<!-- Made by docs/recipes.py; change the preset, not this page. -->\n\n"

_ROLES = {
    "critic": "critic:\n  backend: fsdp:d1\n  optimizer: {lr: 3.0e-4, weight_decay: 0.0, max_grad_norm: 1.0}\n",
    "reference": "reference:\n  backend: fsdp:d1\n",
}
_EXAMPLE = """\
# {summary}
# The quickstart's task: spell a word backward. areal train examples/algorithms/{file}.yaml model.path=path/to/model
name: {file}
seed: 1
steps: 100
device: cpu
model:
  path: ""
data:
  name: spell
  shuffle: false
  options: {{split: train, seed: "${{seed}}", max_word_len: 10}}
rollout:
  backend: reference:d1
  prompts_per_step: 16
  group_size: 8
  max_staleness: 2
  sampling: {{max_new_tokens: 16, temperature: 1.0}}
  reward:
    name: reasoning_gym
    options: {{exact: true}}
actor:
  backend: fsdp:d1
  optimizer: {{lr: 3.0e-4, betas: [0.9, 0.99], weight_decay: 0.0, warmup_steps: 10, max_grad_norm: 1.0}}
{roles}algorithm:
  preset: {name}
evaluation:
  every_steps: 20
  max_prompts: 256
  data:
    name: spell
    options: {{split: held, max_word_len: 10}}
"""


def file_name(each: Preset) -> str:
    """Return the name of a preset's files: letters and underscores."""
    return each.name.replace("++", "_pp")


def example(each: Preset) -> str:
    """Return a run's yaml that trains the offline task with a preset."""
    roles = "".join(_ROLES[role] for role in each.needs)
    return _EXAMPLE.format(name=each.name, file=file_name(each), summary=_sentence(each.summary), roles=roles)


def page(each: Preset) -> str:
    """Return the recipe of a preset."""
    keys = yaml.safe_dump(dict(each.keys), sort_keys=False, default_flow_style=False, width=100)
    needs = "".join(f"- Needs a section `{role}:`.\n" for role in each.needs)
    roles = "".join(_ROLES[role] for role in each.needs)
    notes = needs + "".join(f"- {note}\n" for note in each.notes)
    file = file_name(each)
    parts = [
        f"# {each.name}\n",
        f"{_sentence(each.summary)}\n",
        f"{each.paper}, [arXiv:{each.arxiv}]({PAPER}{each.arxiv}).\n",
        f"$$\n{each.formula.strip()}\n$$\n",
        *([notes] if notes else []),
        f"```yaml\nalgorithm:\n  preset: {each.name}\n{roles}```\n",
        f"is short for\n\n```yaml\n{keys}{roles}```\n",
        "Each key can be set beside `preset:`, or by an override, and then counts; `config.yaml` in the run folder has "
        "what resulted. From Python it is `areal_core.Trainer(..., "
        f'algorithm="{each.name}")`.\n',
        f"`examples/algorithms/{file}.yaml` trains the quickstart's task:\n",
        f"```sh\nareal algorithms {each.name}\n"
        f"areal train examples/algorithms/{file}.yaml model.path=path/to/model --dry-run\n```\n",
        "[All symbols](../explanation/async-ppo.md) · [all recipes](index.md)\n",
    ]
    return MADE + "\n".join(parts)


def index() -> str:
    """Return the list of recipes."""
    rows = [
        f"| [{each.name}]({file_name(each)}.md) | {each.summary} | {', '.join(each.needs)} "
        f"| [{each.arxiv}]({PAPER}{each.arxiv}) |"
        for each in presets()
    ]
    head = [
        "# Recipes\n",
        "Published algorithms by name: `algorithm: {preset: NAME}` in a run's yaml. `areal algorithms` lists them, "
        "`areal algorithms NAME` shows one.\n",
        "| preset | what | needs | arXiv |",
        "|---|---|---|---|",
    ]
    end = (
        "\nThe keys are explained in [Asynchronous PPO](../explanation/async-ppo.md).\n\n"
        "## On one task\n\n"
        "Each example for 20 steps from the same starting model, with three seeds: the mean greedy reward on 256 "
        "held-out words, its lowest and highest as a band, the other presets in grey. What it shows is that each "
        "learns at `rollout.max_staleness` 2. The three that take longer are those whose loss keeps a gradient where "
        "PPO's clip ends it. `python benchmarks/algorithms.py --seeds 1 2 3 --steps 20` draws it again, also with "
        "other seeds or another `--max-staleness`.\n\n"
        "![Held-out reward over the steps, a panel for each preset](../images/algorithms.png)"
    )
    return MADE + "\n".join([*head, *rows, end]) + "\n"


def made() -> Mapping[Path, str]:
    """Return every file this writes, with its text."""
    files = {PAGES / "index.md": index()}
    for each in presets():
        files[PAGES / f"{file_name(each)}.md"] = page(each)
        files[EXAMPLES / f"{file_name(each)}.yaml"] = example(each)
    return files


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def main() -> int:
    """Write all of them."""
    for path, text in made().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
