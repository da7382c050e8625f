"""Questions to a server over HTTP, asked again while it is busy or not there.

Knows: the key's variable, which answers mean "later", how long to wait, when to give up.
Does not know: what is asked, or what an answer means.
"""

from __future__ import annotations

import email.utils
import json
import os
import random
import time
import weakref
from collections.abc import Mapping
from typing import Any

import httpx2
from attrs import field, frozen

from areal_core.plugins.redact import REDACTED, redact

_BUSY = (408, 425, 429, 500, 502, 503, 504)
LONGEST_PAUSE_S = 30.0


class Refused(OSError):
    """The server answered, and will not do it."""


@frozen(kw_only=True)
class Served:
    """A server that answers JSON with JSON. One per process; threads may share it. Its connections are kept open.

    Example: Served(who="judge", url="http://127.0.0.1:8000/v1", api_key_env="OPENAI_API_KEY", retries=3)
    """

    who: str
    """The server in errors, for example `judge`."""
    url: str
    """Up to and with the version of the API."""
    api_key_env: str = ""
    """The variable of the environment with the key; without one none is sent."""
    retries: int = 3
    """How often it is asked again, after about 1, 2, 4, ... seconds, or what it says itself in Retry-After."""
    within_s: float = 3600.0
    """All attempts and pauses of one question together."""
    _client: httpx2.Client = field(factory=httpx2.Client, init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        weakref.finalize(self, self._client.close)

    def post(self, route: str, body: Mapping[str, Any]) -> Any:
        """Return the answer to a POST. Any: json. Blocks.

        Raises:
            Refused: the server refuses for good; says with what words.
            OSError: it is still busy or out of reach when there is no attempt or no time left.
            ValueError: what it answered is no JSON.
        """
        key = os.environ.get(self.api_key_env, "") if self.api_key_env else ""
        headers = {"authorization": f"Bearer {key}"} if key else {}
        ends = time.monotonic() + self.within_s
        for attempt in range(self.retries + 1):
            asked_to_wait = 0.0
            try:
                left = max(ends - time.monotonic(), 0.001)
                answer = self._client.post(f"{self.url.rstrip('/')}{route}", json=body, headers=headers, timeout=left)
                if answer.is_success:
                    return _read(f"the {self.who} at {redact(self.url)}", answer)
                said = _without(key, answer.text[:300])
                problem = f"the {self.who} at {redact(self.url)} answered {answer.status_code}: {said}"
                if answer.status_code not in _BUSY:
                    raise Refused(problem)
                asked_to_wait = retry_after(answer.headers.get("retry-after", ""))
            except httpx2.RequestError as error:
                reason = _without(key, str(error)) or type(error).__name__
                problem = f"the {self.who} at {redact(self.url)} cannot be reached: {reason}"
            pause = max(min(2.0**attempt, LONGEST_PAUSE_S) * random.uniform(0.5, 1.0), asked_to_wait)
            if attempt == self.retries or time.monotonic() + pause >= ends:
                break
            time.sleep(pause)
        later = f", and asks to wait {asked_to_wait:.0f} s" if asked_to_wait else ""
        raise OSError(f"{problem}{later} (asked {attempt + 1} times within {self.within_s:g} s)")


def retry_after(said: str) -> float:
    """Return how many seconds a header asks to wait, which may hold them or a date; 0 if it asks for nothing."""
    if said.isdecimal():
        return float(said)
    try:
        return max(email.utils.parsedate_to_datetime(said).timestamp() - time.time(), 0.0)
    except ValueError:
        return 0.0


def _read(who: str, answer: httpx2.Response) -> Any:  # Any: json
    try:
        return json.loads(answer.content)
    except ValueError as error:
        raise ValueError(f"{who} answered no JSON ({error}): {answer.text[:100]!r}") from None


def _without(key: str, text: str) -> str:
    """Return what a server said without the key, which some repeat."""
    return str(redact(text.replace(key, REDACTED) if key else text))
