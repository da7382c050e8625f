"""Run in a sandbox: a program in a process of its own, a test in this one, and a word that tells that the test passed.

    judge (this process)                                  player (forked before the test is read)
      the test, among stand-ins for the program's names ->  the program, its functions and objects
      compares the plain data that comes back           <-  results, errors, arguments that were changed

The player never holds the test, what it expects, or the word. Whatever a program prints, ends, overrides or pretends,
comparisons are made here, between plain data; an object of the program's own equals none.

Knows: how values, calls and errors cross a pair of pipes as JSON.
Does not know: where it runs. It needs Python 3.8 and its library, nothing of areal. Any: whatever a program makes.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib
import json
import numbers
import os
import sys
import types
from collections.abc import Mapping, Sequence
from typing import IO, Any, NoReturn


def _words(text: str) -> list[str]:
    return text.split()


PARSED = ("fractions.Fraction", "decimal.Decimal", "datetime.date", "datetime.datetime", "datetime.time")
"""Classes of the library whose objects cross as text."""
HARMLESS = _words("abs all any bin chr divmod hex len max min oct ord pow repr round sorted sum")
"""Functions that the judge may be handed."""
ASKED = _words("bool str repr hash iter reversed len next")
"""Done by the function of that name, others by the method."""
SPECIAL = ASKED + _words(
    "getitem setitem delitem int float index complex round abs neg pos invert enter exit add radd iadd sub rsub isub"
    " mul rmul imul truediv rtruediv floordiv rfloordiv mod rmod divmod pow rpow matmul and or xor"
)
MEASURING = _words("sub rsub truediv rtruediv floordiv rfloordiv mod rmod divmod")
"""What tests compare numbers by: an object of the program is not asked how far it is from one."""
COMPARED = {"eq": False, "ne": True, **dict.fromkeys(("lt", "le", "gt", "ge"), NotImplemented)}
"""Comparison -> what it gives between an object of the program and plain data."""


class Peer:
    """One end of the pipes. The judge's gives away no more than it was told to pass."""

    def __init__(self, asking: IO[bytes], telling: IO[bytes], judge: bool) -> None:
        self.asking, self.telling, self.judge = asking, telling, judge
        self.held: list[Any] = []
        self.numbers: dict[int, int] = {}
        self.classes: dict[int, Any] = {}
        self.raised: list[BaseException] = []
        """What the other end raised, which is no error of the test."""

    def send(self, message: list[Any]) -> None:
        self.telling.write(json.dumps(message).encode() + b"\n")
        self.telling.flush()

    def receive(self) -> list[Any]:
        """Return the next message; nothing if the other end is gone."""
        line = self.asking.readline()
        return list(json.loads(line)) if line.endswith(b"\n") else []

    def ask(self, *request: Any) -> list[Any]:
        """Have the other end do something; meanwhile it may ask back."""
        self.send(["do", *request])
        while True:
            kind, *rest = self.receive() or ["gone"]
            if kind == "did":
                return rest
            if kind == "raised":
                raise self.error(*rest)
            if kind != "do":
                raise EOFError("the program ended")
            self.serve(*rest)

    def serve(self, what: str, *request: Any) -> None:
        try:
            does: Any = {"call": self.call, "get": self.get, "set": self.set, "special": self.special}
            answer = ["did", *does[what](*request)]
        except BaseException as error:
            answer = ["raised", self.pack(type(error)), [self.pack(each) for each in error.args]]
        self.send(answer)

    def call(self, number: int, args: list[Any], named: dict[str, Any]) -> tuple[Any, ...]:
        """Return the result, and the arguments as the call left them if it changed any."""
        given = [self.unpack(each) for each in args]
        before = self.pack(given)
        result = self.held[number](*given, **{name: self.unpack(each) for name, each in named.items()})
        after = self.pack(given)
        return self.pack(result), None if before == after else after

    def get(self, number: int, name: str) -> tuple[Any, ...]:
        held = self.held[number]
        if self.judge and (name.startswith("_") or not self.passed_on(held)):
            raise AttributeError(name)
        return (self.pack(getattr(held, name)),)

    def set(self, number: int, name: str, value: Any) -> tuple[Any, ...]:
        held = self.held[number]
        if self.judge and (name.startswith("_") or not self.passed_on(held)):
            raise AttributeError(name)
        setattr(held, name, self.unpack(value))
        return (None,)

    @staticmethod
    def passed_on(held: Any) -> bool:
        """Whether its attributes are for the program to see: of a class of the test, a stream, random numbers.

        Those of a function, a frame or a traceback lead to everything.
        """
        return (held if isinstance(held, type) else type(held)).__module__ in ("test", "_io", "random")

    def special(self, number: int, name: str, args: list[Any]) -> tuple[Any, ...]:
        held = self.held[number]
        if name in ASKED:
            return (self.pack(getattr(builtins, name)(held)),)
        if name in ("contains", "instance"):
            item = self.unpack(args[0])
            return ((item in held) if name == "contains" else isinstance(item, held),)
        if name not in SPECIAL and name not in COMPARED:
            raise AttributeError(name)
        return (self.pack(getattr(type(held), f"__{name}__")(held, *map(self.unpack, args))),)

    def pack(self, value: Any) -> Any:
        """Return plain data as JSON, and the number of anything else."""
        kind = type(value)
        if value is None or kind in (bool, str):
            return value
        if kind is types.TracebackType:
            return None
        if kind is Far:
            return ["yours", far(value)[1]]
        if isinstance(value, type):
            return self.pack_type(value)
        for base in (int, float, complex, str, bytes, bytearray):
            if isinstance(value, base):
                return pack_plain(base, value)
        several: Any
        for several in (list, set, frozenset):
            if isinstance(value, several):
                return [several.__name__, [self.pack(each) for each in several.__iter__(value)]]
        if isinstance(value, dict):
            return ["dict", [[self.pack(key), self.pack(each)] for key, each in dict.items(value)]]
        items = [self.pack(each) for each in tuple.__iter__(value)] if isinstance(value, tuple) else []
        if kind is tuple:
            return ["tuple", items]
        if f"{kind.__module__}.{kind.__qualname__}" in PARSED:
            return ["parsed", f"{kind.__module__}.{kind.__qualname__}", str(value)]
        if kind.__module__ == "numpy" and getattr(value, "shape", None) == ():
            return self.pack(value.item())
        if is_builtin(value):
            return ["builtin", value.__name__]
        return ["mine", self.hold(value), ["tuple", items] if isinstance(value, tuple) else None]

    def pack_type(self, kind: Any) -> Any:
        if is_builtin(kind):
            return ["builtin", kind.__name__]
        if issubclass(kind, BaseException):
            base = next(each.__name__ for each in kind.__mro__ if is_builtin(each))
            return ["error", self.hold(kind), kind.__name__, base]
        return ["mine", self.hold(kind), None]

    def hold(self, value: Any) -> int:
        if id(value) not in self.numbers:
            self.numbers[id(value)] = len(self.held)
            self.held.append(value)
        return self.numbers[id(value)]

    def unpack(self, packed: Any) -> Any:
        if not isinstance(packed, list):
            return packed
        kind, *rest = packed
        if kind in ("list", "tuple", "set", "frozenset"):
            return getattr(builtins, kind)([self.unpack(each) for each in rest[0]])
        if kind == "dict":
            return {self.unpack(key): self.unpack(each) for key, each in rest[0]}
        if kind == "int":
            return int(rest[0], 16)
        if kind in ("bytes", "bytearray"):
            return getattr(builtins, kind).fromhex(rest[0])
        if kind == "complex":
            return complex(*rest)
        if kind == "parsed" and rest[0] in PARSED:
            module, _, name = rest[0].partition(".")
            made = getattr(importlib.import_module(module), name)
            return getattr(made, "fromisoformat", made)(rest[1])
        if kind == "builtin":
            found = getattr(builtins, rest[0])
            if self.judge and not isinstance(found, type) and rest[0] not in HARMLESS:
                raise ValueError(rest[0])
            return found
        if kind == "yours":
            return self.held[rest[0]]
        return self.error_class(*rest) if kind == "error" else Far(self, *rest)

    def error_class(self, number: int, name: str, base: str) -> Any:
        """Return a stand-in for an error class of the other end, always the same one."""
        if number not in self.classes:
            self.classes[number] = type(name, (getattr(builtins, base),), {})
        return self.classes[number]

    def error(self, packed: Any, args: Sequence[Any]) -> BaseException:
        """Return what the other end raised."""
        kind = self.unpack(packed)
        known = kind if isinstance(kind, type) and issubclass(kind, BaseException) else RuntimeError
        try:
            error = known(*map(self.unpack, args))
        except TypeError:  # it takes other arguments than it keeps
            error = RuntimeError(known.__name__)
        self.raised.append(error)
        return error


