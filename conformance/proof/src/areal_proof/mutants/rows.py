"""Mutants that change one call of a backend: rows of a table, or one function each.

    breaks = breaking("train/reference", ReferenceTrainEngine)

    ROWS = breaks.rows(
        row("OneMicrobatchTold", "Reports one micro-batch, however many there were.", "train.step.report",
            train_step=gives(num_microbatches=1)),
        row("FirstStateKept", "Does not save over a state that is there.", "train.state.replaces",
            save_state=lambda original, path: original() if not path.exists() else None),
    )

    @breaks("load_state", "train.state.exact", row="exactly-once")
    def ScheduleForgotten(original: Original, self: ReferenceTrainEngine) -> None:
        \"\"\"Comes back with its schedule at the beginning.\"\"\"
        original()
        optimizer_of(self).steps = 0

A change names what it wants: arguments of the call, by the call's own names; `self`, the backend; and `original`, the
call it takes the place of, which is made as it came where it is given no arguments. `gives`, `given`, `before`,
`after`, `then`, `within`, `catches` and `on` are changes made of less: of the `result`, the arguments, an `error`.

Knows: how a subclass is made of a change.
Does not know: mutants that need a class of their own (`mutants.mutant`).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import attrs
from attrs import frozen

from areal_core.plugins.claims import Claim, unsupported
from areal_proof.mutants import Mutant, replacing

Original = Callable[..., Any]
"""The call a change takes the place of, bound to its backend. Any: of whatever signature."""

Part = tuple[str, type]
"""A class attribute whose class is broken in place of the backend's own: its name, and what it holds."""

Values = dict[str, Any]
"""What a change may name: `self`, the arguments of the call, and what else there is. Any: of whatever type."""


def _wanted(function: Callable[..., Any]) -> tuple[str, ...]:
    code = inspect.unwrap(function).__code__  # that of the function itself, where a decorator wraps it
    names: tuple[str, ...] = code.co_varnames[: code.co_argcount]
    return names


def _named(function: Callable[..., Any], values: Values, **others: Any) -> Any:
    """Call a function with what it names."""
    whole = {**values, **others}
    return function(*(whole[name] for name in _wanted(function)))


def _error(value: Any) -> BaseException | None:
    """Return the error that was returned to be raised, if it is one; a class stands for one without a word."""
    value = value() if isinstance(value, type) and issubclass(value, BaseException) else value
    return value if isinstance(value, BaseException) else None


def _evolved(whole: Any, fields: Mapping[str, Any], values: Values) -> Any:
    """Return it with other fields: values, or functions of what they name."""
    return attrs.evolve(whole, **{n: _named(v, values) if inspect.isfunction(v) else v for n, v in fields.items()})


def _nothing(_values: Values) -> None:
    """Change no argument."""


@frozen(kw_only=True)
class Change:
    """What is other before and after a call, so that it is the same for calls that are awaited."""

    first: Callable[[Values], None] = _nothing
    """Puts other arguments in place, or raises."""
    last: Callable[[Any, Values], Any] = lambda result, _values: result
    around: Callable[[Values], AbstractContextManager[None]] = lambda _values: nullcontext()
    caught: type[BaseException] | tuple[type[BaseException], ...] = ()
    handler: Callable[[BaseException, Values], Any] = lambda error, _values: error
    """Returns what is given for an error that was caught, or an error to raise."""
    functions: tuple[Any, ...] = ()
    """Those that name what they want."""

    def handled(self, error: BaseException, values: Values) -> Any:
        """Return what is given for an error.

        Raises:
            BaseException: what the handler returned, if that is one.
        """
        instead = self.handler(error, values)
        if (other := _error(instead)) is not None:
            raise other from (error if other is not error else error.__cause__)
        return instead


def gives(**fields: Any) -> Change:
    """Give the result with other fields."""
    return Change(
        last=lambda result, values: _evolved(result, fields, {**values, "result": result}),
        functions=tuple(fields.values()),
    )


