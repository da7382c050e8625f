"""A scorer behind a URL, which is asked about one completion or several, and answers with a reward for each.

    POST {"prompt": ..., "completion": ..., "completion_ids": [...], "stop_reason": ..., "row": {...}}
    200  {"reward": 0.5, "components": {"style": 1.0}}

    POST {"batch": [{"prompt": ..., ...}, ...]}                                          with batch_size of 2 or more
    200  {"rewards": [{"reward": 0.5, "components": {"style": 1.0}}, ...]}

Knows: these forms.
Does not know: how a server is asked (`served`), or who waits for whom in a batch (the reward pool).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import field, frozen, validators

from areal_core.contract.errors import DatasetError
from areal_core.contract.workflow import RewardInput, RewardResult, RewardStatus
from areal_tasks.rewards.finished import required
from areal_tasks.served import Refused, Served


@frozen(kw_only=True)
class RemoteConfig:
    """Options of `remote`.

    Example: RemoteConfig(url="http://127.0.0.1:9000/score", columns=("answer",), batch_size=16)
    """

    url: str = field(validator=validators.matches_re(r"https?://.+"))
    """What is asked, as it is."""
    columns: tuple[str, ...] | None = None
    """The columns of the row that are sent; null sends all."""
    batch_size: int = field(default=1, validator=validators.ge(1))
    """Completions in one request; above 1 requests and answers have the form of a batch, also about a single one."""
    batch_wait_s: float = field(default=0.05, validator=validators.ge(0.0))
    """How long a completion waits for others, at most."""
    timeout_s: float = field(default=10.0, validator=validators.gt(0.0))
    """One request with all its repetitions and pauses; keep it below `rollout.reward.timeout_s`, which ends the
    process."""
    retries: int = field(default=3, validator=validators.ge(0))
    """How often a server that is busy (408, 425, 429, 5xx) or not there is asked again, after about 1, 2, 4, ...
    seconds, or what it says in Retry-After."""
    api_key_env: str = ""
    """The environment variable with the key, sent as a bearer token; empty sends none. Keys stand in no
    configuration."""


class Remote:
    """Asks a server what completions are worth."""

    def __init__(self, config: RemoteConfig) -> None:
        """Connect to nobody yet."""
        self._config = config
        self.batch_size, self.batch_wait_s = config.batch_size, config.batch_wait_s
        self._served = Served(
            who="reward server",
            url=config.url,
            api_key_env=config.api_key_env,
            retries=config.retries,
            within_s=config.timeout_s,
        )

    def columns(self) -> Sequence[str]:
        """Return the columns that are sent by name."""
        return self._config.columns or ()

    def __call__(self, batch: Sequence[RewardInput]) -> Sequence[RewardResult]:
        """Return what the server says of each. Called in a reward process.

        Raises:
            DatasetError: a row lacks a column, or holds what is no JSON.
            Refused: the server does not take this request.
        """
        asked = [self._asked(value) for value in batch]
        several = self.batch_size > 1
        try:
            answer = self._served.post("", {"batch": asked} if several else asked[0])
        except Refused:
            raise  # one of them may be why: each is asked about alone
        except OSError as error:
            return [_failed(RewardStatus.RAISED, str(error)) for _ in batch]
        except ValueError as error:
            return [_failed(RewardStatus.INVALID, str(error)) for _ in batch]
        found = answer.get("rewards") if several and isinstance(answer, Mapping) else [answer]
        if not isinstance(found, list) or len(found) != len(batch):
            says = f"the reward server answered {str(answer)[:200]} about {len(batch)} completions"
            return [_failed(RewardStatus.INVALID, f'{says}, wanted {{"rewards": [one for each]}}') for _ in batch]
        return [_result(each) for each in found]

    def _asked(self, value: RewardInput) -> dict[str, object]:
        names = value.row if self._config.columns is None else self._config.columns
        row = {str(name): required(value.row, name) for name in names}
        for name, content in row.items():
            try:
                json.dumps(content, allow_nan=False)
            except (TypeError, ValueError) as error:
                raise DatasetError(
                    f"column {name!r} of the row cannot be sent to the reward server",
                    why=str(error),
                    fix="name the columns it needs in rollout.reward.options.columns",
                ) from None
        return {
            "prompt": value.prompt,
            "completion": value.completion,
            "completion_ids": list(value.completion_ids),
            "stop_reason": value.stop_reason,
            "row": row,
        }


def _result(said: Any) -> RewardResult:  # Any: json
    """Return what was said of one completion; whether its numbers are finite is judged with those of any reward."""
    if not isinstance(said, Mapping) or not isinstance(components := said.get("components") or {}, Mapping):
        wanted = '{"reward": number, "components": {name: number}}'
        return _failed(RewardStatus.INVALID, f"the reward server answered {str(said)[:200]}, wanted {wanted}")
    return RewardResult(value=said.get("reward"), components={str(name): part for name, part in components.items()})


def _failed(status: str, detail: str) -> RewardResult:
    return RewardResult(value=None, status=status, detail=detail)
