"""What a target tells the suite about itself, so that one check fits every backend.

A backend that needs nothing special needs no adapter: `Adapter()` is used. Otherwise its manifest
names one, `conformance="areal_mine.conformance:ADAPTER"`:

    ADAPTER = Adapter(
        models=("qwen3", "llama"),
        options={"deterministic": {"deterministic": True}},
        layouts=("d2", "t2"),
        tolerances={"train.forward.logprobs": Tolerance(atol=1e-2, why="bfloat16 accumulates in the kernel")},
        witness=MyWitness,
        faults=my_faults,
    )

Knows: what may differ between backends.
Does not know: any check, any backend.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from attrs import Factory, field, frozen, validators

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor


@frozen(kw_only=True)
class Tolerance:
    """How far two numbers may be apart: |a - b| <= atol + rtol * |b|.

    A backend's tolerance may only be looser than the check's own, and needs a reason.
    """

    atol: float = 0.0
    rtol: float = 0.0
    why: str = ""


@frozen(kw_only=True)
class Case:
    """What a check asks to be built. `options` are the backend's own, already merged with those of the adapter.

    `make(options)` builds through the registry, as a run would. `folder` is the check's own and empty.
    """

    role: str
    device: str
    make: Callable[[Mapping[str, Any]], Any]
    folder: Path
    options: Mapping[str, Any] = Factory(dict)
    rank: int = 0
    world_size: int = 1


@runtime_checkable
class Witness(Protocol):
    """Reads the state under test by another road than the contract's methods."""

    def tensors(self) -> Mapping[str, Tensor]:
        """Return the weights in use now, whole, on the CPU, under their Hugging Face names; tied ones once."""


@runtime_checkable
class Fault(Protocol):
    """One thing a backend can be made to suffer."""

    def inject(self) -> None:
        """Let it happen from now on."""

    def heal(self) -> None:
        """Let it happen no more. Idempotent; called after every check that injected it."""

    def fired(self) -> int:
        """Return how often it took effect. A fault that never fired makes its check inconclusive."""


COUNTED = ("logits", "tokens", "prompt", "length", "requests", "bytes", "saved")
"""What a threshold counts: scored tokens times vocabulary, and tokens, of one micro-batch; tokens of a prompt, and of a
prompt and its output; requests at once; bytes of a tensor that is sent; bytes of a weight file that is saved."""


@frozen(kw_only=True)
class Threshold:
    """A size at which a backend goes another way: a chunk is full, a table grows, a result is no longer kept.

        Threshold(counts="prompt", at=7, options={"prefill_tokens": 7})
        Threshold(counts="logits", at=320, place="areal_mine.head:CHUNK")

    Checks make one less, as many, one more, and twice as many and one. Where that would be too many for a check, the
    size is made small meanwhile: by the backend's own `options`, or by `place`, `module:NAME` of the number in the
    source. It is set to `at` in the process that asks for the work, and must be read when it is used; a tuple of sizes
    to choose from is set to that one.
    """

    counts: str = field(validator=validators.in_(COUNTED))
    at: int = field(validator=validators.ge(2))
    options: Mapping[str, Any] = Factory(dict)
    place: str = ""


@frozen(kw_only=True)
class Variant:
    """Options under which checks are made again, for they must change what they say and nothing else.

    Variant(options={"backing": "file"}, shows=where_it_lies)
    Variant(options={"stages_per_rank": 2}, layouts=("p2",), model={"layers": 4}, shows=num_stages)
    """

    options: Mapping[str, Any]
    shows: Callable[[Any], Any] | None = None
    """Given what was built, a started engine or another plugin, with these options and once without: what they do, as
    anything that can be compared. It must differ. May be a coroutine function. With layouts each rank of the first
    one is given its own, and what it returns must be plain JSON. Any: the role decides."""
    gives: Any = None
    """What `shows` returns with these options, where that is known: so an effect that is half of what is said is seen.
    Any: as it returns."""
    unseen: str = ""
    """Why nothing that is built shows what they do. One of this and `shows` is asked of every variant."""
    again: bool = True
    """Whether checks are made again with them; not where they end what takes its time."""
    checks: tuple[str, ...] = field(default=(), converter=tuple[str, ...])
    """Ids of more checks to make again than those every variant gets."""
    layouts: tuple[str, ...] = field(default=(), converter=tuple[str, ...])
    """Of a trainer: layouts of two ranks, or of four, on which they mean something; none are for one rank."""
    model: Mapping[str, Any] = Factory(dict)
    """Of a trainer on such a layout: arguments of `make_tiny_model`. Any: they are numbers and words."""


