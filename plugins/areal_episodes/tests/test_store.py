"""Every episode is on disk with all its columns, bit for bit, and a full disk for a moment loses none."""

from __future__ import annotations

import math
import sqlite3
import stat
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from areal_core.contract.batch import Batch
from areal_core.contract.data import Episode, StopReason, Trajectory
from areal_core.contract.errors import StorageError
from areal_core.contract.ids import GroupId, TaskId
from areal_core.contract.workflow import RewardResult
from areal_core.plugins.episodes import EndedEpisode, Ending, Fate
from areal_episodes import schema
from areal_episodes import store as store_module
from areal_episodes.columns import checksum, from_bytes, to_bytes
from areal_episodes.reader import Filter, Order, Reader
from areal_episodes.samples import COLUMNS, samples
from areal_episodes.store import Store


class Letters:
    """A tokenizer whose token n is the letter number n."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [ord(letter) for letter in text]

    def decode(self, token_ids: Any, *, skip_special_tokens: bool = False) -> str:
        return "".join(map(chr, token_ids))

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any:
        raise NotImplementedError


def trajectory(
    prompt: str = "ab", answer: str = "xyz", *, version: int = 3, reward: float = 0.1, **more: Any
) -> Trajectory:
    """Return one turn; the last generated token is one version newer."""
    length, given = len(prompt + answer), len(prompt)
    versions = torch.tensor([-1] * given + [version] * (length - given - 1) + [version + 1], dtype=torch.int32)
    return Trajectory(
        input_ids=torch.tensor([ord(letter) for letter in prompt + answer]),
        loss_mask=torch.arange(length) >= given,
        logprobs=torch.where(torch.arange(length) >= given, torch.linspace(-2, -0.1, length), torch.zeros(length)),
        versions=versions,
        reward=reward,
        stop_reason=StopReason.STOP,
        **more,
    )


def ended(index: int = 0, member: int = 0, **changes: Any) -> EndedEpisode:
    """Return an episode that finished."""
    whole: dict[str, Any] = {
        "ending": Ending.FINISHED,
        "task_id": f"train/0/{index}" if index >= 0 else "eval/0",
        "task_index": index,
        "attempt": 0,
        "member": member,
        "version": 4,
        "row": {"prompt": "ab", "answer": "xyz"},
        "trajectories": [trajectory()],
        "metrics": {"correct": 1.0},
        "reward": RewardResult(value=0.1),
        "started": 100.0,
        "seconds": 1.5,
        "replica": "rollout/0",
    }
    return EndedEpisode(**{**whole, **changes})


class Opened:
    """A store in a folder, and what it told."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.told = folder, list[tuple[str, dict[str, Any]]]()

    def open(self, **settings: Any) -> Store:
        """Open it as a run does."""
        settings = {"keep": 1000, "tell": self.tell, **settings}
        return Store(self.folder / schema.FILE, tokenizer=Letters(), **settings)

    def tell(self, kind: str, **fields: Any) -> None:
        """Take an event."""
        self.told.append((kind, fields))

    def facts(self, chosen: Filter | None = None, **more: Any) -> list[Any]:
        """Return the facts of the episodes there."""
        with Reader(self.folder) as reader:
            return list(reader.facts(chosen, **more))


@pytest.fixture
def opened(tmp_path: Path) -> Opened:
    return Opened(tmp_path)


def same(one: Trajectory, other: Trajectory) -> bool:
    """Tell whether two trajectories are equal bit for bit."""
    columns = ("input_ids", "loss_mask", "logprobs", "versions")
    mappings = ("token_extras", "sequence_extras", "media")
    return (
        all(torch.equal(getattr(one, name), getattr(other, name)) for name in columns)
        and all(getattr(one, name).dtype == getattr(other, name).dtype for name in columns)
        and (one.reward, one.stop_reason, one.images) == (other.reward, other.stop_reason, other.images)
        and all(
            getattr(one, name).keys() == getattr(other, name).keys()
            and all(torch.equal(value, getattr(other, name)[key]) for key, value in getattr(one, name).items())
            for name in mappings
        )
    )


