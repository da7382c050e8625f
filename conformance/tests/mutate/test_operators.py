"""Operators: each finds its own edits, and every edit compiles and changes one place."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from areal_conformance.mutate.mutants import mutants_of
from areal_conformance.mutate.operators import OPERATORS
from areal_conformance.mutate.source import Source

PLUGINS = Path(__file__).parents[3] / "plugins"
SAMPLES: dict[str, tuple[str, set[str]]] = {
    "arithmetic": ("def f(a, b):\n    a += b\n    return -a * b", {"a -= b", "(a)", "-a / b"}),
    "comparison": ("def f(a, b):\n    return a < b or a in b", {"a > b", "a not in b"}),
    "boundary": ("def f(a, b):\n    return 0 < a <= b", {"0 <= a <= b", "0 < a < b"}),
    "condition": ("def f(a, b):\n    return 1 if a and not b else 2", {"not (a and not b)", "(a or not b)", "(b)"}),
    "flag": ("def f(a, keep=True):\n    a(strict=True)", {"False"}),
    "off-by-one": (
        "def f(a, b):\n    for i in range(b):\n        a[i : b + i, 3]",
        {"(b) + 1", "(i) + 1", "(b + i) + 1", "4"},
    ),
    "constant": ("EPSILON = 1e-6\nROOM = 1024", {"1.01e-06", "1034"}),
    "default": ("def f(a=3, *, b=0.5, c=False):\n    pass", {"4", "0.505", "True"}),
    "statement": ("def f(self):\n    self.n = 1\n    n = 2\n    raise ValueError(n + 1)", {"pass"}),
    "swallowed": ("try:\n    pass\nexcept ValueError:\n    raise", {"pass"}),
    "await": ("async def f(a):\n    await a.go(1)", {"(a.go(1))"}),
    "argument": ("def f(a, b):\n    return g(a, b.c)", {"g(b.c, a)"}),
    "group": ("def f(x, mine):\n    reduce(x, group=mine)", {"reduce(x, group=None)"}),
    "dtype": (
        "def f(x):\n    return x.to(torch.float32), x.double(), x.astype(np.float32)",
        {"torch.bfloat16", "x.float()", "np.float16"},
    ),
    "detach": ("def f(x):\n    return (x + 1).detach().clone()", {"((x + 1).detach())", "(x + 1)"}),
    "no-grad": ("def f(x):\n    with torch.no_grad():\n        x()", {"torch.enable_grad()"}),
    "eval": ("def f(model):\n    return model.eval()", {"(model)"}),
    "reduction": (
        "def f(x):\n    return (x < 1).sum(), max(x, 1), ReduceOp.SUM",
        {"(x < 1).mean()", "min(x, 1)", "ReduceOp.MAX"},
    ),
    "key": ("def f(cache, a, b):\n    return cache[a, b]", {"(a,)"}),
}


def source_of(text: str) -> Source:
    return Source(name="areal_mine.core", path=Path("core.py"), text=f"{text}\n".encode())


@pytest.mark.parametrize("operator", OPERATORS)
def test_every_operator_finds_its_edits(operator: str) -> None:
    """Each makes the edits of its sample, and those alone."""
    text, wanted = SAMPLES[operator]
    found = {mutant.key.after for mutant in mutants_of(source_of(text)) if mutant.key.operator == operator}

    assert wanted == found


@pytest.mark.parametrize(
    "path", sorted(PLUGINS.glob("areal_*/src/areal_*/**/*.py"))[::40], ids=lambda path: str(path.relative_to(PLUGINS))
)
def test_every_edit_of_real_modules_compiles_and_is_one(path: Path) -> None:
    """A mutant is another program, which differs from the module in one span of bytes, and has its own key."""
    source = Source.read(".".join(path.parts[path.parts.index("src") + 1 :]).removesuffix(".py"), path)
    whole = ast.dump(source.tree)
    mutants = mutants_of(source)

    for mutant in mutants:
        change = mutant.change
        changed = source.changed(change)
        assert ast.dump(ast.parse(changed)) != whole, mutant.key
        assert changed.encode()[: change.start] == source.text[: change.start]
        assert changed.encode().endswith(source.text[change.end :])
    assert len({mutant.key for mutant in mutants}) == len(mutants)


@pytest.mark.parametrize(
    "text",
    [
        "def f(a: int | None = None) -> dict[str, int]:\n    pass",
        "def f(a, b):\n    return torch.minimum(a, b), math.gcd(a, b)",
        'def f(a):\n    return f"{a + 1}"',
        "def f(a):\n    assert a > 1, a",
        "def f(a):\n    _logger.info(a)",
        "Alias = dict[str, int]",
        '__all__ = ["a"] + ["b"]',
        "if TYPE_CHECKING:\n    import torch",
        "@frozen(kw_only=True)\nclass A:\n    pass",
    ],
)
def test_what_no_contract_is_about_is_left_alone(text: str) -> None:
    """Types, texts, logs, assertions, decorators and the greater of two in another order have no mutants."""
    assert mutants_of(source_of(text)) == []


def test_places_beyond_ascii_are_found() -> None:
    """Positions are bytes: what stands before an edit may have letters of several."""
    source = source_of('NAME = "übergröße"; ROOM = 1024')
    (mutant,) = mutants_of(source)

    assert source.changed(mutant.change) == 'NAME = "übergröße"; ROOM = 1034\n'