@frozen(kw_only=True)
class Bounds:
    """Where an option ends: it takes these values and refuses those, by its name, before anything is built.

    Bounds(takes=(0.0,), refuses=(-1.0, "soon"))
    """

    takes: tuple[Any, ...] = field(default=(), converter=tuple[Any, ...])
    """Any: as they stand in yaml."""
    refuses: tuple[Any, ...] = field(default=(), converter=tuple[Any, ...])


@frozen(kw_only=True)
class Scoring:
    """What a workflow asks its session's reward, and what that makes its trajectories worth.

    Scoring(adds=("task",), worth=lambda value: (4 * value * (1 - value), value))
    """

    asks: bool = True
    """Whether it asks its session for a reward at all. One whose environment tells it what an episode is worth does
    not: what is asked of rewards is skipped then, and one that it asks for all the same fails."""
    adds: tuple[str, ...] = field(default=(), converter=tuple[str, ...])
    """Columns that the reward is told beside those of the row. With some, the prompt it is told is what was asked."""
    worth: Callable[[float], tuple[float, ...]] = lambda value: (value,)
    """The rewards that trajectories of an episode have where each reward it asked for is this one: all of them occur,
    and no other."""


@frozen(kw_only=True)
class Promise:
    """Bounds of one figure of level 5: outside them its check fails. A figure without a promise is told only.

    Promise(at_least=0.9)
    """

    at_least: float = -math.inf
    at_most: float = field(default=math.inf)

    @at_most.validator
    def _some_are_within(self, _attribute: object, value: float) -> None:
        if not self.at_least <= value:
            raise ValueError(f"no figure is {self.at_least:g} or more and {value:g} or less")

    def __str__(self) -> str:
        """Return it in words."""
        ends = {f"{self.at_least:g} or more": self.at_least, f"{self.at_most:g} or less": self.at_most}
        return " and ".join(words for words, end in ends.items() if math.isfinite(end)) or "anything"


def _build(case: Case) -> Any:
    return case.make(case.options)


