"""What the core asks kits and plugins for: one object per name, found through an entry point.

    [areal.extension]
    images = areal_torch.image_support:IMAGES          # in the metadata of the package that offers it

Knows: the names, and the protocol each object satisfies.
Does not know: who offers one. Without an offer the core goes on without, or refuses what needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from areal_core.contract.errors import ArealError, EngineMissing, PluginError
from areal_core.plugins.install import pip_install
from areal_core.plugins.manifest import Manifest

if TYPE_CHECKING:
    from rich.console import Console
    from torch import Tensor

    from areal_core.contract.batch import Batch
    from areal_core.contract.data import Episode, Trajectory
    from areal_core.contract.train import LoraSpec, Sum
    from areal_core.contract.workflow import RewardInput, RewardResult
    from areal_core.plugins.registry import Registry

GROUP = "areal.extension"
_OFFERED_BY = {
    "adapter_config": "areal-torch",
    "algorithm_checks": "areal-algorithms",
    "balance": "areal-algorithms",
    "columns": "areal-algorithms",
    "presets": "areal-algorithms",
    "environments": "areal-serving",
    "images": "areal-torch[images]",
    "machine": "areal-config",
    "profile": "areal-torch",
    "proof": "areal-conformance-proof",
    "rewards": "areal-core[local]",
    "rollout_processes": "areal-core[rollouts]",
    "trainer": "areal-core[quickstart]",
    "watch": "areal-report",
}


class EnginePython(Protocol):
    """An interpreter that has an engine. `str()` of it says which engine, which version, and where.

    `engine` is the module to import; `engine_version` is empty where the engine has no metadata, as in a source
    checkout; `origin` is `named`, `this interpreter` or `environment`; `warnings` say why it may not be what the plugin
    was tested with, each with what to do; `create_command` makes its environment.
    """

    @property
    def path(self) -> Path: ...
    @property
    def device(self) -> str: ...
    @property
    def engine(self) -> str: ...
    @property
    def engine_version(self) -> str: ...
    @property
    def origin(self) -> str: ...
    @property
    def warnings(self) -> tuple[str, ...]: ...
    @property
    def create_command(self) -> str: ...


class EngineEnvironments(Protocol):
    """Extension `environments`: which interpreter runs an engine that has an environment of its own."""

    def find(
        self, manifest: Manifest, device: str, *, python: str | None = None, worker: str | None = None
    ) -> EnginePython:
        """Return `python` if it is named, else `worker` (this one if None) if it has the engine, else what was made.

        Raises EngineMissing: no interpreter has the engine; names the places and the command that makes one.
        """


class ImageReader(Protocol):
    """The images of rows as files. One per workflow; threads may share it."""

    def read(self, value: object, folder: Path, where: str) -> tuple[bytes, ...]:
        """Return the images of one row as PNG or JPEG files, read once for all members of its group.

        Raises DatasetError: one is of an unknown type, missing, or no image; `where` names the row.
        """


class ImagePreparer(Protocol):
    """Makes trajectories with images ready for training. One per run; threads may share it."""

    def prepare(self, trajectory: Trajectory) -> Trajectory:
        """Return the trajectory with its images as media and its placeholders widened."""


class ImageModel(Protocol):
    """The facts of a model folder that decide about images; `image_token_id` None means it takes none."""

    @property
    def path(self) -> Path: ...
    @property
    def architecture(self) -> str: ...
    @property
    def model_type(self) -> str: ...
    @property
    def image_token_id(self) -> int | None: ...


class ImageSupport(Protocol):
    """Extension `images`: what a run of a policy that takes images needs."""

    def check_role(
        self, name: str, role: str, backend: str, model: ImageModel, registry: Registry, device: str
    ) -> None:
        """Refuse a backend that cannot take a model's images; `name` is the run's role, `role` is `train` or `infer`.

        Raises CapabilityError (not claimed), PlanError (a critic) or ModelError (no token stands for an image).
        """

    def check_processor(self, model: ImageModel) -> None:
        """Refuse a model whose images could not be prepared for training; a model without images passes.

        Raises ModelError (an unknown kind, or no image processor) or EngineMissing (nothing decodes images here).
        """

    def parts(self, messages: Sequence[Mapping[str, Any]], count: int, marker: str) -> list[Mapping[str, Any]]:
        """Return a conversation whose messages say where its `count` images stand. Any: as in chat templates."""

    def reader(self, limit: int) -> ImageReader:
        """Return a reader that keeps the images of the last `limit` rows."""

    def preparer(self, folder: Path, *, max_tokens: int) -> ImagePreparer | None:
        """Return the preparer of a model folder, None if the model takes no images."""


class ModelHub(Protocol):
    """Extension `hub`: models that are named as on the Hugging Face hub, where a run could name a folder."""

    def pinned(self, config: object) -> Any:
        """Return a RunConfig with a commit in every name on the hub, its models fetched. Any: the same class.

        Raises ModelError: one cannot be had.
        """

    def folder(self, path: str) -> Path | None:
        """Return the folder with the files of a name, None if it is no such name. Raises ModelError."""


class RewardPool(Protocol):
    """One reward function, called where it can be killed. One per run, in the controller."""

    async def start(self) -> None:
        """Build the function, so that its errors come before training does.

        Raises ConfigError or PluginError (the name, an option or an imported file is wrong), RewardFailed (not built).
        """

    async def score(self, value: RewardInput) -> RewardResult:
        """Score one completion. A bad function never raises here: the result says how it ended."""

    async def close(self) -> None:
        """End what runs the function; calls in flight are cancelled. Idempotent."""


class MakeRewardPool(Protocol):
    """Extension `rewards`: where reward functions run."""

    def __call__(
        self,
        name: str,
        options: Mapping[str, Any],
        *,
        imports: Sequence[str],
        workers: int,
        timeout_s: float,
        tell: Callable[..., None],
    ) -> RewardPool:
        """Return a pool, not started; `imports` may register the reward, `timeout_s` bounds one call. Any: options."""


@runtime_checkable
class EpisodesElsewhere(Protocol):
    """Extension `rollout_processes`, of a Plan, the run's scheduler and where events go: who makes the episodes."""

    async def start(self) -> None:
        """Start every process. Raises what cannot be built or placed there."""

    def runner(self, fleet: Any) -> Callable[..., Any]:
        """Return what makes the executor's runner of episodes; `fleet` answers their requests. Any: of the core."""

    def check(self) -> None:
        """Replace what was lost. Raises WorkerError: nothing is left."""

    async def close(self) -> None:
        """End every process. Idempotent."""


