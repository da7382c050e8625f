"""Whatever a run's file and its overrides hold, `areal train --dry-run` says in words what is wrong, or plans it.

Files of examples/ and of the documentation, each changed at random in a way that its number decides. All of them:

    python -m pytest tests/cli/test_hostile_configs.py -m hostile
"""

from __future__ import annotations

import copy
import random
import re
import textwrap
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from areal_core.cli import train
from areal_core.cli.main import BAD_INPUT, main
from areal_core.config.load import dump_config, load_config
from areal_core.plugins.extensions import extension
from areal_tasks.quickstart.quickstart import preset_path
from areal_torch.testing.hostile_folders import bounded
from areal_torch.testing.models import make_tiny_model

ROOT = Path(__file__).parents[2]
NUMBER = 500
SAMPLE = 12
"""Of so many files one is tried in `make test`."""
NESTED = 300
VALUES = (
    *("null", "true", "-1", "0", "7", str(10**30), "1e999", ".inf", "-.inf", ".nan", "0x1F", "1_000", "5e-324"),
    *("''", "many", "'a b'", "'\\x1b[31m'", '"\\x1b]0;evil\\x07"', '"\\0"', "'" + "x" * 5000 + "'", "'~nobody/there'"),
    *("[]", "{}", "[[[]]]", "[null, {}]", "{1: 2}", "{true: x}", "{[a]: b}", "[" * NESTED + "]" * NESTED),
    *("2026-13-45", "2026-11-22", "2026-11-22 10:00:00", "12:30:45", "!!binary aGVsbG8=", "!!set {a, b}", "!!int x"),
    *("!!python/object:os.system {}", "!unknown x", "&a [*a]", "*nowhere", "${steps}", "${nope.nope}", "${oc.env:NO}"),
    *("${", "${}", "${name}", "${oc.decode:${x}}", "/dev/zero", "/etc/passwd", "/", "@here", "%x", "`x`", "fsdp:d0"),
    *(
        "fsdp:d99999999999999999999",
        "fsdp:t1t1",
        ":",
        "fsdp:",
        "a:b:c",
        "reference:d-1",
        "no-such-thing",
        "\u202e\u0000",
    ),
)
KEYS = (
    "odd",
    "1",
    "true",
    "null",
    "2026-11-22",
    "'a.b'",
    "'a[0]'",
    "''",
    "? [a]\n",
    '"\\x1b"',
    "'${x}'",
    "<<",
    "__class__",
)
OVERRIDES = (
    *("{}={}", "{}[0]={}", "{}.x={}", "{}={}={}", "{} = {}", "+{}={}", "~{}", "{}", "--{}={}", "{}..a={}", "{}[={}"),
    *("{}[99999999]={}", "{}[-1]={}", "{}[a]={}", "{}.={}", "{}=[{}", "{}={{{}", "{}='{}", "{}=!!str {}", "\x1b{}={}"),
)
"""A key and a value in many a disguise."""


@cache
def sources() -> list[dict[str, Any]]:
    """Return a whole run for each file of examples/ and of the documentation, every key in it. Any: yaml.

    Made by the first test that asks: seconds, which every process that collects this file would pay.
    """
    presets = preset_path("spell").parent
    texts = [path.read_text() for path in sorted([*ROOT.glob("examples/*.yaml"), *presets.glob("*.yaml")])]
    for page in sorted((ROOT / "docs").rglob("*.md")):
        texts += [textwrap.dedent(text) for text in re.findall(_BLOCK, page.read_text(), re.MULTILINE | re.DOTALL)]
    found = [read(text) for text in texts if not _ABSENT.search(text)]
    base = {**read(preset_path("spell").read_text()), "device": "cpu"}
    return [whole(base, content) for content in found if isinstance(content, dict) and not _ELSEWHERE & set(content)]


def read(text: str) -> Any:  # Any: yaml
    """Return what a yaml file holds, by the fast reader where it is installed."""
    return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))


_BLOCK = r"^ *```yaml\n(.*?)^ *```"
_ELSEWHERE = {"imports", "scheduler", "device"}
"""What asks for a file, a scheduler or a device that is not here; so do placements on other hosts."""
_ABSENT = re.compile(r"\w\.py\b|/models/|name: verifiers|adapter: ")
"""Files of a user, models and packages that are not here."""


def whole(base: dict[str, Any], content: dict[str, Any]) -> dict[str, Any]:  # Any: yaml
    """Return a run with every key it can have, its defaults too; servers are taken as running."""
    run: dict[str, Any] = read(dump_config(load_config(None, base=merged(base, content))))
    if run["rollout"]["backend"].startswith(("vllm", "sglang")):
        run["rollout"]["options"] = {"url": "http://127.0.0.1:8000"}
    run["rollout"]["python"] = None
    run["actor"]["placement"] = {}
    run["loggers"] = []  # a tracker may not be installed
    return run


