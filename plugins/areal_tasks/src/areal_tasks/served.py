"""A question to an OpenAI-compatible server, asked again while it is busy or not there.

Knows: the key's variable, which answers mean "later", how long to wait.
Does not know: what is asked, or what an answer means.
"""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

_BUSY = (408, 425, 429, 500, 502, 503, 504)


def ask(who: str, url: str, route: str, body: Mapping[str, Any], *, api_key_env: str, retries: int) -> dict[str, Any]:
    """Return the answer to a POST. Any: json. Blocks; asked again after 1, 2, 4, ... seconds.

    Args:
        who: the server in errors, for example `judge`.
        url: up to and with the version of the API.
        route: for example /chat/completions.
        api_key_env: the variable of the environment with the key; without one none is sent.
        retries: how often it is asked again.

    Raises:
        OSError: the server refuses, or cannot be reached.
    """
    headers = {"content-type": "application/json"}
    if key := os.environ.get(api_key_env):
        headers["authorization"] = f"Bearer {key}"
    request = urllib.request.Request(f"{url.rstrip('/')}{route}", data=json.dumps(body).encode(), headers=headers)
    for attempt in range(retries + 1):
        try:
            with urllib.request.urlopen(request) as response:
                answer: dict[str, Any] = json.load(response)
            return answer
        except urllib.error.HTTPError as error:
            if error.code not in _BUSY or attempt == retries:
                said = error.read(300).decode(errors="replace")
                raise OSError(f"the {who} at {url} answered {error.code}: {said}") from None
        except urllib.error.URLError as error:
            if attempt == retries:
                raise OSError(f"the {who} at {url} cannot be reached: {error.reason}") from None
        time.sleep(2**attempt)
    raise AssertionError("the last attempt returns or raises")
