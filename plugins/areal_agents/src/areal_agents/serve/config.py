"""Options of the kind `online`.

Knows: names and ranges.
Does not know: what listens, or who comes.
"""

from __future__ import annotations

import ipaddress

from attrs import field, frozen, validators

from areal_agents.endpoint_config import EndpointConfig

KEY_FILE = "online.json"
"""In the run folder, for its user alone: `base_url` and `admin_key`."""
_PORTS = [validators.ge(0), validators.le(65_535)]


@frozen(kw_only=True)
class OnlineConfig(EndpointConfig):
    """Options under `options`, with those of chats.

    Example: OnlineConfig(port=8200, idle_timeout_s=120.0)
    """

    host: str = field(default="127.0.0.1", validator=validators.min_len(1))
    """The address to listen on; any other than loopback lets other machines in, unencrypted."""
    port: int = field(default=8200, validator=_PORTS)
    """The port to listen on; 0 takes a free one, which `online.json` tells."""
    idle_timeout_s: float = field(default=600.0, validator=validators.gt(0.0))
    """A session without a request for so long is over, and not trained on."""
    session_timeout_s: float = field(default=3600.0, validator=validators.gt(0.0))
    """A session that began so long ago is over, and not trained on."""
    max_sessions: int = field(default=1024, validator=validators.ge(1))
    """Sessions that are open at once; one more is refused with 429."""
    turn_discount: float = field(default=1.0, validator=[validators.gt(0.0), validators.le(1.0)])
    """The reward of a trajectory that ends n requests before the session's last one counts this to the power of n."""
    max_requests: int = field(default=64, validator=validators.ge(1))
    """Requests of one session; one more is refused with 429."""
    concurrency: int = field(default=8, validator=validators.ge(1))
    """Requests of one session that are generated at once; more wait."""

    @property
    def beyond_loopback(self) -> bool:
        """Whether other machines may come in."""
        try:
            return not ipaddress.ip_address(self.host).is_loopback
        except ValueError:  # a name
            return self.host != "localhost"