@frozen(kw_only=True)
class Adapter:
    """All a backend may have to say. Every field has a default that fits most."""

    build: Callable[[Case], Any] = _build
    """Returns the engine, scheduler, transport, workflow, endpoint or renderer, not started. Any: the role decides."""
    witness: Callable[[Any], Witness | None] = lambda _: None
    """Given a started engine. A trainer without one is witnessed by the folder it saves. An inference engine without
    one is judged by what it computes; the one check that reads its weights is inconclusive, the verdict `partial`."""
    faults: Callable[[Any], Mapping[str, Fault]] = lambda _: {}
    """Given a started engine: its own faults by name. Those of transport, clock, processes and disk are the suite's."""
    tolerances: Mapping[str, Tolerance] = Factory(dict)
    """Check id -> looser tolerance."""
    options: Mapping[str, Mapping[str, Any]] = Factory(dict)
    """Claim -> the options that switch the ability on; "" -> options for every check. `weights.kv_recomputed`, the
    opposite of the claim `weights.kv_kept`, may have options too."""
    models: tuple[str, ...] = field(default=("qwen3",), converter=tuple[str, ...])
    """Kinds of tiny model (`areal_torch.testing.models`) it takes; the first is the default."""
    architectures: tuple[str, ...] = field(default=(), converter=tuple[str, ...])
    """Families it takes beside `models`, by `model_type`, of those the zoo has (`zoo.architectures.ARCHITECTURES`)."""
    traits: tuple[str, ...] = field(default=(), converter=tuple[str, ...])
    """What not every backend can do with a family it takes (`zoo.traits.TRAITS`): `rope.yarn`, `window`, ... Models of
    other families, and with other traits, it refuses when it starts, or computes right."""
    tiny: Mapping[str, Any] = Factory(dict)
    """Arguments of `make_tiny_model` that hold for every tiny model: kernels that take heads of certain sizes only.
    Any: they are numbers."""
    dtypes: tuple[str, ...] = field(default=("float32",), converter=tuple[str, ...])
    """Dtypes it runs in here; the first is the default. Without float32 every parity tolerance widens to that dtype."""
    layouts: tuple[str, ...] = field(default=("d2",), converter=tuple[str, ...])
    """Parallel layouts to be checked on several ranks, in the grammar of backend strings."""
    anchors: tuple[str, ...] = field(default=(), converter=tuple[str, ...])
    """`module:attribute` of every private place of its engine the plugin hooks into; each must still be there."""
    thresholds: tuple[Threshold, ...] = field(default=(), converter=tuple[Threshold, ...])
    """Sizes at which it goes another way. Without one, checks cross a size that real work crosses, where they can."""
    no_threshold: Mapping[str, str] = Factory(dict)
    """`module:NAME` -> why no threshold names this number of its source: it bounds waiting, or memory, or what is sent
    at once. With one, every integer in capitals that the source decides by is here or is the place of a threshold."""
    variants: Mapping[str, Variant] = Factory(dict)
    """Options that checks are made again with, by a name for messages."""
    bounds: Mapping[str, Bounds] = Factory(dict)
    """Option -> the last values it takes, and the first it refuses."""
    promises: Mapping[str, Promise] = Factory(dict)
    """Figure of level 5, by its name in the report -> the bounds you promise: `step of a plain loop / step`, ...
    Whoever makes a run may set others (`--bounds`)."""
    without_effect: Mapping[str, str] = Factory(dict)
    """Option -> why no variant has it: what it changes is speed, waiting, or seen nowhere here. With variants, every
    option of the config class is in one, in `options`, in a threshold, or here."""
    folders: Mapping[str, Mapping[str, Any]] = Factory(dict)
    """Of a transport: option that names a folder -> the other options it needs to be used. Any: as in yaml."""
    rows: tuple[Mapping[str, Any], ...] = field(
        default=({"prompt": "stone>", "answer": "enots"}, {"prompt": "abacab>", "answer": "bacaba"}),
        converter=tuple[Mapping[str, Any], ...],
    )
    """Rows a workflow makes episodes from, at least two, all different, of the characters a-z, ">" and "-".
    A column `prompt` is text the policy is asked with; name other things otherwise. Any: the workflow decides."""
    scoring: Scoring = Factory(Scoring)
    """Of a workflow: what it asks rewards for, where that is not the row's own prompt, and what they are worth."""
    tokenizers: tuple[str, ...] = field(default=(), converter=tuple[str, ...])
    """Tokenizers a renderer is bound to: kinds of tiny ones of the suite (`probes.tokenizers`: `chatml`, `thinking`,
    `bare`, and `opening`, whose prompts open the thoughts), or a function that returns one, for templates of your own:
    `module:function`, or `module:function:argument`. None named: those of the first three that it binds."""
    patience: float = 1.0
    """Multiplies every deadline: engines that take minutes to start."""
    reuse: bool = True
    """Whether one started inference engine may serve many checks; at rest, with its weights restored."""
    slow_start: bool = False
    """Whether a start costs so much that more engines are kept, and pair checks too share theirs, weights restored.
    Its checks are made one at a time unless `--jobs` says otherwise: processes beside each other share nothing."""
