"""What the source of a plugin must not hold, and what building it must not do."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TypeVar

import attrs

from areal_conformance.benches.static import StaticBench
from areal_conformance.check import Level, check
from areal_conformance.outcome import expect

_UNPICKLE = ("pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve")
_ANY_HOST = ("0.0.0.0", "::", "tcp://*", "tcp://0.0.0.0")
_WORDS = {"find", "join", "partition", "removeprefix", "removesuffix", "replace", "rpartition", "rsplit", "split"}
N = TypeVar("N", ast.Call, ast.Constant, ast.FunctionDef, ast.AsyncFunctionDef, ast.ExceptHandler)


@check("static.source.no_pickle", level=Level.STATIC, law=11, spec="index#law-by-law")
def no_pickle(bench: StaticBench) -> None:
    """The plugin unpickles nothing: no pickle module, no torch.load that could run code."""
    found = [f"{path.name}:{line}: {what}" for path, tree in bench.sources() for line, what in _unpicklings(tree)]
    expect(not found, "; ".join(found))


@check("static.source.no_remote_code", level=Level.STATIC, law=11, spec="index#law-by-law")
def no_remote_code(bench: StaticBench) -> None:
    """No code is run that came with a model: `trust_remote_code` is never switched on in the source."""
    found = [where for where, node in _nodes(bench, ast.Call) if any(map(_switched_on, node.keywords))]
    expect(not found, f"trust_remote_code=True at {', '.join(found)}")


@check("static.source.loopback", level=Level.STATIC, law=11, spec="index#law-by-law")
def loopback(bench: StaticBench) -> None:
    """Nothing listens on every interface unless a user asks for it."""
    found = []
    for path, tree in bench.sources():
        between = _between_words(tree)
        texts = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and _is_any_host(node.value)]
        found += [f"{path.name}:{text.lineno}: {text.value!r}" for text in texts if text not in between]
    expect(not found, f"addresses of every interface in the source: {'; '.join(found)}")


@check("static.source.no_not_implemented", level=Level.STATIC, law=8, spec="index#optional-abilities")
def no_not_implemented(bench: StaticBench) -> None:
    """An ability that is absent has no method; none is there only to raise NotImplementedError."""
    methods: list[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]] = []
    methods += [*_nodes(bench, ast.FunctionDef), *_nodes(bench, ast.AsyncFunctionDef)]
    found = [f"{where}: {node.name}" for where, node in methods if _only_raises_not_implemented(node)]
    expect(not found, "; ".join(found))


@check("static.source.no_swallowing", level=Level.STATIC, law=9, spec="errors")
def no_swallowing(bench: StaticBench) -> None:
    """No handler of every exception passes over what it caught."""
    handlers = _nodes(bench, ast.ExceptHandler)
    found = [where for where, node in handlers if _catches_all(node) and _does_nothing(node)]
    expect(not found, f"`except Exception: pass` at {', '.join(found)}")


@check("static.build.cheap", level=Level.STATIC, law=10, spec="index")
def build_cheap(bench: StaticBench) -> None:
    """Building an instance starts no process, takes no port and leaves no file; `start` does."""
    folder = bench.folder / "building"
    folder.mkdir()
    code = (
        "import os, pathlib\n"
        "import psutil\n"
        "from areal_conformance.benches.process import listening\n"
        "from areal_conformance.target import Locator, locate\n"
        "from areal_conformance.adapter import Case\n"
        f"target = locate(Locator(**{attrs.asdict(bench.target.locator)!r}))\n"
        "target.registry.load(target.role, target.name)\n"
        "me = psutil.Process()\n"
        "def seen():\n"
        "    return len(me.children(recursive=True)), len(listening())\n"
        f"folder = pathlib.Path({str(folder)!r})\n"
        "os.chdir(folder)\n"
        "before = seen()\n"
        "case = Case(role=target.role, device=target.locator.device, folder=folder, options=target.options(),\n"
        "            make=lambda given: target.registry.build(target.role, target.name, given))\n"
        "engine = target.adapter.build(case)\n"
        "after = seen()\n"
        "left = [p.name for p in folder.iterdir()]\n"
        "print(json.dumps([before, after, left]), flush=True)\n"
        "os._exit(0)"
    )
    bench.factory()
    before, after, left = bench.python(code)
    expect(after[0] <= before[0], f"building started {after[0] - before[0]} processes")
    expect(after[1] <= before[1], f"building listens on {after[1] - before[1]} ports")
    expect(not left, f"building left {', '.join(left)} in the working folder")


def _between_words(tree: ast.Module) -> set[ast.AST]:
    """Return each "::" that texts are cut at, joined with or looked through for: it stands between other names, too."""
    found: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _WORDS:
            found |= {node.func.value, *node.args}
        elif isinstance(node, ast.JoinedStr):
            found |= set(node.values[1:])
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
            found.add(node.left)
    return {node for node in found if isinstance(node, ast.Constant) and node.value == "::"}


def _is_any_host(value: object) -> bool:
    return isinstance(value, str) and (value.strip() in _ANY_HOST or value.strip().removesuffix(":") in _ANY_HOST)


def _nodes(bench: StaticBench, kind: type[N]) -> list[tuple[str, N]]:
    """Return the nodes of a kind in the plugin's source, and where each stands."""
    nodes = ((path, node) for path, tree in bench.sources() for node in ast.walk(tree))
    return [(f"{path.name}:{node.lineno}", node) for path, node in nodes if isinstance(node, kind)]


def _unpicklings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, a.name) for a in node.names if a.name.partition(".")[0] in _UNPICKLE)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in _UNPICKLE:
            yield node.lineno, node.module or ""
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("torch.load", "np.load", "numpy.load"):
            safe = {"torch.load": ("weights_only", True)}.get(ast.unparse(node.func), ("allow_pickle", False))
            given = {word.arg: word.value for word in node.keywords}
            value = given.get(safe[0])
            unsafe = (isinstance(value, ast.Constant) and value.value is not safe[1]) or (
                value is None and safe[0] == "weights_only"
            )
            if unsafe:
                yield node.lineno, f"{ast.unparse(node.func)} without {safe[0]}={safe[1]}"


def _switched_on(word: ast.keyword) -> bool:
    return word.arg == "trust_remote_code" and not (isinstance(word.value, ast.Constant) and word.value.value is False)


def _only_raises_not_implemented(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    body = [line for line in node.body if not (isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant))]
    return len(body) == 1 and isinstance(body[0], ast.Raise) and "NotImplementedError" in ast.unparse(body[0])


def _catches_all(node: ast.ExceptHandler) -> bool:
    return node.type is None or ast.unparse(node.type) in ("Exception", "BaseException")


def _does_nothing(node: ast.ExceptHandler) -> bool:
    return all(isinstance(line, ast.Pass | ast.Continue) or _is_logging(line) for line in node.body)


def _is_logging(line: ast.stmt) -> bool:
    if not (isinstance(line, ast.Expr) and isinstance(line.value, ast.Call)):
        return False
    return ast.unparse(line.value.func).rpartition(".")[2] in ("debug", "info")
