"""A Ray cluster of several machines that are one: a raylet each, at 127.0.0.2, 127.0.0.3, ...

    RAY_AUTH_TOKEN=... python -m areal_ray.testing.machines 3      prints its address, and ends with its standard input

Knows: Ray's own utility for such clusters.
Does not know: what runs there.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from ray.cluster_utils import Cluster

_STORE_BYTES = 128 << 20
_NUM_CPUS = 8


def main(count: int) -> None:
    """Start the machines, the first of them the head, and wait until nobody is there any more."""
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    with tempfile.TemporaryDirectory(prefix="areal-ray-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        os.environ["RAY_TMPDIR"] = folder  # or a run that looks for a cluster on this machine would find this one
        (Path(folder) / "ray").mkdir()
        cluster = Cluster()
        try:
            for number in range(count):
                cluster.add_node(
                    node_ip_address=f"127.0.0.{number + 2}",
                    num_cpus=_NUM_CPUS,
                    object_store_memory=_STORE_BYTES,
                    include_dashboard=False,
                    gcs_server_port=0,
                )
            print(cluster.address, flush=True)  # noqa: T201  # what it is started for
            sys.stdin.read()
        finally:
            cluster.shutdown()  # type: ignore[no-untyped-call]  # Ray's own


if __name__ == "__main__":
    main(int(sys.argv[1]))