MakeEpisodesElsewhere = Callable[..., EpisodesElsewhere]


class ScalableFleet(Protocol):
    """The inference replicas of a run: how many serve, and whether somebody comes, joins or leaves."""

    @property
    def num_serving(self) -> int: ...
    @property
    def moving(self) -> bool: ...

    async def resize(self, wanted: int) -> None:
        """Go towards `wanted` replicas; see `areal_core.fleet.elastic.ElasticFleet.resize`."""


class ScaleInbox(Protocol):
    """A run's end of requests for another number of replicas."""

    def start(self) -> None:
        """Begin to look for requests, in the running event loop."""

    def check(self) -> None:
        """Raise what ended the looking."""

    async def close(self) -> None:
        """Take no more requests. Idempotent."""


class ScaleRequests(Protocol):
    """Extension `scale`: how a live run is asked for another number of replicas. Without it nobody can ask."""

    def clear(self, run_folder: Path) -> None:
        """Drop what was asked of an earlier run in this folder. Called by a run that takes the folder."""

    def inbox(self, run_folder: Path, fleet: ScalableFleet) -> ScaleInbox:
        """Return the run's end, not started."""


class RunView(Protocol):
    """Who watches a run: the terminal, or nobody."""

    def step(self, record: Mapping[str, Any]) -> None:
        """Show one finished step. Any: what `metrics.jsonl` got."""

    def note(self, text: str) -> None:
        """Show one line that is not a step."""

    def waiting(self, what: str) -> None:
        """Take what the run waits for from now on; called several times a step."""


Watch = Callable[[dict[str, Any], Sequence[Sequence["Episode"]]], ArealError | None]
"""Adds to the record of a step what its groups of episodes were like; returns what ends the run, if anything does."""

MakeWatch = Callable[[Mapping[str, Any], Callable[..., None], Callable[[str], None]], Watch]
"""Extension `watch`, of what stands under `guard:` and of where events and notes go. Raises ConfigError. Any: plain."""
TellChanges = Callable[[Path, object], str]
"""Extension `changes`, of a run's config.yaml and a configuration: what a resume changes. Raises RunFolderError."""

DescribeMachine = Callable[[str, "Registry"], tuple[Mapping[str, int], Callable[[Any], Sequence[str]]]]
"""Extension `machine`, of `cuda:8x80GB` or nothing for here: its devices; of a Plan, what cannot fit. Any: the plan."""

DescribePlan = Callable[[Any], str]
"""Extension `plan_text`, of a Plan: who runs where, from which weights, with how much memory. Any: the plan."""

Preview = Callable[[Any, "Registry"], str]
"""Extension `preview`, of a Plan: what the first row becomes. Raises ConfigError. Any: the plan."""