def merged(base: dict[str, Any], content: dict[str, Any]) -> dict[str, Any]:  # Any: yaml
    """Return both; what names a plugin stands alone, as the options of another are none of its."""

    def one(old: Any, new: Any) -> Any:
        both = isinstance(old, dict) and isinstance(new, dict) and "name" not in new
        return merged(old, new) if both else new

    return base | {key: one(base.get(key), value) for key, value in content.items()}


def places(content: Any, path: str = "") -> Iterator[tuple[Any, Any, str]]:  # Any: yaml
    """Yield every container with a key of it, and the dotted path."""
    for key, value in list(content.items() if isinstance(content, dict) else enumerate(content)):
        here = f"{path}.{key}" if path else str(key)
        yield content, key, here
        if isinstance(value, dict | list):
            yield from places(value, here)


def written(content: Any, spoiled: dict[str, str]) -> str:  # Any: yaml
    """Return the text of a file, with the marks of spoiled places replaced by what stands there."""
    text = yaml.safe_dump(content, sort_keys=False, width=10**6)
    for mark, raw in spoiled.items():
        text = text.replace(mark, raw)
    return text


def hostile(number: int, model: Path) -> tuple[bytes, list[str]]:
    """Return the bytes of a file, and the overrides beside it."""
    draw = random.Random(number)
    content = copy.deepcopy(draw.choice(sources()))
    content["model"]["path"] = str(model)
    spoiled: dict[str, str] = {}
    for change in range(draw.choice((0, 1, 1, 1, 2))):
        container, key, _ = draw.choice(list(places(content)))
        mark = f"MARK{change}MARK"
        kind = draw.choice(("value", "value", "value", "key", "gone", "more"))
        if kind == "gone":
            del container[key]
        elif kind in ("key", "more") and isinstance(container, dict):
            container[mark] = container.pop(key) if kind == "key" else draw.choice((1, "x", {"a": [1]}))
            spoiled[mark] = draw.choice(KEYS)
        else:
            container[key] = mark
            spoiled[mark] = draw.choice(VALUES)
    text = written(content, spoiled)
    paths = [path for _, _, path in places(content)]
    overrides = [
        draw.choice(OVERRIDES).format(*(draw.choice(paths), draw.choice(VALUES), "x"))
        for _ in range(draw.choice((0, 0, 0, 1, 2)))
    ]
    return torn(text.encode("utf-8", "surrogatepass"), draw), overrides


def torn(text: bytes, draw: random.Random) -> bytes:
    """Return the text, now and then cut, or with bytes in it that no yaml has."""
    at = draw.randrange(len(text) + 1)
    wrecks: tuple[Callable[[], bytes], ...] = (
        lambda: text[:at],
        lambda: text[:at] + bytes([draw.choice((0, 7, 9, 27, 127, 128, 255))]) + text[at:],
        lambda: b"\xef\xbb\xbf" + text,
        lambda: text.decode().encode("utf-16"),
        lambda: text + b"\n---\nsteps: 2\n",
        lambda: text + b"\n" + b"[" * 5000,
        lambda: text + b"\nsteps: 3\nsteps: 4\n",
        lambda: b"[1, 2]",
        lambda: b"",
    )
    return draw.choice(wrecks)() if draw.random() < 0.2 else text


@pytest.fixture(autouse=True)
def no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the data alone, which a dry run opens after the plan: that of some examples lies on the hub."""
    monkeypatch.setattr(train, "extension", lambda name: None if name == "preview" else extension(name))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model folder there is nothing wrong with."""
    return make_tiny_model(tmp_path_factory.mktemp("model") / "tiny", layers=1, max_position=4096)


def judge(number: int, model: Path, into: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Run the command: in time, in memory, and with nothing but words, none of which a terminal obeys."""
    content, overrides = hostile(number, model)
    (into / "run.yaml").write_bytes(content)

    with bounded():
        code = main(["train", str(into / "run.yaml"), "--dry-run", "--", *overrides])
    out, err = capsys.readouterr()

    assert code in (0, 1, BAD_INPUT)
    assert "Traceback" not in out + err
    assert (code == 0) == bool(out), (out, err)
    assert code == 0 or re.search(r"^\w+: .*\[AREAL-E\d\d\d\]", err, re.M | re.S), err
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", err), err


def test_every_file_is_planned_as_it_stands(model: Path, tmp_path: Path) -> None:
    """What is refused below is refused for what was changed."""
    for source in sources():
        file = tmp_path / "run.yaml"
        file.write_text(yaml.safe_dump(source))
        code = main(["train", str(file), f"model.path={model}", "--dry-run"])
        assert code == 0, source

    assert len(sources()) >= 10


@pytest.mark.parametrize("number", range(0, NUMBER, SAMPLE))
def test_a_file_is_planned_or_refused_in_words(
    number: int, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Some of them."""
    judge(number, model, tmp_path, capsys)


@pytest.mark.hostile
@pytest.mark.parametrize("number", range(NUMBER))
def test_every_file_is_planned_or_refused_in_words(
    number: int, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All of them."""
    judge(number, model, tmp_path, capsys)
