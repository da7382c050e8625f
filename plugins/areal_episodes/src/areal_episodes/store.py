"""The episodes of a live run, written by a thread of their own, many at a time.

Knows: what the run tells, in which order; how long a full disk is waited for.
Does not know: how episodes are read (`reader`), or what a column means (`chunk`).
"""

from __future__ import annotations

import errno
import json
import os
import queue
import shutil
import sqlite3
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from pathlib import Path

from attrs import field, frozen

from areal_core.contract.batch import Batch
from areal_core.contract.data import Episode, Trajectory
from areal_core.contract.errors import ArealError, StorageError
from areal_core.contract.workflow import Tokenizer
from areal_core.plugins.episodes import EndedEpisode, Fate, KeptGroup
from areal_episodes import schema
from areal_episodes.chunk import Chunk, make_chunk
from areal_episodes.columns import checksum, episode, from_bytes
from areal_episodes.step_columns import StepColumns

PATIENCE_S = 60.0
"""How long a disk may refuse writing before the run is told."""
RETRY_S = 0.5
LEAST_FREE = 1 << 20
"""Bytes: a disk with less is full, whatever SQLite calls it."""
GATHER_S = 0.25
"""How long episodes are gathered for one chunk, if no step trains on some before. A killed controller loses no more."""
MAX_CHUNK = 1024
"""Episodes in one chunk at most."""
MAX_TOKENS = 1 << 17
"""Tokens from which on a chunk takes no more: what makes its bytes lets no other thread run meanwhile."""
MAX_WAITING = 20_000
"""Episodes and fates that wait for the disk at most: what memory a stalled disk may cost."""


@frozen
class _Settled:
    task_index: int
    attempt: int
    fate: Fate
    step: int | None


@frozen(order=True)
class _Found:
    """One episode that waits; in member order."""

    member: int
    task_index: int = field(order=False)
    attempt: int = field(order=False)
    number: int = field(order=False)
    episode: Episode = field(order=False)


@frozen
class _Learned:
    """What a step trained on; `groups` as they were settled."""

    step: int
    groups: Sequence[tuple[int, int]]
    batch: Batch
    written: Future[None]


class _End:
    """Nothing comes after it."""


