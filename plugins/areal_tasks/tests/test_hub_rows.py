"""The first row of a data set of the hub is read when it is opened; what is wrong with it is told as an error."""

from __future__ import annotations

import pytest

from areal_core.contract.errors import DatasetError
from areal_tasks.datasets import hub as module
from areal_tasks.datasets.hub import HubConfig, hub


class Torn:
    """Records whose image cannot be decoded, as the library `datasets` tells it."""

    column_names = ("prompt", "image")

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> object:
        raise OSError("cannot identify image file")


def test_a_first_row_that_cannot_be_decoded_says_what_why_and_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    """Called from Python too, where no run stands around it; what is wrong with a template is told as before."""
    monkeypatch.setattr(module, "_records", lambda config: Torn())

    with pytest.raises(DatasetError, match=r"first row of pics\[train\] cannot be read") as told:
        hub(HubConfig(path="pics"))
    with pytest.raises(DatasetError, match="question"):
        hub(HubConfig(path="pics", prompt="{question}"))

    assert told.value.why == "OSError: cannot identify image file"
    assert told.value.fix.startswith("mend what its columns hold")
