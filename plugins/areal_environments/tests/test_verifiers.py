"""What can be told about environments of verifiers without the library."""

from __future__ import annotations

from pathlib import Path

import pytest

from areal_core.contract.errors import ConfigError, DatasetError
from areal_environments import verifiers
from areal_environments.testing.scripted import episode
from areal_environments.verifiers import VerifiersConfig


@pytest.mark.parametrize(
    ("text", "function", "says"),
    [
        ("", ":load_environment", "has no load_environment"),
        ("1 / 0", "", "ZeroDivisionError"),
        ("def load_environment():\n    return 3", "", "it gives a int"),
        ("def load_environment():\n    raise KeyError('x')", "", "KeyError"),
    ],
)
def test_what_is_no_environment_is_told(tmp_path: Path, text: str, function: str, says: str) -> None:
    """With the file's own error."""
    path = tmp_path / f"wrong_{abs(hash((text, function)))}.py"
    path.write_text(text)
    name = f"{path}{function}"

    with pytest.raises(ConfigError) as caught:
        verifiers.rows(verifiers.VerifiersRows(environment=name))
    assert says in str(caught.value.why) and caught.value.fix


def test_a_row_of_another_data_set_is_refused() -> None:
    """It does not say what to play."""
    with pytest.raises(DatasetError, match="no column 'environment'"):
        episode(verifiers.workflow(VerifiersConfig()), {"prompt": "a"}, ["b"])