def given(**fields: Any) -> Change:
    """Call with other fields of the first argument."""

    def first(values: Values) -> None:
        name = list(values)[1]
        values[name] = _evolved(values[name], fields, values)

    return Change(first=first, functions=tuple(fields.values()))


def after(change: Callable[..., Any]) -> Change:
    """Give what a function returns in place of the `result`."""
    return Change(last=lambda result, values: _named(change, values, result=result), functions=(change,))


def before(effect: Callable[..., Any]) -> Change:
    """Call a function first; an error it returns is raised."""

    def first(values: Values) -> None:
        if (error := _error(_named(effect, values))) is not None:
            raise error

    return Change(first=first, functions=(effect,))


def then(effect: Callable[..., Any]) -> Change:
    """Call a function afterwards; the `result` stays, unless an error is returned, which is raised."""

    def last(result: Any, values: Values) -> Any:
        if (error := _error(_named(effect, values, result=result))) is not None:
            raise error
        return result

    return Change(last=last, functions=(effect,))


def within(context: Callable[..., AbstractContextManager[None]]) -> Change:
    """Make the call inside of what a function returns."""
    return Change(around=lambda values: _named(context, values), functions=(context,))


@contextmanager
def put(whole: Any, **attributes: Any) -> Iterator[None]:
    """Give something other attributes, and take them back."""
    before = {name: getattr(whole, name) for name in attributes}
    for name, value in attributes.items():
        setattr(whole, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(whole, name, value)


Errors = type[BaseException] | tuple[type[BaseException], ...]


def catches(errors: Errors, handler: Callable[..., Any]) -> Change:
    """Give what a function returns in place of an `error`; one that it returns is raised instead."""

    def handled(error: BaseException, values: Values) -> Any:
        return _named(handler, values, error=error)

    return Change(caught=errors, handler=handled, functions=(handler,))


def on(errors: Errors, effect: Callable[..., Any]) -> Change:
    """Call a function where an `error` is raised, which goes on."""

    def handled(error: BaseException, values: Values) -> BaseException:
        _named(effect, values, error=error)
        return error

    return Change(caught=errors, handler=handled, functions=(effect,))


def without(*claims: str) -> Mapping[str, Claim]:
    """Return claims taken back."""
    return {claim: unsupported("this engine cannot") for claim in claims}


def changed(original: Callable[..., Any], change: Change | Callable[..., Any]) -> Callable[..., Any]:
    """Return the method that makes the change; it is awaited where the original is."""
    signature = inspect.signature(original)

    def bound(*args: Any, **kwargs: Any) -> inspect.BoundArguments:
        whole = signature.bind(*args, **kwargs)
        whole.apply_defaults()
        return whole

    def call(whole: inspect.BoundArguments) -> Any:
        if isinstance(change, Change):
            change.first(whole.arguments)
            return original(*whole.args, **whole.kwargs)

        def as_called(*args: Any, **kwargs: Any) -> Any:
            if args or kwargs:
                return original(whole.args[0], *args, **kwargs)
            return original(*whole.args, **whole.kwargs)

        return _named(change, whole.arguments, original=as_called)

    def method(*args: Any, **kwargs: Any) -> Any:
        whole = bound(*args, **kwargs)
        if not isinstance(change, Change):
            return call(whole)
        try:
            with change.around(whole.arguments):
                return change.last(call(whole), whole.arguments)
        except change.caught as error:
            return change.handled(error, whole.arguments)

    async def awaited(*args: Any, **kwargs: Any) -> Any:
        whole = bound(*args, **kwargs)
        if not isinstance(change, Change):
            result = call(whole)
            return await result if isinstance(result, Awaitable) else result
        try:
            with change.around(whole.arguments):
                return change.last(await call(whole), whole.arguments)
        except change.caught as error:
            return change.handled(error, whole.arguments)

    return functools.wraps(original)(awaited if inspect.iscoroutinefunction(original) else method)


def subclass(name: str, base: type, others: Mapping[str, Any]) -> type:
    """Return a class with calls changed and attributes of other values.

    Raises:
        AttributeError: there is no such call to change, or it has no argument that a change names.
    """
    body = dict(others)
    for key, other in others.items():
        if isinstance(other, Change) or inspect.isfunction(other):
            original = getattr(base, key, None)
            if not inspect.isfunction(original):
                raise AttributeError(f"{name} changes {key!r}, which is no call of {base.__name__}")
            known = {*inspect.signature(original).parameters, "original", "result", "error"}
            functions = other.functions if isinstance(other, Change) else (other,)
            strange = {n for one in functions if inspect.isfunction(one) for n in _wanted(one)} - known
            if strange:
                raise AttributeError(f"{name} names {sorted(strange)}, which {key!r} of {base.__name__} does not have")
            body[key] = changed(original, other)
    return type(name, (base,), body)


@frozen(kw_only=True)
class Row:
    """One mutant, but for what its table says of all of them."""

    name: str
    defect: str
    killers: tuple[str, ...]
    others: Mapping[str, Any]
    """Changes of calls, and values of attributes. Any: of whatever type."""
    base: type | None
    part: Part | None
    ranks: int
    more: Mapping[str, Any]
    """`incident`, `row` and `claims`. Any: as `Mutant` has them."""


_ABOUT = ("incident", "row", "claims")


def row(
    name: str,
    defect: str,
    *killers: str,
    base: type | None = None,
    part: Part | None = None,
    ranks: int = 0,
    **others: Any,  # Any: changes, values of attributes, and what `Mutant` calls `incident`, `row` and `claims`
) -> Row:
    """Say what is broken, who must find it, and what is other than in the class it is made of.

    `base`, `part` and `ranks` are those of the table unless they are given.
    """
    more = {key: others.pop(key) for key in _ABOUT if key in others}
    return Row(name=name, defect=defect, killers=killers, others=others, base=base, part=part, ranks=ranks, more=more)


@frozen(kw_only=True)
class Breaking:
    """Makes mutants of one backend: of a function, as a decorator, or of the rows of a table."""

    of: str
    base: type
    part: Part | None
    side: str
    ranks: int

    def __call__(self, call: str, *killers: str, **more: Any) -> Callable[[Callable[..., Any]], Mutant]:
        """Mark a function as the change of a call. Its name is the mutant's, its docstring's first line the defect.

        `more` is as for `row`. Any: likewise.
        """

        def mark(change: Callable[..., Any]) -> Mutant:
            defect = (inspect.getdoc(change) or "").partition("\n")[0]
            one = row(change.__name__, defect, *killers, **more)
            return self._mutant(attrs.evolve(one, others={**one.others, call: change}))

        return mark

    def rows(self, *table: Row) -> tuple[Mutant, ...]:
        """Return the mutants of a table."""
        return tuple(map(self._mutant, table))

    def _mutant(self, one: Row) -> Mutant:
        base, part, others = one.base or self.base, one.part or self.part, one.others
        if part is not None:
            others = {part[0]: subclass(f"{one.name}Part", part[1], others)}
        more = dict(one.more)
        breaks = replacing(self.side or self.of.partition("/")[0], subclass(one.name, base, others),
                           claims=more.pop("claims", None))  # fmt: skip
        assert one.defect, f"mutant {one.name} does not say what is wrong with it"
        return Mutant(name=one.name, of=self.of, defect=one.defect, killers=one.killers, ranks=one.ranks or self.ranks,
                      breaks=breaks, **more)  # fmt: skip


def breaking(of: str, base: type, *, part: Part | None = None, side: str = "", ranks: int = 1) -> Breaking:
    """Break the backend `of`, made as `base`, or as `base` with a part of it broken; `side` is its role in a pair."""
    return Breaking(of=of, base=base, part=part, side=side, ranks=ranks)