def test_columns_come_back_bit_for_bit() -> None:
    """Several trajectories, with extra columns, images and media; rewards are doubles."""
    plain = trajectory(reward=0.1 + 0.2)
    rich = trajectory(
        answer="q",
        token_extras={"experts": torch.arange(6, dtype=torch.int16).reshape(3, 2)},
        sequence_extras={"feature": torch.rand(2, 2, dtype=torch.float64)},
        media={"pixel_values": torch.rand(4, 3)},
        images=(b"\x89PNG one", b"two"),
    )
    blob = to_bytes([plain, rich])

    back = from_bytes(blob, checksum(blob), "here")

    assert all(same(one, other) for one, other in zip((plain, rich), back, strict=True))
    assert back[0].reward == 0.1 + 0.2


def test_a_flipped_bit_is_noticed() -> None:
    """Damaged bytes are a storage error that names the place, at every byte."""
    blob = to_bytes([trajectory()])
    for place in range(0, len(blob), 7):
        damaged = blob[:place] + bytes([blob[place] ^ 1]) + blob[place + 1 :]
        with pytest.raises(StorageError, match="episode 7 is damaged"):
            from_bytes(damaged, checksum(blob), "episode 7")


def test_an_episode_is_there_with_everything(opened: Opened) -> None:
    """Facts, row, turns as text, columns: readable by the owner only, also while the store is open."""
    store = opened.open()
    store.ended(ended())
    store.settled(0, 0, Fate.TRAINED, 5)
    store.ended(ended(-1, row={"prompt": "z" * 30_000}))
    store.close()
    store.close()

    first, evaluated = opened.facts()
    with Reader(opened.folder) as reader:
        row, (turns,) = reader.content(first["id"])
        (back,) = reader.trajectories(first["id"])
        cut, _ = reader.content(evaluated["id"])

    assert (first["fate"], first["step"], first["reward"], first["parts"]) == ("trained", 5, 0.1, {"correct": 1.0})
    assert (first["prompt_tokens"], first["output_tokens"], first["oldest_version"], first["newest_version"]) == (
        2,
        3,
        3,
        4,
    )
    assert (first["replica"], first["seconds"], first["reward_status"], first["stop"]) == (
        "rollout/0",
        1.5,
        "ok",
        "stop",
    )
    assert row == {"prompt": "ab", "answer": "xyz"}
    assert turns == [{"role": "given", "text": "ab"}, {"role": "generated", "text": "xyz"}]
    assert same(back, trajectory())
    assert (evaluated["kind"], evaluated["fate"], evaluated["step"]) == ("eval", "evaluated", None)
    assert len(cut["prompt"]) < 21_000
    assert stat.S_IMODE((opened.folder / schema.FILE).stat().st_mode) == 0o600


def step_batch(*trajectories: Trajectory, proximal: float = 0.0) -> Batch:
    """Return what a step trained on: the advantage of a token is its number in the batch."""
    batch = Batch.pack(
        [Episode(trajectories=[each], task_id=TaskId("t"), group_id=GroupId("t")) for each in trajectories]
    )
    advantages = torch.arange(batch.num_tokens).float()
    return batch.with_tokens(advantages=advantages, proximal_logprobs=batch.tokens["logprobs"] + proximal)


def test_what_a_step_computed_is_there_per_token(opened: Opened) -> None:
    """By group as settled, member and trajectory, 0 off the mask; a ratio where the trainer's log-probs are known."""
    store = opened.open()
    store.ended(ended(1, 1, trajectories=[trajectory(answer="uv")]))
    store.ended(ended(0, trajectories=[trajectory(), trajectory(answer="q")]))
    store.ended(ended(1, 0))
    store.settled(1, 0, Fate.TRAINED, 3)
    store.settled(0, 0, Fate.TRAINED, 3)
    packed = (trajectory(), trajectory(answer="uv"), trajectory(), trajectory(answer="q"))
    store.learned(3, step_batch(*packed, proximal=math.log(2.0)))
    store.ended(ended(2))
    store.settled(2, 0, Fate.TRAINED, 4)
    store.learned(4, step_batch(trajectory()))
    store.close()

    with Reader(opened.folder) as reader:
        second, two, first, last = (reader.learned(facts["id"]) for facts in reader.facts())
    assert [each["advantage"].tolist() for each in first] == [[0, 0, 2, 3, 4]]
    assert [each["advantage"].tolist() for each in second] == [[0, 0, 7, 8]]
    assert [each["advantage"].tolist() for each in two] == [[0, 0, 11, 12, 13], [0, 0, 16]]
    torch.testing.assert_close(second[0]["ratio"], torch.tensor([0.0, 0.0, 2.0, 2.0]))
    assert [list(each) for each in last] == [["advantage"]]


