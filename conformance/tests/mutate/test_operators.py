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
    "argument": (
        "def f(a, b):\n    return g(a, b.c), h(x=a, y=b.c, n=1)",
        {"g(b.c, a)", "h(x=b.c, y=a, n=1)"},
    ),
    "group": (
        "import torch\ndef f(x, ranks):\n    reduce(x, group=ranks.tensor)\n    reduce(x, group=ranks.data)",
        {"reduce(x, group=None)", "ranks.data", "ranks.tensor"},
    ),
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


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (
            "class A:\n    def f(self, x):\n        add(x, self._tp_group)\n"
            "    def g(self, x):\n        add(x, self._dp_group)",
            {"self._dp_group", "self._tp_group", "add(x, None)"},
        ),
        ("def f(x, mine, group):\n    add(x, group=mine, n=group)", {"group", "mine", "add(x, group=None, n=group)"}),
        (
            "def f(x, m):\n    add(m.get_group(0), m.get_group(1))",
            {"m.get_group(0)", "m.get_group(1)", "add(None, m.get_group(1))", "add(m.get_group(0), None)"},
        ),
        ("def f(x, group):\n    add(x, group=group)", {"add(x, group=None)"}),
        ("def f(x, group):\n    add(x, group)\n    late_group = 1\n    return late_group", {"add(x, None)", "group"}),
        ("def f(x):\n    return x.data, torch.tensor(x), dist.group.WORLD, match.group(1)", set()),
    ],
)
def test_groups_of_ranks_are_taken_for_each_other(text: str, wanted: set[str]) -> None:
    """By keyword, name or axis; of one owner first; never a name that has no value yet."""
    found = {m.key.after for m in mutants_of(source_of(f"import torch\n{text}")) if m.key.operator == "group"}

    assert wanted == found


def test_groups_without_torch_are_of_something_else() -> None:
    """A module that knows no tensors has groups of episodes, or of text."""
    assert mutants_of(source_of("def f(group, other_group):\n    return other_group")) == []


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (
            "import torch.distributed as dist\ndist.all_reduce(x, group=g)",
            "dist.all_reduce(x, group=g, op=dist.ReduceOp.MAX)",
        ),
        ("from torch import distributed as d\nd.all_reduce(x,)", "d.all_reduce(x, op=d.ReduceOp.MAX,)"),
        (
            "import torch\ntorch.distributed.reduce(x, 0)",
            "torch.distributed.reduce(x, 0, op=torch.distributed.ReduceOp.MAX)",
        ),
        ("from torch.distributed import ReduceOp as Op, all_reduce\nall_reduce(x)", "all_reduce(x, op=Op.MAX)"),
        (
            "from torch import distributed as d\n_REDUCE_SCATTER: Any = d.reduce_scatter_tensor\n_REDUCE_SCATTER(x, y)",
            "_REDUCE_SCATTER(x, y, op=d.ReduceOp.MAX)",
        ),
        (
            "def f(x):\n    import torch.distributed as dist\n    dist.all_reduce(x)",
            "dist.all_reduce(x, op=dist.ReduceOp.MAX)",
        ),
        ("import torch.distributed as dist\ndist.all_reduce(x, dist.ReduceOp.SUM)", "dist.ReduceOp.MAX"),
        ("import torch.distributed as dist\ndist.all_reduce(x, **more)", None),
        ("import torch.distributed as dist\ndist.all_reduce(x, Op.S, g)", None),
        ("import torch.distributed as dist\ndist.broadcast(x, 0)", None),
        ("from torch.distributed import all_reduce\nall_reduce(x)", None),
        ("if TYPE_CHECKING:\n    import torch.distributed as dist\ndist.all_reduce(x)", None),
        ("import functools\nfunctools.reduce(f, x)", None),
    ],
)
def test_a_sum_over_ranks_that_is_not_written_is_reduced_otherwise(text: str, wanted: str | None) -> None:
    """The operation is put in by the name the module has for it; nothing where it has none, or where one is said."""
    found = [m.key.after for m in mutants_of(source_of(text)) if m.key.operator == "reduction"]

    assert found == ([] if wanted is None else [wanted])


def test_places_beyond_ascii_are_found() -> None:
    """Positions are bytes: what stands before an edit may have letters of several."""
    source = source_of('NAME = "übergröße"; ROOM = 1024')
    (mutant,) = mutants_of(source)

    assert source.changed(mutant.change) == 'NAME = "übergröße"; ROOM = 1034\n'
