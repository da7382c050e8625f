"""One whole run: take the folder, start everything, train, write the report, leave nothing behind.

Knows: the order in which parts start and end, and what ends a run.
Does not know: steps (`train_loop`) or how anything is shown.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, closing, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from attrs import evolve, frozen

from areal_core.config.load import dump_config
from areal_core.config.model_folder import load_tokenizer
from areal_core.config.plan import Plan
from areal_core.config.sampling import evaluation_sampling
from areal_core.config.schema import RL, DataConfig, EvaluationSetConfig
from areal_core.contract.errors import ArealError, DatasetError, ResourceError, WorkerError, storage_errors
from areal_core.contract.scheduler import Scheduler
from areal_core.contract.workflow import RolloutWorkflow, Tokenizer
from areal_core.fleet.elastic import ElasticFleet, tell_news
from areal_core.fleet.meter import FleetMeter
from areal_core.fleet.pool import InferencePool
from areal_core.fleet.task_groups import gather_or_cancel, unless_set
from areal_core.loop.checkpoint import Progress, progress_of, read_progress, restore, save_beginning
from areal_core.loop.evaluator import Evaluator, HeldOut
from areal_core.loop.launch import make_room, make_scheduler, make_turns, start_train_groups
from areal_core.loop.learner import Learner, Learns
from areal_core.loop.restarts import Restarts, Site
from areal_core.loop.run_folder import RunFolder
from areal_core.loop.step_record import Totals
from areal_core.loop.train_loop import Parts, TrainLoop
from areal_core.observe.events import RUN_ENDED, RUN_RESTARTED, RUN_STARTED, EventLog
from areal_core.observe.metrics import MetricsLogger, MetricsStream
from areal_core.plugins import extensions as offers
from areal_core.plugins.blame import told
from areal_core.plugins.episodes import EpisodeStore, OpenEpisodeStore
from areal_core.plugins.hooks import Hooks
from areal_core.plugins.redact import redact
from areal_core.plugins.registry import Registry
from areal_core.plugins.structure import unstructure
from areal_core.rollout.acceptance import Accept
from areal_core.rollout.episodes import EpisodeRunner
from areal_core.rollout.executor import RolloutExecutor
from areal_core.rollout.session import PoolSessions
from areal_core.rollout.tasks import TaskSource
from areal_core.worker.supervise import Supervisor

Rows = Sequence[Mapping[str, Any]]  # Any: the data set decides what a row holds


@frozen(kw_only=True)
class RunOutcome:
    """How a run ended well: at its last step, or because somebody asked it to stop."""

    finished: bool
    step: int
    folder: RunFolder
    summary: Mapping[str, Any]  # Any: as `summary.json`


@runtime_checkable
class MakesRuns(Protocol):
    """The half of a kind of run that makes it; `areal_core.config.plan.PlansRuns` is the other."""

    def run(self, plan: Plan, registry: Registry, *, view: offers.RunView, stop: asyncio.Event) -> Run:
        """Return a run of a plan of this kind."""


def make_run(plan: Plan, registry: Registry, *, view: offers.RunView, stop: asyncio.Event) -> Run:
    """Return the run of a plan, of whatever kind. Raises PluginError: its kind cannot be built."""
    config = plan.config
    if config.kind == RL:
        return Run(plan, registry, view=view, stop=stop)
    kind = registry.build("kind", config.kind, config.options, "options")
    assert isinstance(kind, MakesRuns)
    return kind.run(plan, registry, view=view, stop=stop)


class Run:
    """One run of one plan. `execute` is all there is to call, once."""

    _loop = TrainLoop

    def __init__(self, plan: Plan, registry: Registry, *, view: offers.RunView, stop: asyncio.Event) -> None:
        self._plan, self._config, self._registry = plan, plan.config, registry
        self._view, self._stop = view, stop
        self._folder = RunFolder.of(plan.config)
        self._hooks = Hooks(registry.discovery.hooks)
        self._scaling: offers.ScaleRequests | None = offers.extension("scale")
        self._restarts, self._pause_s = Restarts(plan.config.scheduler.restarts), 0.0
        self._kept: Site | None = None  # while neither of two starts has it

    async def execute(self, *, resume: bool = False, archive: bool = False, start: Path | None = None) -> RunOutcome:
        """Run to the end.

        Args:
            resume: continue from the last checkpoint in the run folder, from the run's beginning if there is none;
                without, `start` may be a checkpoint of another run.
            archive: move an earlier run in the folder aside.

        Raises:
            The first error of any part; by then every process is gone and the report of what
            happened so far is written, with the error in it.
        """
        with self._folder.held(resume=resume, archive=archive), (offers.extension("controller") or nullcontext)():
            checkpoint = self._folder.latest() if resume else start
            new = checkpoint is None and not resume
            progress = Progress(version=0, tasks={}, totals={}) if new else progress_of(self._folder, checkpoint)
            tell_changes: offers.TellChanges | None = offers.extension("changes") if resume else None
            changed = tell_changes(self._folder.config, self._config) if tell_changes else ""
            with storage_errors(self._folder.config):
                self._folder.config.write_text(dump_config(self._config))
                if self._scaling is not None:
                    self._scaling.clear(self._folder.root)
            with closing(EventLog(self._folder.events)) as events:
                if changed:
                    events.write("configuration_changed", version=progress.version, text=changed)
                    self._view.note(changed)
                return await self._recorded(events, checkpoint, progress)

    async def _recorded(self, events: EventLog, checkpoint: Path | None, progress: Progress) -> RunOutcome:
        """Run, and whatever happens write down how it ended."""
        events.write(
            RUN_STARTED,
            name=self._config.name,
            steps=self._config.steps,
            plan=str(self._plan),
            version=progress.version,
            resumed=bool(progress.tasks),
            **self._described(),
        )
        status, error = "failed", None
        try:
            while (version := await self._start_and_train(events, checkpoint, progress)) is None:
                checkpoint = self._folder.latest() or checkpoint
                progress = progress_of(self._folder, checkpoint)
                await unless_set(self._stop, asyncio.sleep(self._pause_s))
            status = "finished" if version >= self._config.steps else "stopped"
        except asyncio.CancelledError:
            status = "stopped"
            raise
        except BaseException as exc:
            error = exc
            if how := self._folder.how_to_go_on():
                exc.add_note(how)
            raise
        finally:
            if self._kept is not None:
                self._kept.kept = []
                await self._kept.close()
            summary = self._end(events, status, error)
        return RunOutcome(finished=status == "finished", step=version, folder=self._folder, summary=summary)

    def _described(self) -> Mapping[str, Any]:
        """Return what the event of the start says of this kind of run. Any: JSON."""
        return {
            "max_staleness": self._config.rollout.max_staleness,
            "placement": self._config.placement,
            "train_backend": str(self._plan.role("actor").backend),
            "infer_backend": str(self._plan.role("rollout").backend),
        }

    def _end(self, events: EventLog, status: str, error: BaseException | None) -> Mapping[str, Any]:
        """Write down how the run ended, also for people by whoever offers it; return the summary. Any: plain data."""
        try:
            events.write(RUN_ENDED, status=status, **({"error": f"{type(error).__name__}: {error}"} if error else {}))
            report: offers.RunReport | None = offers.extension("report")
            if report is None:
                return {}
            with storage_errors(self._folder.root):
                return report.write(self._folder, status=status, lines=self._lines, tell=events.write)
        except Exception:
            if error is None:
                raise
            return {}  # what ended the run (a full disk, say) may spoil its summary too: the first error counts

    async def _start_and_train(self, events: EventLog, checkpoint: Path | None, progress: Progress) -> int | None:
        """Start what is not kept, train, and close it in the reverse order; None if that is to happen again."""
        async with AsyncExitStack() as stack:
            site = self._kept or Site(make_scheduler(self._config, self._registry, self._folder.logs), self._plan)
            self._kept, site.kept = None, []
            stack.callback(self._folder.drop_partial)
            stack.push_async_callback(site.close)
            supervisor = Supervisor(site)
            starting = self._start(stack, site, supervisor, events, checkpoint, progress)
            try:
                parts = await unless_set(self._stop, starting)  # a worker may take for ever; there is nothing to save
            except ResourceError as error:
                if not self._restarts.allow_waiting():
                    raise
                self._start_over(site, events, progress.version, error)
                return None
            if parts is None:
                return progress.version
            stack.callback(self._view.waiting, "workers to end")
            gc.collect()
            gc.freeze()  # what start-up made lives as long as the run: collections need not walk it again
            stack.callback(gc.unfreeze)
            loop = self._loop(self._config, self._folder, parts, self._stop)
            for role in self._plan.roles:
                if role.engine_role == "train":
                    supervisor.watch(role.role)
            work = loop.run(progress.version, Totals.from_dict(progress.totals))
            try:
                return await supervisor.while_live(work, self._stop.set)
            except WorkerError:
                if not self._starts_again(site, supervisor, events, progress.version, loop.num_steps):
                    raise
                return None

    def _starts_again(self, site: Site, supervisor: Supervisor, events: EventLog, began: int, num_steps: int) -> bool:
        """Tell whether trainers start again, from the last state: so often, if a training worker is what was lost."""
        if self._stop.is_set() or not self._restarts.allow(num_steps=num_steps):
            return False
        try:
            supervisor.check(others=False)
        except WorkerError as error:
            self._start_over(site, events, began, error)
            return True
        return False

    def _start_over(self, site: Site, events: EventLog, began: int, error: WorkerError) -> None:
        """Count a restart, tell of it, and keep what may stay."""
        self._pause_s, latest = self._restarts.begin(error), self._folder.latest()
        number, most = self._restarts.number, self._restarts.most
        where, version = (latest.name, read_progress(latest).version) if latest else ("its beginning", began)
        self._kept = site if (kept := site.keep()) else None
        events.write(RUN_RESTARTED, number=number, version=version, error=str(error), kept=kept)
        pause = f" in {self._pause_s:g} s" if self._pause_s else ""
        fleet = f"; replicas kept: {len(kept)}" if kept else "; the fleet starts anew" if site.fleet else ""
        self._view.note(f"{error.what}: starting again from {where}{pause}, restart {number} of {most}{fleet}")

    async def _start(
        self,
        stack: AsyncExitStack,
        site: Site,
        supervisor: Supervisor,
        events: EventLog,
        checkpoint: Path | None,
        progress: Progress,
    ) -> Parts:
        """Start the processes side by side and connect the parts; another kind of run starts others."""
        config = self._config
        self._view.waiting("the data set")
        make_watch: offers.MakeWatch | None = offers.extension("watch")
        tokenizer, images = load_tokenizer(self._plan.role("rollout").model.path), self._images()
        workflow, rows, held_out = await self._data(tokenizer, events)
        metrics = self._metrics(stack, events, progress)
        rewards = self._elsewhere(site, events) or self._rewards(events)
        stack.push_async_callback(rewards.close)
        learner_task = asyncio.ensure_future(self._learner(site))
        if self._plan.role("rollout").placement.together_with is not None:
            await make_room(self._plan, await learner_task)  # whom it is placed beside has to be there
        pool_task = asyncio.ensure_future(site.start_pool())
        self._view.waiting("workers to start: " + ", ".join(f"{role.role} {role.backend}" for role in self._plan.roles))
        await gather_or_cancel([learner_task, pool_task, rewards.start()])
        learner, pool = learner_task.result(), pool_task.result()
        if isinstance(rewards, offers.EpisodesElsewhere):
            supervisor.watch_with(rewards.check)
        store = self._store(tokenizer, events)
        if store is not None:
            stack.callback(store.close)
            supervisor.watch_with(store.check)
        executor = self._executor(pool, rewards, tokenizer, workflow, rows, images, events, progress, store)
        stack.push_async_callback(executor.close)
        turns = make_turns(self._plan, learner, pool, site.launcher)
        sync = site.launcher.connect(stack, self._registry, learner, pool, events, turns)
        if site.fleet is not None:
            sync = site.fleet.sync.go_on(sync, progress.version)
        if checkpoint is not None:
            self._view.waiting(f"the state of {checkpoint.name}")
            await turns.train()
            await restore(checkpoint, learner, progress)
        if sync.version < progress.version:
            await sync.update(progress.version)
        evaluator = Evaluator(executor, held_out) if held_out else None
        if site.fleet is None:
            site.fleet = ElasticFleet(
                pool=pool,
                sync=sync,
                launcher=site.launcher,
                max_replacements=config.rollout.max_replacements,
                tell=partial(tell_news, events, self._view),
                turns=turns,
            )
            site.fleet.start()
        stack.push_async_callback(site.leave)
        supervisor.watch_with(site.fleet.check)
        if self._scaling is not None:
            inbox = self._scaling.inbox(self._folder.root, site.fleet)
            stack.push_async_callback(inbox.close)
            inbox.start()
            supervisor.watch_with(inbox.check)
        meter = site.meter = site.meter or FleetMeter(pool)
        stack.push_async_callback(meter.close)
        meter.start()
        executor.start()
        return Parts(
            learner=learner,
            executor=executor,
            meter=meter,
            sync=sync,
            evaluator=evaluator,
            metrics=metrics,
            events=events,
            view=self._view,
            watch=make_watch(config.guard, events.write, self._view.note) if make_watch else None,
            store=store,
            turns=turns,
        )

    def _metrics(self, stack: AsyncExitStack, events: EventLog, since: Progress) -> MetricsStream:
        loggers = {}
        for number, logger in enumerate(self._config.loggers):
            built = self._registry.build("logger", logger.name, logger.options, f"loggers[{number}].options")
            assert isinstance(built, MetricsLogger)
            loggers[logger.name] = built
        config = redact(unstructure(self._config))
        sinks = self._hooks.collect("areal_metric_sinks", run_folder=self._folder.root, config=config)
        stream = partial(MetricsStream, self._folder.metrics, loggers=loggers, sinks=sinks, events=events)
        metrics = stream(resume_step=since.version, resume_record=since.record)
        stack.callback(metrics.close)
        metrics.start(self._config.name, self._folder.root, config)
        return metrics

    def _lines(self, summary: Mapping[str, Any]) -> list[str]:  # Any: as `summary.json`
        return [str(line) for line in self._hooks.collect("areal_report_lines", summary=summary)]

    async def _learner(self, scheduler: Scheduler) -> Learns:
        config, plan = self._config, self._plan
        make_columns: offers.MakeColumns = offers.need("columns", "a run")
        groups = await start_train_groups(scheduler, plan)
        return Learner(
            config.algorithm,
            plan.objective,
            groups["actor"],
            make_columns(config.algorithm, self._registry, max_new_tokens=config.rollout.sampling.max_new_tokens),
            reference=groups.get("reference"),
            critic=groups.get("critic"),
            critic_objective=plan.critic_objective,
            ratios=config.episodes.ratios,
        )

    def _executor(
        self,
        pool: InferencePool,
        rewards: offers.RewardPool | offers.EpisodesElsewhere,
        tokenizer: Any,  # Any: a transformers tokenizer
        workflow: RolloutWorkflow,
        rows: Rows,
        images: offers.ImagePreparer | None,
        events: EventLog,
        progress: Progress,
        store: EpisodeStore | None,
    ) -> RolloutExecutor:
        config = self._config
        sessions = PoolSessions(
            pool=pool,
            rewards=None if isinstance(rewards, offers.EpisodesElsewhere) else rewards,
            tokenizer=tokenizer,
            sampling=config.rollout.sampling,
            seed=config.seed,
            image_token_id=self._plan.role("rollout").model.image_token_id,
        )
        executor = RolloutExecutor(
            workflow=workflow,
            tasks=TaskSource(rows, seed=config.seed, shuffle=config.data.shuffle),
            sessions=sessions,
            config=config.rollout,
            version=progress.version,
            on_event=events.write,
            accept=self._acceptance(),
            prepare=None if images is None else images.prepare,
            store=store,
            runner=rewards.runner(pool) if isinstance(rewards, offers.EpisodesElsewhere) else EpisodeRunner,
        )
        if progress.tasks:
            executor.restore(progress.tasks)
        if progress.version == 0:
            save_beginning(self._folder, executor.state())
        return executor

    def _acceptance(self) -> Accept | None:
        """Return what decides which groups are trained on, None if all are."""
        name = self._config.rollout.accept
        built = self._registry.build("accept", name, {}, "rollout.accept") if name else None
        assert built is None or callable(built)
        return built

    async def _data(self, tokenizer: Tokenizer, events: EventLog) -> tuple[RolloutWorkflow, Rows, list[HeldOut]]:
        """Return what makes episodes, the rows it makes them of, and sets held out; too long ones are left out."""
        config, chosen = self._config, self._config.rollout.workflow
        workflow = self._registry.build("workflow", chosen.name, chosen.options, "rollout.workflow.options")
        assert isinstance(workflow, RolloutWorkflow)
        rows, held_out = self._rows(config.data), self._held_out()
        if (fitting := offers.extension("fitting")) is not None:
            longest = self._longest(config.rollout.context_length or self._plan.role("rollout").model.context_length)
            fit = partial(fitting, workflow, tokenizer, longest, events.write, self._view)
            rows = await fit("data", rows)
            held_out = [evolve(each, rows=await fit(each.key, each.rows)) for each in held_out]
        return workflow, rows, held_out

    def _held_out(self) -> list[HeldOut]:
        """Return the sets of held-out rows, the run's own first."""
        config, evaluation = self._config, self._config.evaluation
        own = EvaluationSetConfig(data=evaluation.data, max_prompts=evaluation.max_prompts) if evaluation.data else None
        sets = {**({"": own} if own else {}), **evaluation.sets}
        found = []
        for name, each in sets.items():
            rows = self._rows(each.data)
            found.append(
                HeldOut(
                    name=name,
                    rows=[rows[number] for number in range(min(each.max_prompts, len(rows)))],
                    sampling=evaluation_sampling(config, name),
                    samples=each.samples,
                    pass_reward=each.pass_reward,
                )
            )
        return found

    def _longest(self, context: int | None) -> int:
        """Return how many tokens a sequence may have: all of it goes into one micro-batch."""
        limits = [role.max_tokens_per_microbatch for role in self._config.train_roles.values()]
        return min([*limits, context or limits[0]])

    def _rows(self, data: DataConfig | None) -> Rows:
        if data is None:
            return ()
        try:
            rows = self._registry.build("dataset", data.name, data.options, "data.options")
        except ArealError:
            raise
        except Exception as error:
            raise DatasetError(
                f"data set {data.name!r} cannot be read", why=told(error), fix="correct it, or its options"
            ) from error
        assert isinstance(rows, Sequence)
        return rows

    def _images(self) -> offers.ImagePreparer | None:
        """Return what prepares images for training, None if the policy takes none."""
        model = self._plan.role("rollout").model
        if model.image_token_id is None:
            return None
        support: offers.ImageSupport = offers.need("images", "a policy that takes images")
        return support.preparer(model.path, max_tokens=self._longest(model.context_length))

    def _store(self, tokenizer: Any, events: EventLog) -> EpisodeStore | None:  # Any: a transformers tokenizer
        keep, root = self._config.episodes.keep, self._folder.root
        make: OpenEpisodeStore | None = offers.extension("episodes") if keep else None
        return None if make is None else make(root, keep=keep, tokenizer=tokenizer, tell=partial(self._tell, events))

    def _tell(self, events: EventLog, kind: str, **fields: Any) -> None:  # Any: JSON
        """Write an event, and show what it says."""
        if "says" in fields:  # first: the events may lie on a full disk
            self._view.note(str(fields["says"]))
        events.write(kind, **fields)

    def _elsewhere(self, scheduler: Scheduler, events: EventLog) -> offers.EpisodesElsewhere | None:
        """Return the processes that workflows and rewards run in; None if that is this one."""
        if not self._config.rollout.processes:
            return None
        make: offers.MakeEpisodesElsewhere = offers.need("rollout_processes", "rollout.processes")
        return make(self._plan, scheduler, partial(self._tell, events))

    def _rewards(self, events: EventLog) -> offers.RewardPool:
        make: offers.MakeRewardPool = offers.need("rewards", "a run")
        reward, files = self._config.rollout.reward, [str(Path(file).absolute()) for file in self._config.imports]
        return make(
            *(reward.name, reward.options),
            imports=files,
            workers=reward.workers,
            timeout_s=reward.timeout_s,
            tell=events.write,
        )
