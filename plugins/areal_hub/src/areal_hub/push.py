"""A trained model on the hub, with its card: `push("runs/quickstart", "me/speller")`.

Knows: which files go where, by the library huggingface_hub.
Does not know: what the card says (`card`).
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from areal_core.contract.errors import ConfigError, StorageError
from areal_hub.card import PICTURE, Trained, card

CARD = "README.md"


def push(run: str | Path, to: str, *, private: bool = False, revision: str = "main", message: str = "") -> str:
    """Upload the newest model of a run with a model card, and return its address.

    Args:
        run: the run folder.
        to: ORGANISATION/NAME; made if it is not there.
        private: whether only its owners see it, if it is made now.
        revision: the branch; made if it is not there.
        message: of the commit; the run's step if empty.

    Raises:
        RunFolderError: there is no trained model.
        ConfigError: `to` is no name on the hub.
        StorageError: the hub does not take it.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    trained = Trained.of(Path(run))
    if to.count("/") != 1:
        raise ConfigError(f"{to!r} is no name on the hub", why="it is ORGANISATION/NAME", fix="for example me/my-model")
    api = HfApi()
    try:
        with tempfile.TemporaryDirectory(prefix="areal-push-") as scratch:
            folder = _together(trained, Path(scratch), to)
            url = api.create_repo(to, private=private, exist_ok=True)
            if revision != "main":
                api.create_branch(to, branch=revision, exist_ok=True)
            told = message or f"Step {trained.step} of {trained.config.name}"
            api.upload_folder(repo_id=to, folder_path=folder, revision=revision, commit_message=told)
    except HFValidationError as error:
        raise ConfigError(f"{to!r} is no name on the hub", why=str(error), fix="for example me/my-model") from None
    except (HfHubHTTPError, OSError) as error:
        denied = getattr(getattr(error, "response", None), "status_code", 0) in (401, 403)
        raise StorageError(
            f"the hub does not take {to}",
            why=str(error).strip().partition("\n")[0][:300],
            fix="`hf auth login` with a token that may write, or set HF_TOKEN"
            if denied
            else "try again; what was uploaded is kept",
        ) from None
    return str(url)


def _together(trained: Trained, scratch: Path, repo: str) -> Path:
    """Return a folder with everything that is uploaded; the weights are links."""
    for file in trained.model.iterdir():
        if file.is_file() and file.name != CARD:
            (scratch / file.name).symlink_to(file.absolute())
    if trained.picture is not None:
        shutil.copy(trained.picture, scratch / PICTURE)
    (scratch / CARD).write_text(card(trained, repo), encoding="utf-8")
    return scratch
