"""Rows with images: shown in their order where the conversation wants them, or the row is refused by name."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from areal_core.contract.data import Episode
from areal_core.contract.errors import DatasetError
from areal_core.contract.ids import GroupId, TaskId
from areal_core.contract.inference import Generation, SamplingParams, VersionSpan
from areal_core.contract.workflow import RewardInput, RewardResult
from areal_tasks.datasets.hub import HubConfig, hub
from areal_tasks.workflows.single_turn import SingleTurnConfig, SingleTurnWorkflow
from areal_torch.image_files import decoded
from areal_torch.image_parts import with_image_parts
from areal_torch.testing.models import IMAGE_TOKENS
from areal_torch.tokenizers import character_tokenizer

START, END, PLACE, _ = IMAGE_TOKENS
SHOWN = f"{START}{PLACE}{END}"
TEMPLATE = (
    "{% for m in messages %}{{ m.role[0] }}>{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{% if part.type == 'image' or 'image' in part %}" + SHOWN + "{% else %}{{ part.text }}"
    "{% endif %}{% endfor %}{% endif %}-{% endfor %}a>"
)
TOKENIZER = character_tokenizer("abcdefghijklmnopqrstuvwxyz>- <")
TOKENIZER.add_special_tokens({"additional_special_tokens": list(IMAGE_TOKENS)})
TOKENIZER.chat_template = TEMPLATE


class SeeingSession:
    """A session of a model that takes images, which answers one letter and remembers what it was asked."""

    sampling, tokenizer = SamplingParams(), TOKENIZER
    task_id, group_id = TaskId("train/2/7"), GroupId("train/2/7")

    def __init__(self, *, sees: bool = True) -> None:
        self.image_token_id = TOKENIZER.convert_tokens_to_ids(PLACE) if sees else None
        self.prompt = ""
        self.images: tuple[bytes, ...] = ()
        self.rows: list[Mapping[str, Any]] = []

    async def generate(self, input_ids: Any, *, images: Sequence[bytes] = ()) -> Generation:
        self.prompt, self.images = TOKENIZER.decode(input_ids), tuple(images)
        return Generation(
            output_ids=(5,),
            logprobs=(-0.5,),
            version_spans=(VersionSpan(start=0, stop=1, version=3),),
            stop_reason="stop",
        )

    async def reward(self, value: RewardInput) -> RewardResult:
        self.rows.append(value.row)
        return RewardResult(value=1.0)


def episode(row: Mapping[str, Any], session: SeeingSession, **config: Any) -> Episode:
    """Make one episode. Any: fields of SingleTurnConfig."""
    return asyncio.run(SingleTurnWorkflow(SingleTurnConfig(**config)).arun_episode(session, row))  # type: ignore[arg-type]


def file_of(colour: int) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (3, 2), (colour, 0, 0)).save(stream, "PNG")
    return stream.getvalue()


FILES = [file_of(10), file_of(20), file_of(30)]


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


@pytest.mark.parametrize(
    ("row", "config", "prompt"),
    [
        ({"prompt": f"{SHOWN}ab"}, {}, f"{SHOWN}ab"),
        ({"prompt": "ab"}, {"chat": True}, f"u>{SHOWN}ab-a>"),
        ({"prompt": "a<image>b"}, {"chat": True}, f"u>a{SHOWN}b-a>"),
        ({"prompt": "ab"}, {"system": "s"}, f"s>s-u>{SHOWN}ab-a>"),
        ({"messages": [user("ab")]}, {}, f"u>{SHOWN}ab-a>"),
        ({"messages": [user("ab<image>")]}, {}, f"u>ab{SHOWN}-a>"),
        ({"messages": [user("ab<x>")]}, {"image_marker": "<x>"}, f"u>ab{SHOWN}-a>"),
        (
            {"messages": [{"role": "system", "content": "s"}, user("a"), user("b")]},
            {},
            f"s>s-u>{SHOWN}a-u>b-a>",
        ),
        (
            {"messages": [user("a"), user([{"type": "text", "text": "b"}, {"type": "image"}])]},
            {},
            f"u>a-u>b{SHOWN}-a>",
        ),
        (  # as the library `datasets` gives parts back: each with the keys of all
            {"messages": [user([{"type": "image", "text": None}, {"type": "text", "text": "b", "image": None}])]},
            {},
            f"u>{SHOWN}b-a>",
        ),
        ({"input_ids": TOKENIZER.encode(f"a{SHOWN}")}, {}, f"a{SHOWN}"),
    ],
)
def test_an_image_stands_where_the_row_says(row: Mapping[str, Any], config: dict[str, Any], prompt: str) -> None:
    """Parts of the data set's own, a marker in the text, or before the user's first words."""
    session = SeeingSession()
    (trajectory,) = episode({**row, "images": FILES[:1]}, session, **config).trajectories

    assert (session.prompt, list(session.images)) == (prompt, FILES[:1])
    assert list(trajectory.images) == FILES[:1]


def test_images_are_shown_in_the_order_of_the_row_as_it_holds_them(tmp_path: Path) -> None:
    """A file's bytes, a path within the folder that was named, what `datasets` stores, and a decoded picture."""
    (tmp_path / "one.png").write_bytes(FILES[1])
    held = [FILES[0], "one.png", {"bytes": FILES[0], "path": None}, Image.open(io.BytesIO(FILES[2]))]
    row = {"prompt": "ab", "images": held}
    session = SeeingSession()
    episode(row, session, chat=True, image_folder=str(tmp_path))

    assert [decoded(image).getpixel((0, 0))[0] for image in session.images] == [10, 20, 10, 30]
    assert session.rows == [row] and session.rows[0] is row


