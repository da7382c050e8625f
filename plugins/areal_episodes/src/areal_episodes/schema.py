"""The tables of an episode store: one SQLite file in write-ahead mode, so that readers see a live run.

Knows: columns, and which version of them a file has.
Does not know: who writes or reads.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from areal_core.contract.errors import StorageError

VERSION = 1
FILE = "episodes.sqlite"
"""In the run folder; SQLite keeps two more beside it, -wal and -shm, while somebody has it open."""

_TABLES = """
CREATE TABLE chunks (               -- columns of the trajectories of many episodes, as safetensors
    id INTEGER PRIMARY KEY,
    columns BLOB NOT NULL,
    checksum TEXT NOT NULL
);
CREATE TABLE tasks (
    task_id TEXT PRIMARY KEY,       -- train/EPOCH/ROW, eval/ROW
    row TEXT NOT NULL               -- JSON of the data set's row, secrets redacted, long values cut
) WITHOUT ROWID;
CREATE TABLE episodes (
    id INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,             -- train, eval
    task_id TEXT NOT NULL,
    task_index INTEGER NOT NULL,    -- counts tasks over the run; -1 for evaluation
    attempt INTEGER NOT NULL,       -- how often the task was issued again before
    member INTEGER NOT NULL,        -- place in its group
    version INTEGER NOT NULL,       -- the version being trained when it ended
    outcome TEXT NOT NULL,          -- finished, rejected, failed
    fate TEXT NOT NULL,             -- waiting, trained, dropped, rejected, failed, evaluated, taken back
    step INTEGER,                   -- the step that trained it
    reward REAL,
    parts TEXT NOT NULL,            -- JSON: reward parts and workflow metrics by name
    reward_status TEXT NOT NULL,    -- ok, raised, timeout, crashed, invalid, '' without one
    prompt_tokens INTEGER NOT NULL, -- all that were given, tool answers too
    output_tokens INTEGER NOT NULL,
    oldest_version INTEGER,
    newest_version INTEGER,
    stop TEXT NOT NULL,             -- of the last turn
    started REAL NOT NULL,          -- seconds since 1970
    seconds REAL NOT NULL,
    replica TEXT NOT NULL,          -- of the last turn
    error TEXT NOT NULL,
    text TEXT NOT NULL,             -- JSON: per trajectory a list of {"role", "text"}
    chunk INTEGER NOT NULL,
    first INTEGER NOT NULL,         -- its trajectories in the chunk: first, and how many
    count INTEGER NOT NULL
);
CREATE INDEX episodes_by_task ON episodes (task_index, attempt);
CREATE INDEX episodes_by_step ON episodes (step);
CREATE INDEX episodes_by_fate ON episodes (fate);
CREATE INDEX episodes_by_chunk ON episodes (chunk);
"""
_STEPS = """
CREATE TABLE IF NOT EXISTS steps (  -- columns that a step computed for what it trained, as safetensors
    step INTEGER PRIMARY KEY,
    columns BLOB NOT NULL,
    checksum TEXT NOT NULL
);
"""
COLUMNS = (
    *("kind", "task_id", "task_index", "attempt", "member", "version", "outcome", "fate", "reward", "parts"),
    *("reward_status", "prompt_tokens", "output_tokens", "oldest_version", "newest_version", "stop", "started"),
    *("seconds", "replica", "error", "text", "chunk", "first", "count"),
)
"""What is told of an episode when it ends, in the order of `INSERT`."""
INSERT = f"INSERT INTO episodes ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"
SETTLE = "UPDATE episodes SET fate = ?, step = ? WHERE task_index = ? AND attempt = ? AND fate = 'waiting'"
TRAINED = (
    "SELECT id, count FROM episodes "
    "WHERE task_index = ? AND attempt = ? AND fate = 'trained' AND step = ? ORDER BY member"
)
LEARNED = "INSERT OR REPLACE INTO steps (step, columns, checksum) VALUES (?, ?, ?)"
TAKE_BACK = (
    "DELETE FROM steps WHERE step > :version",
    ("UPDATE episodes SET fate = 'waiting', step = NULL WHERE fate = 'trained' AND step > :version"),
    (
        "UPDATE episodes SET fate = 'taken back' "
        "WHERE fate = 'waiting' AND max(version, coalesce(newest_version, version)) > :version"
    ),
)
"""What a resume at a version changes: later steps are undone, and what later weights generated is of no use."""
TRIM = (
    "DELETE FROM episodes WHERE fate != 'waiting' AND id <= (SELECT max(id) FROM episodes) - :keep",
    "DELETE FROM chunks WHERE id NOT IN (SELECT chunk FROM episodes)",
    "DELETE FROM tasks WHERE task_id NOT IN (SELECT task_id FROM episodes)",
    "DELETE FROM steps WHERE step NOT IN (SELECT step FROM episodes WHERE step IS NOT NULL)",
)


def create(path: Path) -> sqlite3.Connection:
    """Open the store of a run for writing; only this user can read it.

    Raises:
        StorageError: it cannot be written, or is no store of this version.
    """
    try:
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        store = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=30.0)
        store.execute("PRAGMA journal_mode = WAL")
        store.execute("PRAGMA synchronous = NORMAL")
        if _version(store) == 0:
            store.executescript(f"BEGIN; {_TABLES} PRAGMA user_version = {VERSION}; COMMIT;")
        store.execute(_STEPS)
    except (OSError, sqlite3.Error) as error:
        raise StorageError(
            f"{path} cannot be written", why=str(error), fix="free space there, or move it away"
        ) from error
    _check(store, path)
    return store


def open_to_read(path: Path) -> sqlite3.Connection:
    """Open a store that a run may be writing; nothing is changed.

    Raises:
        StorageError: there is none, or it is no store of this version.
    """
    if not path.is_file():
        raise StorageError(
            f"there is no {path}", why="the run wrote no episodes", fix="install areal-episodes and set episodes.keep"
        )
    try:
        store = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None, timeout=30.0)
        store.row_factory = sqlite3.Row
        _check(store, path)
    except sqlite3.Error as error:
        raise StorageError(
            f"{path} cannot be read", why=str(error), fix="it is no episode store, or damaged"
        ) from error
    return store


def _version(store: sqlite3.Connection) -> int:
    return int(store.execute("PRAGMA user_version").fetchone()[0])


def _check(store: sqlite3.Connection, path: Path) -> None:
    if _version(store) != VERSION:
        raise StorageError(
            f"{path} has version {_version(store)}",
            why=f"this areal-episodes reads version {VERSION}",
            fix="use the version that wrote it, or start the run in another folder",
        )
