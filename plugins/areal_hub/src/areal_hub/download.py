"""Files of the hub in the cache of this machine, by the library huggingface_hub.

Knows: which files of a model are wanted, and what is to be done about every way in which they cannot be had.
Does not know: what a model is (`areal_core.config.model_folder`). Nothing that could run code is fetched.
"""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import HfApi, snapshot_download
from huggingface_hub import constants as settings
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from areal_core.contract.errors import ModelError
from areal_hub.names import HubName

WANTED = ("*.json", "*.safetensors", "*.txt", "*.model", "*.tiktoken", "*.jinja")
"""Weights, configuration, tokenizer, chat template. No pickles, no Python."""
_SUBFOLDERS = ("*/*",)


def model_files(name: HubName) -> Path:
    """Return the folder of a model's commit, fetched if it is not here; its last part is the commit.

    Raises:
        ModelError: there is no such model or revision, it is not for everybody, or it is not here and the hub cannot
            be reached.
    """
    try:
        found = snapshot_download(
            name.repo, revision=name.revision or None, allow_patterns=list(WANTED), ignore_patterns=list(_SUBFOLDERS)
        )
    except Exception as error:  # whatever the library and its connections raise
        raise _told(name, error) from None
    return Path(str(found))


def data_commit(name: HubName) -> str:
    """Return the commit of a data set, empty where the hub cannot be asked: loading it says what is wrong."""
    try:
        return HfApi().dataset_info(name.repo, revision=name.revision or None).sha or ""
    except Exception:  # as above
        return ""


def _told(name: HubName, error: Exception) -> ModelError:
    what, why = f"the model {str(name)!r} cannot be fetched", str(error).partition("\n")[0][:300]
    if isinstance(error, GatedRepoError):
        return ModelError(
            what,
            why="its owner gives it to whom it chooses",
            fix=f"ask for access on https://huggingface.co/{name.repo}, then `hf auth login` or set HF_TOKEN",
        )
    if isinstance(error, RevisionNotFoundError):
        return ModelError(what, why=f"it has no revision {name.revision!r}", fix="name a branch, a tag or a commit")
    if isinstance(error, RepositoryNotFoundError):
        return ModelError(
            f"model {str(name)!r} does not exist",
            why=f"there is no folder of that name here, and {settings.ENDPOINT} shows no such model to this user",
            fix="correct model.path: a folder, or ORGANISATION/NAME; for a private one `hf auth login` or set HF_TOKEN",
        )
    if settings.HF_HUB_OFFLINE or isinstance(error, OfflineModeIsEnabled):
        return ModelError(
            what,
            why="there is no folder of that name here, HF_HUB_OFFLINE is set, and the cache does not have all of it",
            fix=f"on a machine with a network: hf download {name.repo}{_revision(name)}; or name a folder",
        )
    if isinstance(error, HfHubHTTPError) and not isinstance(error, LocalEntryNotFoundError):
        return ModelError(what, why=why, fix="try again; or name a folder: model.path=DIR")
    return ModelError(
        what,
        why=f"there is no folder of that name here, {settings.ENDPOINT} cannot be reached, and the cache "
        f"{settings.HF_HUB_CACHE} does not have all of it",
        fix=f"mend the network (HF_ENDPOINT names a mirror), or copy the model here: hf download {name.repo}"
        f"{_revision(name)} --local-dir DIR on a machine that has one, then model.path=DIR",
    )


def _revision(name: HubName) -> str:
    return f" --revision {name.revision}" if name.revision else ""