def test_what_was_told_of_a_step_is_written_when_it_says_so(opened: Opened) -> None:
    """A checkpoint of the step waits for that: whoever is killed after it finds the step's episodes trained."""
    store = opened.open()
    for step in range(1, 6):
        store.ended(ended(step))
        store.settled(step, 0, Fate.TRAINED, step)
        store.learned(step, step_batch(trajectory())).result(timeout=60)

        with Reader(opened.folder) as reader:
            assert [facts["step"] for facts in reader.facts()] == list(range(1, step + 1))
            assert [len(reader.learned(facts["id"])) for facts in reader.facts()] == [1] * step
    store.close()

    assert store.learned(6, step_batch(trajectory())).done()


def test_long_episodes_are_written_few_at_a_time(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes of many are not made at once, and nobody gathers more while some wait: a step hears no later of them."""
    monkeypatch.setattr(store_module, "MAX_TOKENS", 10)  # two episodes of five
    monkeypatch.setattr(store_module, "GATHER_S", 600.0)
    store = opened.open()
    for index in range(5):
        store.ended(ended(index))
        store.settled(index, 0, Fate.TRAINED, 1)
    store.learned(1, step_batch(*[trajectory()] * 5)).result(timeout=60)
    store.close()

    with closing(sqlite3.connect(opened.folder / schema.FILE)) as database:
        counts = [count for (count,) in database.execute("SELECT count(*) FROM episodes GROUP BY chunk ORDER BY chunk")]
    assert sum(counts) == 5 and max(counts) == 2
    assert [facts["step"] for facts in opened.facts()] == [1] * 5


def test_nobody_waits_for_a_store_that_ended(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the fault of its own: the run is told, a checkpoint goes on, closing ends."""

    def faulty(*_: object) -> None:
        raise ZeroDivisionError("a fault")

    monkeypatch.setattr(Store, "_learn", faulty)
    store = opened.open()
    for step in (1, 2):
        store.ended(ended(step))
        store.settled(step, 0, Fate.TRAINED, step)
        store.learned(step, step_batch(trajectory())).result(timeout=60)

    with pytest.raises(StorageError, match=r"(?s)not written any more.*a fault"):
        store.check()
    store.close()


def test_a_step_that_was_undone_or_is_not_whole_keeps_no_columns(opened: Opened) -> None:
    """A resume before it takes them back, they leave with their episodes; nothing is given to the wrong episode."""
    store = opened.open(keep=1)
    for index in range(3):
        if index != 1:
            store.ended(ended(index))
        store.settled(index, 0, Fate.TRAINED, index + 1)
        store.learned(index + 1, step_batch(trajectory()))
    store.close()
    with Reader(opened.folder) as reader:
        kept = {facts["step"]: len(reader.learned(facts["id"])) for facts in reader.facts()}
    again = opened.open()
    again.kept(2, 1, lambda _: False)
    again.close()

    assert kept[3] == 1
    with closing(sqlite3.connect(opened.folder / schema.FILE)) as database:
        assert [step for (step,) in database.execute("SELECT step FROM steps WHERE step > 1")] == []


def test_a_failed_episode_is_there_with_row_and_output(opened: Opened) -> None:
    """What it had generated, and the error; its siblings share its fate."""
    store = opened.open()
    store.ended(ended(2, 0))
    store.ended(ended(2, 1, ending=Ending.FAILED, error="the reward raised", reward=None))
    store.settled(2, 0, Fate.FAILED)
    store.close()

    sibling, failed = opened.facts()
    assert (sibling["outcome"], sibling["fate"]) == ("finished", "failed")
    assert (failed["outcome"], failed["fate"], failed["reward"]) == ("failed", "failed", None)
    assert failed["error"] == "the reward raised"
    assert opened.facts(Filter(text="REWARD raised")) == [failed]


def test_secrets_of_rows_and_keys_in_texts_are_hidden(opened: Opened) -> None:
    """What the run redacts, and what looks like a key in a prompt."""
    key = "sk-" + "a1" * 20
    store = opened.open()
    store.ended(ended(row={"password": "hunter2"}, trajectories=[trajectory(prompt=f"use {key}")]))
    store.ended(
        ended(1, ending=Ending.FAILED, error="401 of https://x/?api_key=hunter2: Bearer hunter2xx", reward=None)
    )
    store.close()

    data = b"".join(path.read_bytes() for path in opened.folder.iterdir())
    with Reader(opened.folder) as reader:
        row, ((given, _),) = reader.content(1)

    assert (row["password"], given["text"][4:]) == ("<redacted>", "<redacted>")
    assert b"hunter2" not in data and key.encode() not in data


def test_the_oldest_leave_first_and_what_waits_stays(opened: Opened) -> None:
    """`keep` bounds what was used; a group that waits for its step is never thrown away."""
    store = opened.open(keep=10)
    store.ended(ended(0))
    for index in range(1, 41):
        store.ended(ended(index))
        store.settled(index, 0, Fate.TRAINED, index)
    store.close()

    tasks = [facts["task_index"] for facts in opened.facts()]
    assert tasks[0] == 0 and len(tasks) <= 12 and tasks[-1] == 40


def test_a_resume_gets_back_what_was_not_trained_on(opened: Opened) -> None:
    """Whole groups of unused tasks, as they were; what later weights made is taken back."""
    store = opened.open()
    for index in range(5):
        for member in range(2):
            later = {"version": 7, "trajectories": [trajectory(version=7)]} if index == 3 else {}
            store.ended(ended(index, member, **later))
    store.ended(ended(5, 0))  # its sibling had not finished
    store.settled(0, 0, Fate.TRAINED, 4)
    store.settled(1, 0, Fate.TRAINED, 6)
    store.close()

    again = opened.open()
    kept = again.kept(5, 2, lambda index: index in (0, 4))
    again.close()

    assert [(group.task_index, len(group.episodes)) for group in kept] == [(1, 2), (2, 2)]
    assert same(kept[0].episodes[1].trajectories[0], trajectory())
    assert kept[0].episodes[0].metrics == {"correct": 1.0}
    fates = {facts["task_index"]: facts["fate"] for facts in opened.facts()}
    assert fates == {0: "trained", 1: "waiting", 2: "waiting", 3: "taken back", 4: "taken back", 5: "taken back"}


def test_of_a_task_issued_again_the_last_attempt_counts(opened: Opened) -> None:
    """An earlier attempt that was never settled does not come back beside it."""
    store = opened.open()
    store.ended(ended(0))
    store.ended(ended(0, attempt=1))
    store.close()

    again = opened.open()
    assert [(group.task_index, group.attempt) for group in again.kept(9, 1, lambda _: False)] == [(0, 1)]
    again.close()


def test_a_damaged_episode_is_told_and_issued_again(opened: Opened) -> None:
    """The others come back; this one's group does not."""
    store = opened.open()
    store.ended(ended(0))
    store.close()
    store = opened.open()
    store.ended(ended(1))
    store.close()
    with sqlite3.connect(opened.folder / schema.FILE) as database:
        database.execute("UPDATE chunks SET columns = zeroblob(length(columns)) WHERE id = 1")

    again = opened.open()
    kept = again.kept(9, 1, lambda _: False)
    again.close()

    assert [group.task_index for group in kept] == [1]
    assert [kind for kind, _ in opened.told] == ["episodes_damaged"]


def test_a_disk_that_is_full_for_a_moment_loses_nothing(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """The write is tried again and told; everything is there afterwards, once."""
    monkeypatch.setattr(store_module, "RETRY_S", 0.0)
    store = opened.open()
    refusals = iter([sqlite3.OperationalError("database or disk is full")] * 3)
    whole = store._trim

    def full(database: sqlite3.Connection, written: int) -> None:
        for error in refusals:
            raise error
        whole(database, written)

    monkeypatch.setattr(store, "_trim", full)
    store.ended(ended())
    while len(opened.told) < 2:
        store.check()
    store.close()

    assert [kind for kind, _ in opened.told] == ["episodes_wait", "episodes_written_again"]
    assert len(opened.facts()) == 1


def test_a_disk_that_stays_full_ends_the_run_with_a_named_error(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the patience `check` raises what and where; closing still ends."""
    monkeypatch.setattr(store_module, "RETRY_S", 0.0)
    store = opened.open(patience_s=0.0)

    def full(database: sqlite3.Connection, written: int) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(store, "_trim", full)
    store.ended(ended())
    with pytest.raises(StorageError, match="cannot be written") as told:
        while True:
            store.check()
    store.close()

    assert "disk is full" in told.value.why


def test_what_sqlite_takes_back_by_itself_hides_no_error(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """A really full database ends its transaction: there is nothing to roll back, and the words are of the disk."""
    monkeypatch.setattr(store_module, "RETRY_S", 0.0)
    store = opened.open(patience_s=0.0)
    whole = store._trim

    def full(database: sqlite3.Connection, written: int) -> None:
        database.execute("ROLLBACK")  # as SQLite does where a page cannot be written
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(store, "_trim", full)
    monkeypatch.setattr(store_module, "LEAST_FREE", 1 << 62)
    store.ended(ended())
    with pytest.raises(StorageError, match="cannot be written") as told:
        while True:
            store.check()
    monkeypatch.setattr(store, "_trim", whole)
    store.close()

    assert told.value.why == "No space left on device (database or disk is full)"


def test_an_episode_that_cannot_be_written_stops_no_other(opened: Opened) -> None:
    """It is told; the next one is there."""
    store = opened.open()
    store.ended(ended(0, trajectories=[object()]))
    store.ended(ended(1))
    store.close()

    assert [kind for kind, _ in opened.told] == ["episode_not_kept"]
    assert [facts["task_index"] for facts in opened.facts()] == [1]


def test_reading_goes_by_filter_and_order(opened: Opened) -> None:
    """Steps, tasks and all their members, text; best, worst, longest."""
    store = opened.open()
    for index, (reward, answer) in enumerate([(0.5, "xy"), (1.0, "x" * 9), (0.0, "Needle")]):
        store.ended(ended(index, trajectories=[trajectory(answer=answer, reward=reward)]))
        store.settled(index, 0, Fate.TRAINED, index + 1)
    store.ended(ended(12, trajectories=[trajectory(answer="xyzz")]))
    store.close()

    def tasks(chosen: Filter | None = None, **more: Any) -> list[int]:
        return [facts["task_index"] for facts in opened.facts(chosen, **more)]

    assert tasks(Filter(step=2)) == [1]
    assert tasks(Filter(task="train/0/1")) == [1]
    assert tasks(Filter(task="train/0")) == [0, 1, 2, 12]
    assert tasks(Filter(text="needle")) == [2]
    assert tasks(Filter(fate="waiting")) == [12]
    assert tasks(order=Order.BEST, limit=1) == [1] and tasks(order=Order.WORST, limit=1) == [2]
    assert tasks(order=Order.LONGEST, limit=1) == [1] and tasks(order=Order.SHORTEST, limit=1) == [0]
    assert tasks(order=Order.NEWEST, limit=2, skip=1) == [2, 1]


def test_a_folder_without_episodes_is_told(tmp_path: Path) -> None:
    """Nothing there, or something else: what, why and what to do."""
    with pytest.raises(StorageError, match="there is no"):
        Reader(tmp_path)
    (tmp_path / schema.FILE).write_bytes(b"not a database at all, but some text")
    with pytest.raises(StorageError, match="cannot be read"):
        Reader(tmp_path)
    (tmp_path / schema.FILE).unlink()
    with sqlite3.connect(tmp_path / schema.FILE) as database:
        database.execute("PRAGMA user_version = 9")
    with pytest.raises(StorageError, match="has version 9"):
        Reader(tmp_path)


def test_samples_are_the_best_and_the_worst_of_a_step(opened: Opened) -> None:
    """As rows of a table with their texts; none of another step, none without a store."""
    store = opened.open()
    for index, reward in enumerate((0.0, 0.25, 0.5, 1.0)):
        store.ended(ended(index, trajectories=[trajectory(reward=reward)], reward=RewardResult(value=reward)))
        store.settled(index, 0, Fate.TRAINED, 5)
    store.close()

    rows = samples(opened.folder, 5, 3)

    assert [dict(zip(COLUMNS, row, strict=True))["reward"] for row in rows] == [1.0, 0.0, 0.5]
    first = dict(zip(COLUMNS, rows[0], strict=True))
    assert (first["step"], first["task"], first["prompt"], first["completion"]) == (5, "train/0/3", "ab", "xyz")
    assert (len(samples(opened.folder, 5, 99)), samples(opened.folder, 6, 3)) == (4, [])
    assert samples(opened.folder / "nowhere", 5, 3) == []