class Far:
    """An object of the other end."""

    __slots__ = ("_far",)

    def __init__(self, peer: Peer, number: int, plain: Any = None) -> None:
        object.__setattr__(self, "_far", (peer, number, peer.unpack(plain)))

    def __call__(self, *args: Any, **named: Any) -> Any:
        peer, number, _plain = far(self)
        given = [peer.pack(each) for each in args], {name: peer.pack(each) for name, each in named.items()}
        result, after = peer.ask("call", number, *given)
        for mine, theirs in zip(args, after[1] if after else ()):  # noqa: B905  (Python 3.8)
            renew(mine, peer.unpack(theirs))
        return peer.unpack(result)

    def __getattr__(self, name: str) -> Any:
        peer, number, _plain = far(self)
        return peer.unpack(peer.ask("get", number, name)[0])

    def __setattr__(self, name: str, value: Any) -> None:
        peer, number, _plain = far(self)
        peer.ask("set", number, name, peer.pack(value))

    def __contains__(self, item: Any) -> bool:
        """Look through it; ask it only where that cannot be done."""
        peer, number, plain = far(self)
        try:
            items: Any = self if plain is None else plain
            return any(each is item or each == item for each in items)
        except TypeError:
            return bool(peer.ask("special", number, "contains", [peer.pack(item)])[0])

    def __instancecheck__(self, instance: Any) -> bool:
        peer, number, _plain = far(self)
        return bool(peer.ask("special", number, "instance", [peer.pack(instance)])[0])


