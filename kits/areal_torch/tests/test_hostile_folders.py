"""A folder that is not what it should be is refused in our words, by whoever reads it, soon, and with little memory."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from areal_core.config.model_folder import inspect_model, load_tokenizer
from areal_core.contract.errors import ArealError, ModelError
from areal_core.contract.train import Head
from areal_torch import hf
from areal_torch.conversion.command import convert
from areal_torch.folder_checks import check_index
from areal_torch.testing.hostile_folders import INDEX, bounded, hostile_folders
from areal_torch.testing.models import make_tiny_model

WAYS = hostile_folders()
SAMPLE = 9
"""Of so many ways one is tried where all would take minutes; with the mark `hostile` all are."""


def trained(folder: Path) -> None:
    """Load the folder as trainers do that take any model of transformers."""
    config = hf.load_config(str(folder), Head.CAUSAL_LM, images=True)
    hf.load_model(str(folder), config, Head.CAUSAL_LM)


def valued(folder: Path) -> None:
    """Load the folder as a critic."""
    hf.load_model(str(folder), hf.load_config(str(folder), Head.VALUE), Head.VALUE)


def converted(folder: Path) -> None:
    """Write the folder again, as one of the same format."""
    convert(folder, folder.with_name("converted"), to="hf")


READERS: dict[str, Callable[[Path], object]] = {
    "the plan": lambda folder: inspect_model(str(folder), images=True),
    "a trainer": trained,
    "a critic": valued,
    "areal convert": converted,
    "a tokenizer": load_tokenizer,
}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that everybody reads."""
    return make_tiny_model(tmp_path_factory.mktemp("good") / "model", layers=1)


def odd(good: Path, way: str, into: Path) -> Path:
    """Return the folder, spoiled."""
    shutil.copytree(good, into / "model")
    WAYS[way](into / "model")
    return into / "model"


def judge(read: Callable[[Path], object], folder: Path) -> None:
    """Read a folder: in time, in memory, and with nothing but errors of ours, each with a reason."""
    try:
        with bounded():
            read(folder)
    except ArealError as error:
        assert error.code != ArealError.code
        assert error.why, error


def test_there_are_hundreds() -> None:
    """A list that shrinks to nothing would pass every test below."""
    assert len(WAYS) > 200


@pytest.mark.parametrize("way", WAYS)
def test_the_plan_refuses_it_in_our_words(way: str, good: Path, tmp_path: Path) -> None:
    """What `areal train --dry-run` reads of a folder, each way to spoil one."""
    judge(READERS["the plan"], odd(good, way, tmp_path))


@pytest.mark.parametrize("reader", sorted(set(READERS) - {"the plan"}))
@pytest.mark.parametrize("way", list(WAYS)[::SAMPLE])
def test_every_reader_refuses_it_in_our_words(way: str, reader: str, good: Path, tmp_path: Path) -> None:
    """Trainer, critic, conversion and tokenizer, some of the ways."""
    judge(READERS[reader], odd(good, way, tmp_path))


def test_a_billion_layers_keep_no_tokenizer_waiting(good: Path, tmp_path: Path) -> None:
    """Transformers makes lists as long as a configuration says."""
    with pytest.raises(ModelError, match="more than 100000 layers"):
        load_tokenizer(odd(good, "config.json: more layers than there are", tmp_path))


@pytest.mark.hostile
@pytest.mark.parametrize("reader", sorted(set(READERS) - {"the plan"}))
@pytest.mark.parametrize("way", WAYS)
def test_every_reader_refuses_every_one_in_our_words(way: str, reader: str, good: Path, tmp_path: Path) -> None:
    """All of the ways."""
    judge(READERS[reader], odd(good, way, tmp_path))


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("config.json: architectures is a number", "architectures in .*config.json is 5"),
        ("config.json: vocab_size is a word", "vocab_size in .*config.json is 'many'(.|\n)*of type int"),
        ("config.json: text_config is a list", r"text_config in .*config.json is \[1\](.|\n)*of type dict"),
        ("config.json: deep", "config.json cannot be read(.|\n)*recursion"),
        ("config.json: zeros, a quarter of a GiB", "config.json cannot be read(.|\n)*at most 100000000 bytes"),
        ("config.json: a link to /dev/zero", "config.json cannot be read(.|\n)*no regular file"),
        ("a pipe called extra.safetensors", "extra.safetensors is no regular file"),
        ("model.safetensors: data_offsets of none", "model.safetensors is not a complete safetensors file"),
        ("model.safetensors: a huge shape", "embed_tokens.weight: shape .* at bytes 0 to"),
    ],
)
def test_the_file_and_the_key_are_named(way: str, words: str, good: Path, tmp_path: Path) -> None:
    """Who is told can find what is wrong."""
    folder = odd(good, way, tmp_path)

    with bounded(), pytest.raises(ModelError, match=words):
        inspect_model(str(folder))


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("config.json: more layers than there are", "num_hidden_layers in .*config.json is 1000000000"),
        ("config.json: a wider model", "hidden_size in .*config.json is 16777216"),
        ("config.json: a vocabulary of billions", "vocab_size in .*config.json is 2147483647"),
        (f"{INDEX}: names a file outside", "names '../outside.safetensors'"),
        (f"{INDEX}: has a list", "weight_map must name a file"),
    ],
)
def test_what_no_tensor_has_is_refused_before_it_is_made(way: str, words: str, good: Path, tmp_path: Path) -> None:
    """Billions of layers would take hours, and a width of millions all the memory there is."""
    folder = odd(good, way, tmp_path)

    with bounded(), pytest.raises(ModelError, match=words):
        trained(folder)


def test_an_index_of_the_folders_own_files_passes(good: Path, tmp_path: Path) -> None:
    """The check refuses nothing that saving writes; a good folder is still read by everybody."""
    folder = odd(good, f"{INDEX}: names a file that is not there", tmp_path)

    check_index(folder)
    for read in READERS.values():
        read(good)