class Store:
    """Satisfies `areal_core.plugins.episodes.EpisodeStore`. Calls return at once; a thread does the work."""

    def __init__(
        self,
        path: Path,
        *,
        keep: int,
        tokenizer: Tokenizer,
        tell: Callable[..., None],
        patience_s: float = PATIENCE_S,
    ) -> None:
        """Open the file.

        Raises:
            StorageError: it cannot be written.
        """
        self._path, self._keep, self._patience_s, self._tell = path, keep, patience_s, tell
        self._tokenizer = tokenizer
        self._database = schema.create(path)
        self._told: queue.SimpleQueue[EndedEpisode | _Settled | _Learned | _End] = queue.SimpleQueue()
        self._handed_over: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self._error: StorageError | None = None
        self._closing = threading.Event()
        self._hurry = threading.Event()
        self._promised: set[Future[None]] = set()
        self._ended = False
        self._since_trim = 0
        self._thread: threading.Thread | None = None

    def ended(self, episode: EndedEpisode) -> None:
        """Take an episode in."""
        self._take(episode)

    def settled(self, task_index: int, attempt: int, fate: Fate, step: int | None = None) -> None:
        """Hear what became of the episodes of a group that finished."""
        if step is not None:
            self._handed_over[step].append((task_index, attempt))
        self._take(_Settled(task_index, attempt, fate, step))

    def learned(self, step: int, batch: Batch) -> Future[None]:
        """Keep the advantages of what was settled for a step, and its ratios where they are known.

        What is told of the step is written at once: a checkpoint may follow, which counts its episodes as trained.
        """
        written: Future[None] = Future()
        written.set_running_or_notify_cancel()  # nobody who waits can cancel it
        self._promised.add(written)
        self._take(_Learned(step, self._handed_over.pop(step, []), batch, written))
        self._hurry.set()
        if self._closing.is_set() or self._ended or self._error is not None:
            self._keep_promises([written])
        return written

    def kept(self, version: int, group_size: int, used: Callable[[int], bool]) -> list[KeptGroup]:
        """Take back what was trained after `version`, and return the groups to go on with.

        What weights after `version` generated is of weights that are gone; damaged chunks are told and left out.
        """
        assert self._thread is None, "asked before anything is told"
        with self._changes() as database:
            for sql in schema.TAKE_BACK:
                database.execute(sql, {"version": version})
        groups: dict[tuple[int, int], list[_Found]] = defaultdict(list)
        for each in self._waiting(used):
            groups[each.task_index, each.attempt].append(each)
        whole = {key: found for key, found in sorted(groups.items()) if len(found) == group_size}
        newest = dict(whole.keys())
        kept = {(index, attempt): found for (index, attempt), found in whole.items() if newest[index] == attempt}
        with self._changes() as database:
            database.execute("UPDATE episodes SET fate = 'taken back' WHERE fate = 'waiting'")
            numbers = [(each.number,) for found in kept.values() for each in found]
            database.executemany("UPDATE episodes SET fate = 'waiting' WHERE id = ?", numbers)
        return [
            KeptGroup(task_index=index, attempt=attempt, episodes=tuple(each.episode for each in sorted(found)))
            for (index, attempt), found in kept.items()
        ]

    def check(self) -> None:
        """Raise what keeps the store from writing, if it does for longer than a moment."""
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Write what it was told, as far as the disk lets, and close. Idempotent."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._hurry.set()
        if self._thread is not None:
            self._told.put(_End())
            self._thread.join()
        self._database.close()

    def _waiting(self, used: Callable[[int], bool]) -> Iterator[_Found]:
        """Yield all that were not trained on, a chunk at a time."""
        for number, columns, digest in self._database.execute(
            "SELECT id, columns, checksum FROM chunks WHERE id IN (SELECT chunk FROM episodes WHERE fate = 'waiting')"
        ):
            try:
                trajectories = from_bytes(columns, digest, f"chunk {number} of {self._path}")
            except StorageError as error:
                self._tell("episodes_damaged", error=str(error))
                continue
            for member, index, attempt, own_number, task_id, parts, first, count in self._database.execute(
                "SELECT member, task_index, attempt, id, task_id, parts, first, count FROM episodes "
                "WHERE chunk = ? AND fate = 'waiting'",
                (number,),
            ):
                if not used(index):
                    made = episode(trajectories[first : first + count], task_id, json.loads(parts))
                    yield _Found(member, index, attempt, own_number, made)

    def _take(self, told: EndedEpisode | _Settled | _Learned) -> None:
        if self._closing.is_set() or self._ended:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="episodes", daemon=True)
            self._thread.start()
        if self._told.qsize() < MAX_WAITING:
            self._told.put(told)
        else:
            why = f"{MAX_WAITING} episodes wait for the disk"
            self._error = StorageError(f"{self._path} takes nothing any more", why=why, fix="free space there")

    def _work(self) -> None:
        """Write until the end; whatever happens nobody waits for what is not written."""
        try:
            self._write()
        except Exception as error:  # a fault of this code: `check` tells it
            self._error = StorageError(f"{self._path} is not written any more", why=repr(error))
        finally:
            self._ended = True
            self._keep_promises(list(self._promised))
            with suppress(queue.Empty):
                while True:
                    self._told.get_nowait()  # `close` finds room

    def _keep_promises(self, promises: Sequence[Future[None]]) -> None:
        for promise in promises:
            self._promised.discard(promise)
            with suppress(InvalidStateError):  # the other thread was first
                promise.set_result(None)

    def _write(self) -> None:
        """Write what is told, in order, a chunk at a time."""
        while True:
            told = [self._told.get()]
            self._hurry.wait(GATHER_S)
            if not self._closing.is_set():
                self._hurry.clear()
            num_tokens = _num_tokens(told[0])
            while not self._told.empty() and len(told) < MAX_CHUNK and num_tokens < MAX_TOKENS:
                told.append(self._told.get())
                num_tokens += _num_tokens(told[-1])
            if len(told) == MAX_CHUNK or num_tokens >= MAX_TOKENS:
                self._hurry.set()  # nothing is gathered while others wait
            self._commit(self._chunk([one for one in told if isinstance(one, EndedEpisode)]), told)
            self._keep_promises([one.written for one in told if isinstance(one, _Learned)])
            if any(isinstance(one, _End) for one in told):
                return

    def _chunk(self, episodes: Sequence[EndedEpisode]) -> Chunk | None:
        """Return a chunk of episodes; one that cannot be written must not stop those that can."""
        if not episodes:
            return None
        try:
            return make_chunk(episodes, self._tokenizer)
        except Exception as error:  # whatever a workflow put into an episode
            if len(episodes) == 1:
                self._try_to_tell("episode_not_kept", task_id=episodes[0].task_id, error=repr(error))
                return None
        chunks = [chunk for one in episodes if (chunk := self._chunk([one])) is not None]
        good = [chunk.episodes[0] for chunk in chunks]
        return make_chunk(good, self._tokenizer) if good else None

    def _commit(self, chunk: Chunk | None, told: Sequence[object]) -> None:
        """Write, and while the disk refuses try again; give up only when the run closes."""
        settled = [(str(one.fate), one.step, one.task_index, one.attempt) for one in told if isinstance(one, _Settled)]
        refused_at: float | None = None
        while True:
            try:
                with self._changes() as database:
                    if chunk is not None:
                        self._insert(database, chunk)
                    database.executemany(schema.SETTLE, settled)
                    for one in told:
                        if isinstance(one, _Learned):
                            self._learn(database, one)
                    self._trim(database, 0 if chunk is None else len(chunk.rows))
            except sqlite3.Error as error:
                if refused_at is None:
                    refused_at = time.monotonic()
                    why = self._why(error)
                    says = f"episodes are not written yet, it is tried again: {why}"
                    self._try_to_tell("episodes_wait", path=str(self._path), why=why, says=says)
                waited = time.monotonic() - refused_at
                if waited >= self._patience_s:
                    self._error = StorageError(
                        f"{self._path} cannot be written", why=self._why(error), fix="free space there"
                    )
                    self._keep_promises(list(self._promised))
                if self._closing.wait(RETRY_S) and waited >= RETRY_S:
                    return
            else:
                if refused_at is not None:
                    self._error = None
                    self._try_to_tell("episodes_written_again", path=str(self._path))
                return

    def _why(self, error: sqlite3.Error) -> str:
        """Return SQLite's words, after the system's where the disk is full: SQLite has several for that."""
        with suppress(OSError):  # the folder may be gone
            if shutil.disk_usage(self._path.parent).free < LEAST_FREE:
                return f"{os.strerror(errno.ENOSPC)} ({error})"
        return str(error)

    def _insert(self, database: sqlite3.Connection, chunk: Chunk) -> None:
        number = database.execute(
            "INSERT INTO chunks (columns, checksum) VALUES (?, ?)", (chunk.columns, chunk.checksum)
        ).lastrowid
        database.executemany("INSERT OR IGNORE INTO tasks (task_id, row) VALUES (?, ?)", chunk.tasks.items())
        database.executemany(schema.INSERT, [(*facts, number, first, count) for facts, first, count in chunk.rows])

    def _learn(self, database: sqlite3.Connection, told: _Learned) -> None:
        """Write a step's columns with the episode of each trajectory; of a step that lacks one, none are kept."""
        found = [row for group in told.groups for row in database.execute(schema.TRAINED, (*group, told.step))]
        owners = [number for number, count in found for _ in range(count)]
        if len(owners) == told.batch.num_sequences:
            blob = StepColumns.of(told.batch).to_bytes(owners)
            database.execute(schema.LEARNED, (told.step, blob, checksum(blob)))

    def _trim(self, database: sqlite3.Connection, written: int) -> None:
        """Delete the oldest episodes above the bound, those that wait for their step aside."""
        self._since_trim += written
        if self._since_trim < max(1, min(2000, self._keep // 10)):
            return
        for sql in schema.TRIM:
            database.execute(sql, {"keep": self._keep} if ":keep" in sql else {})
        self._since_trim = 0

    def _try_to_tell(self, kind: str, **fields: str) -> None:
        try:
            self._tell(kind, **fields)
        except ArealError:
            return  # the journal lies on the same disk

    @contextmanager
    def _changes(self) -> Iterator[sqlite3.Connection]:
        """Make all of the block's changes, or none."""
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield self._database
            self._database.execute("COMMIT")
        except BaseException:
            if self._database.in_transaction:  # on a full disk SQLite may have gone back by itself
                self._database.execute("ROLLBACK")
            raise


def _num_tokens(told: object) -> int:
    """Return how many tokens an episode has; one that is none is noticed when it is written."""
    known = told.trajectories if isinstance(told, EndedEpisode) else ()
    return sum(len(each) for each in known if isinstance(each, Trajectory))


def open_store(folder: Path, *, keep: int, tokenizer: Tokenizer, tell: Callable[..., None]) -> Store:
    """Open the store of a run folder: the extension `episodes`."""
    return Store(folder / schema.FILE, keep=keep, tokenizer=tokenizer, tell=tell)