def far(value: Far) -> tuple[Peer, int, Any]:
    found: tuple[Peer, int, Any] = object.__getattribute__(value, "_far")
    return found


def special(name: str) -> Any:
    def method(self: Far, *args: Any) -> Any:
        peer, number, _plain = far(self)
        if peer.judge and name in MEASURING and isinstance(args[0], numbers.Number):
            return NotImplemented
        return peer.unpack(peer.ask("special", number, name, [peer.pack(each) for each in args])[0])

    return method


def comparison(name: str, otherwise: Any) -> Any:
    asked = special(name)

    def method(self: Far, other: Any) -> Any:
        plain = far(self)[2]
        if isinstance(other, Far):
            return asked(self, other)
        return otherwise if plain is None else getattr(plain, f"__{name}__")(other)

    return method


for each in SPECIAL:
    setattr(Far, f"__{each}__", special(each))
for each, otherwise in COMPARED.items():
    setattr(Far, f"__{each}__", comparison(each, otherwise))


def renew(mine: Any, theirs: Any) -> None:
    """Give a container the contents that a call left in it."""
    if type(mine) in (list, bytearray):
        mine[:] = theirs
    elif type(mine) in (dict, set):
        mine.clear()
        mine.update(theirs)


def pack_plain(base: Any, value: Any) -> Any:
    if base in (bytes, bytearray):
        return [base.__name__, bytes(value).hex()]
    if base is complex:
        return ["complex", value.real, value.imag]
    if base is int:
        return ["int", hex(int.__index__(value))]
    return float.__float__(value) if base is float else str.__str__(value)


def is_builtin(value: Any) -> bool:
    name = getattr(value, "__name__", None)
    return isinstance(name, str) and getattr(builtins, name, None) is value


def run_program(path: str, module: str) -> dict[str, Any]:
    """Return the names of a program, which is the module of that name."""
    made = sys.modules[module] = types.ModuleType(module)
    made.__file__ = path
    sys.argv = [path]
    with open(path, encoding="utf-8") as file:  # noqa: PTH123  (nothing is imported that it does not need)
        exec(compile(file.read(), path, "exec"), made.__dict__)
    return made.__dict__


