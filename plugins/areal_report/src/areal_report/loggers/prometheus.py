"""Show the last step's metrics to Prometheus, on a port of the controller's host.

Knows: the exposition format's rules for names.
Does not know: how often it is asked; between two steps the numbers stay.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import field, frozen, validators


@frozen(kw_only=True)
class PrometheusConfig:
    """Where it listens. Whoever reaches it reads all metrics: `host: 0.0.0.0` tells everybody."""

    port: int = field(default=9464, validator=[validators.ge(0), validators.lt(65536)])
    """0 takes one that is free; the file `prometheus` in the run folder says which."""
    host: str = "127.0.0.1"
    """The address it listens at."""


class PrometheusLogger:
    """The logger `prometheus`: one gauge per metric, `areal_train_entropy{run="quickstart"}` for `train/entropy`."""

    def __init__(self, config: PrometheusConfig) -> None:
        self._config = config
        self._run = ""
        self._registry: Any = None  # Any: prometheus_client's, as the next two; known only once imported
        self._server: Any = None
        self._thread: Any = None
        self._gauges: dict[str, Any] = {}
        self._told = Path()

    def start(self, run: str, folder: Path, config: Mapping[str, Any], first_step: int) -> None:
        """Listen. A port that is taken disables the logger, which events.jsonl says."""
        import prometheus_client

        self._run = run
        self._registry = prometheus_client.CollectorRegistry()
        self._server, self._thread = prometheus_client.start_http_server(
            self._config.port, addr=self._config.host, registry=self._registry
        )
        self._told = folder / "prometheus"
        self._told.write_text(f"http://{self._config.host}:{self._server.server_port}/metrics\n")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Replace the numbers; what this step did not measure is shown no longer."""
        from prometheus_client import Gauge

        named = {_name(name): value for name, value in {**values, "step": float(step)}.items()}
        for gone in self._gauges.keys() - named.keys():
            self._registry.unregister(self._gauges.pop(gone))
        for name, value in named.items():
            if name not in self._gauges:
                self._gauges[name] = Gauge(name, f"{name} of an areal run", ["run"], registry=self._registry)
            self._gauges[name].labels(run=self._run).set(value)

    def close(self) -> None:
        """Stop listening. Idempotent."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()
            self._told.unlink(missing_ok=True)
            self._server = None


def _name(metric: str) -> str:
    return "areal_" + re.sub(r"[^a-zA-Z0-9_]", "_", metric)