ForeignNames = Callable[[str, object], str]
"""Extension `foreign_names`, of an unknown key and what stands there: what it is called here, or nothing."""

CompleteOverrides = Callable[[object], Sequence[str]]
"""Extension `complete_overrides`, of cyclopts' context: what a shell may complete `a.b=c` with."""

ProfileVariables = Callable[[Mapping[str, Any], int, Path, str], Mapping[str, str]]
"""Extension `profile`: what stands there, a run's steps and folder, a role -> its workers' variables. Any: plain."""


class Columns(Protocol):
    """The algorithm's part of a step that is done once, on the whole batch, before the first minibatch."""

    def __call__(
        self, batch: Batch, version: int, forward_logprobs: Tensor | None = None
    ) -> tuple[Batch, Mapping[str, Sum]]:
        """Return the batch with the columns that the objectives read, and metrics that add over batches.

        `version` is that of the trainer's weights, `forward_logprobs` their log-probs of the batch where
        `algorithm.needs_forward`. Raises BatchError: a reward is not finite, or a column is missing.
        """


MakeColumns = Callable[..., Columns]
"""Extension `columns`, of `algorithm:`, the registry that knows its pieces, and `max_new_tokens`."""


ReadAdapter = Callable[[str, str, bool], "LoraSpec"]
"""Extension `adapter_config`, of a key for errors, a folder of PEFT's, and whether engines read it: what it holds."""


MakePace = Callable[[int], Callable[[float, float], float]]
"""Extension `pace`, of the staleness bound; then of each batch, what share of its step it was waited for and how many
had finished beside it: how many batches admission stays behind the bound, less than it."""

Balance = Callable[[Sequence[int], int, "Sequence[str] | None"], list[list[int]]]
"""Extension `balance`, of rows' numbers of tokens, how many parts, and which rows stay together: rows of each part."""

CheckAlgorithm = Callable[..., list[str]]
"""Extension `algorithm_checks`, of `algorithm:`, `has_reference`, `has_critic`, `max_new_tokens` and `max_staleness`:
returns warnings; raises PlanError for settings that cannot go together. Loads no torch."""


class Presets(Protocol):
    """Extension `presets`: published algorithms by name, for `algorithm.preset`."""

    def keys(self, name: str) -> Mapping[str, Any]:
        """Return the part of a run's yaml that a preset is. Any: plain. Raises ConfigError: there is none."""


class RunFiles(Protocol):
    """Where a run's records lie, and where what people look at belongs."""

    root: Path
    metrics: Path
    events: Path
    config: Path
    summary: Path
    report: Path
    picture: Path


class RunReport(Protocol):
    """Extension `report`: how a run is shown while it goes on, and what it leaves for people."""

    def view(self, steps: int, *, title: str, folder: Path, console: Console) -> AbstractContextManager[RunView]:
        """Return what shows a run of so many steps from now on; nothing of it has begun, its folder least of all."""

    def write(
        self,
        files: RunFiles,
        *,
        status: str,
        lines: Callable[[Mapping[str, Any]], Sequence[str]],
        tell: Callable[..., None],
    ) -> Mapping[str, Any]:
        """Write the summary, the page and the picture from a run's records; return the summary.

        `lines` gives what plugins add to the page; `tell` writes an event for what could not be drawn. Any: plain
        data. Raises StorageError: nothing can be written.
        """

    def closing(self, files: RunFiles) -> str:
        """Return the last words of a run in a terminal: its reward over the steps, and where everything is."""


@cache  # every look reads the metadata of all packages
def extension(name: str) -> Any | None:
    """Return what was offered under a name, None without an offer. Any: see the protocol of the name.

    Raises:
        PluginError: two packages offer it, or the one that does cannot be imported.
    """
    offers = metadata.entry_points(group=GROUP, name=name)
    if len({offer.value for offer in offers}) > 1:
        raise PluginError(
            f"extension {name!r} is offered {len(offers)} times",
            why=", ".join(sorted(offer.value for offer in offers)),
            fix="uninstall all but one",
        )
    for offer in offers:
        try:
            return offer.load()
        except (ImportError, AttributeError) as error:
            raise PluginError(f"extension {name!r} cannot be loaded from {offer.value}", why=str(error)) from error
    return None


def need(name: str, what_for: str) -> Any:
    """Return what was offered under a name. Any: see the protocol of the name.

    Raises:
        EngineMissing: nobody offers it; names the package that does.
        PluginError: see `extension`.
    """
    found = extension(name)
    if found is None:
        extension.cache_clear()  # it may be installed beside a running notebook
        raise EngineMissing(
            f"{what_for} needs the extension {name!r}",
            why="no installed package offers it",
            fix=pip_install(_OFFERED_BY[name]),
        )
    return found