def play(path: str, module: str, peer: Peer) -> None:
    """Run a program and do what the judge asks for, until it asks no more."""
    peer.receive()  # from here on the judge cannot be looked into
    told = {}
    for name, value in run_program(path, module).items():
        source = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)
        if isinstance(value, types.ModuleType):
            told[name] = ["module", source]
        elif source != module and getattr(sys.modules.get(str(source)), name, None) is value:
            told[name] = ["import", source]
        elif not name.startswith("__"):
            told[name] = ["value", peer.pack(value)]
    peer.send(["names", told])
    while request := peer.receive():
        peer.serve(*request[1:])


def stand_ins(peer: Peer) -> dict[str, Any]:
    """Have the player begin; return what it says the program's names are. What was imported is imported here."""
    peer.send(["begin"])
    _kind, told = peer.receive() or ("gone", {})
    names = {}
    for name, (kind, value) in told.items():
        with contextlib.suppress(ImportError, AttributeError):
            if kind == "value":
                names[name] = peer.unpack(value)
            elif value != "__main__":
                found = importlib.import_module(value)
                names[name] = found if kind == "module" else getattr(found, name)
    return names


def separate(path: str, module: str) -> Peer:
    """Fork the player, and return the judge's end."""
    (asked, ask), (answered, answer) = os.pipe(), os.pipe()
    if os.fork() == 0:
        try:
            os.dup2(os.open(os.devnull, os.O_RDWR), 0)
            for number in range(3, 64):
                if number not in (asked, answer):
                    with contextlib.suppress(OSError):
                        os.close(number)
            play(path, module, Peer(os.fdopen(asked, "rb"), os.fdopen(answer, "wb"), judge=False))
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stderr.flush()
            os._exit(1)
    os.close(asked)
    os.close(answer)
    with contextlib.suppress(ImportError, OSError, AttributeError):
        import ctypes

        ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: no process of this user looks into this one
    return Peer(os.fdopen(answered, "rb"), os.fdopen(ask, "wb"), judge=True)


class Broken(Exception):
    """A test that cannot be run, whatever the program is."""


def run_tests(made: Sequence[Any]) -> None:
    """Run what a test only defines: functions without arguments called test..., and unittest's cases."""
    cases = [value for value in made if isinstance(value, type) and hasattr(value, "assertEqual")]
    if cases:
        import unittest

        suite = unittest.TestSuite(map(unittest.defaultTestLoader.loadTestsFromTestCase, cases))
        result = unittest.TextTestRunner(stream=sys.stderr).run(suite)
        assert result.testsRun and result.wasSuccessful()
    for value in made:
        if isinstance(value, types.FunctionType) and value.__name__.startswith("test"):
            if value.__code__.co_argcount > len(value.__defaults__ or ()):
                raise Broken(f"{value.__name__} takes arguments")
            value()


def main(path: str, module: str, apart: bool) -> None:
    """Read a word and a test; say the word if the program passes, `broken` behind it if it is the test's own fault."""
    told = os.dup(1)
    os.dup2(2, 1)
    peer = separate(path, module) if apart else None
    with os.fdopen(os.dup(0), "rb") as file:
        word, _, test = file.read().partition(b"\n")
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    try:
        code = compile(test, "test", "exec")
    except (SyntaxError, ValueError) as error:
        end(told, word, error)
    names = run_program(path, module) if peer is None else among(stand_ins(peer), module)
    before = dict(names)
    try:
        exec(code, names)
        run_tests([value for name, value in names.items() if before.get(name) is not value])
    except Broken as error:
        end(told, word, error)
    except ModuleNotFoundError as error:
        if peer is None or error in peer.raised or error.name == module:
            raise
        end(told, word, error)
    end(told, word)


def end(told: int, word: bytes, broken: Exception | None = None) -> NoReturn:
    """Say the word, and end before anything else is run."""
    sys.stdout.flush()
    os.write(told, word if broken is None else word + f" broken {broken}".encode(errors="replace"))
    os._exit(0)


def among(names: Mapping[str, Any], module: str) -> dict[str, Any]:
    """Return what a test finds: the names that are not Python's own, and a module with all of them to import."""
    sys.modules[module] = types.ModuleType(module)
    sys.modules[module].__dict__.update(names)
    return {"__name__": "test", **{name: value for name, value in names.items() if not hasattr(builtins, name)}}


main(sys.argv[1], sys.argv[2], sys.argv[3] == "apart")
