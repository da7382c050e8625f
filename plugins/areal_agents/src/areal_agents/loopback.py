"""Whether what this process asks its own endpoint arrives there: proxies, and how many connections may be open.

Knows: variables of the environment, limits of the system.
Does not know: who asks.
"""

from __future__ import annotations

import resource
from urllib.request import getproxies, proxy_bypass

from areal_core.contract.errors import ConfigError

_WANTED = 65_536
"""An agent that asks holds two descriptors: its client's and the endpoint's."""


def check_proxies() -> None:
    """Refuse an environment whose clients would ask a proxy for this machine's own address.

    Raises:
        ConfigError: there is such a proxy.
    """
    proxies = getproxies()
    if (proxies.get("http") or proxies.get("all")) and not proxy_bypass("127.0.0.1"):
        raise ConfigError(
            "what the agent asks would go to a proxy",
            why="HTTP_PROXY or ALL_PROXY is set, and NO_PROXY does not name 127.0.0.1, where the endpoint is",
            fix="export NO_PROXY=127.0.0.1,localhost",
        )


def make_room_for_connections() -> None:
    """Raise this process's limit on descriptors, as far as the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED if hard == resource.RLIM_INFINITY else min(_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