@pytest.mark.parametrize("none", [{}, {"images": None}, {"images": []}])
def test_a_row_without_images_is_asked_as_ever(none: Mapping[str, Any]) -> None:
    """The marker is text then."""
    session = SeeingSession()
    episode({"prompt": "a <image>", **none}, session, chat=True)

    assert (session.prompt, session.images) == ("u>a <image>-a>", ())


def test_one_image_needs_no_list() -> None:
    """A column of single images, renamed."""
    session = SeeingSession()
    episode({"prompt": "ab", "images": FILES[0]}, session, chat=True)

    assert session.images == (FILES[0],)


@pytest.mark.parametrize(
    ("row", "config", "message"),
    [
        ({"prompt": "ab", "images": FILES[:1]}, {}, r"1 images, and its prompt has places for 0(.|\n)*chat: true"),
        ({"prompt": "<image>ab", "images": FILES[:2]}, {"chat": True}, "2 images, and its prompt has places for 1"),
        ({"prompt": f"{SHOWN}ab"}, {}, "0 images, and its prompt has places for 1"),
        ({"prompt": "ab", "images": ["nowhere.png"]}, {"chat": True}, r"image 0 in the row(.|\n)*nowhere.png"),
        ({"prompt": "ab", "images": [FILES[0], 5]}, {"chat": True}, "image 1 in the row of train/2/7 is of type int"),
    ],
)
def test_a_row_whose_images_do_not_fit_is_named(row: Mapping[str, Any], config: dict[str, Any], message: str) -> None:
    """The task, how many images, how many places, and what to do."""
    session = SeeingSession()
    with pytest.raises(DatasetError, match=message) as caught:
        episode(row, session, **config)

    assert "train/2/7" in caught.value.what
    assert session.prompt == "", "the policy was asked all the same"


def test_images_for_a_model_that_takes_none_are_refused() -> None:
    """Leaving them out would train it on guesses."""
    with pytest.raises(DatasetError, match="1 images, and the model takes none"):
        episode({"prompt": "ab", "images": FILES[:1]}, SeeingSession(sees=False), chat=True)


def test_the_images_of_a_row_are_read_once_for_its_group(tmp_path: Path) -> None:
    """Members share the row; an equal row of another prompt is read for itself."""
    path = tmp_path / "one.png"
    path.write_bytes(FILES[0])
    workflow, row = SingleTurnWorkflow(SingleTurnConfig(chat=True)), {"prompt": "ab", "images": [str(path)]}

    async def shown(row: Mapping[str, Any]) -> tuple[bytes, ...]:
        session = SeeingSession()
        await workflow.arun_episode(session, row)  # type: ignore[arg-type]
        return session.images

    async def test() -> None:
        assert await asyncio.gather(*(shown(row) for _ in range(4))) == [(FILES[0],)] * 4
        path.write_bytes(FILES[1])
        assert await shown(row) == (FILES[0],)
        assert await shown({**row, "images": [str(path)]}) == (FILES[1],)

    asyncio.run(test())


def test_parts_are_as_chat_templates_take_them() -> None:
    """A message without an image stays text, and there is no part without a word."""
    texts = ["<image>Is it", "a", "<image> red<image>?"]

    assert with_image_parts([user(text) for text in texts], 3, "<image>") == [
        user([{"type": "image"}, {"type": "text", "text": "Is it"}]),
        user("a"),
        user([{"type": "image"}, {"type": "text", "text": " red"}, {"type": "image"}, {"type": "text", "text": "?"}]),
    ]


@given(
    st.lists(st.lists(st.sampled_from(["ab", "<image>", " "]), max_size=4), min_size=1, max_size=3), st.integers(1, 3)
)
def test_text_is_never_lost_or_moved(texts: list[list[str]], count: int) -> None:
    """With the images read as markers again a conversation is the one it was, or has them all at the beginning."""
    messages = [user("".join(pieces)) for pieces in texts]
    before = [message["content"] for message in messages]
    made = [_told(message["content"]) for message in with_image_parts(messages, count, "<image>")]

    if "<image>" in "".join(before):
        assert made == before
    else:
        assert made == ["<image>" * count + before[0], *before[1:]]


def _told(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join("<image>" if part["type"] == "image" else part["text"] for part in content)


@pytest.mark.parametrize("decode", [True, False])
def test_a_saved_data_set_with_images_is_shown_as_it_is(tmp_path: Path, decode: bool) -> None:
    """Rows of the library `datasets`, decoded or not, with the parts of a conversation beside."""
    datasets = pytest.importorskip("datasets")
    parts = [{"type": "text", "text": "ab"}, {"type": "image", "text": None}]
    features = datasets.Features(
        images=datasets.List(datasets.Image(decode=decode)),
        messages=datasets.List({"role": datasets.Value("string"), "content": datasets.List(
            {"type": datasets.Value("string"), "text": datasets.Value("string")})}),
    )  # fmt: skip
    rows = {"images": [[{"bytes": FILES[0]}, {"bytes": FILES[1]}]], "messages": [[user([*parts, parts[1]])]]}
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(tmp_path / "saved")
    session = SeeingSession()
    episode(hub(HubConfig(path=str(tmp_path / "saved")))[0], session)

    assert session.prompt == f"u>ab{SHOWN}{SHOWN}-a>"
    assert [decoded(image).getpixel((0, 0))[0] for image in session.images] == [10, 20]
