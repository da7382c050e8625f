"""This process's link to Ray: joined, or started for a run, by whoever comes first, and left by whoever goes last.

A process has one such link at most; that is Ray's own rule. One that the user made before (a notebook, a job that
called `ray.init`) is used as it is and left alone.

Knows: addresses, Ray's token, the folder of a Ray of one's own.
Does not know: jobs or workers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue
import secrets
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

import ray
from ray._private import ray_constants
from ray.exceptions import RayError

from areal_core.contract.errors import ConfigError, ResourceError
from areal_core.plugins.devices import accelerators
from areal_core.plugins.registry import default_registry
from areal_local.scheduler.private_folder import PrivateFolder, private_roots

T = TypeVar("T")
LOCAL = "local"
_KNOCK_S = 5.0
_LISTENS = "something listens there, but is no Ray cluster, or one that this process has no right token for"
_MAX_ROOT = 24
"""Letters of a path that Ray's sockets still fit below."""
_STORE_BYTES = 1 << 30
"""Of a Ray of one's own, for messages on their way."""
_TOKEN = "RAY_AUTH_TOKEN"
_STARTING = {
    _TOKEN: secrets.token_hex(32),
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""For a Ray of one's own. It asks for a token by itself, which a process can have one of; no file knows this one.
Without clusters, as on Windows and macOS, it listens on loopback only."""


class Cluster:
    """The link; `leave` gives it up."""

    def __init__(self, address: str, *, own: bool) -> None:
        self.address, self.own = address, own
        self._left = False

    async def left(self) -> None:
        """Give it up, and wait until the last one has ended what was started. Idempotent."""
        await asyncio.wrap_future(self.leave())

    def leave(self) -> Future[None]:
        """Begin to give it up. Idempotent."""
        if self._left:
            return _KEEPER.ask(lambda: None)
        self._left = True
        return _KEEPER.ask(_LINK.leave)


async def join(address: str, timeout_s: float) -> Cluster:
    """Join the cluster at an address, or start one here; see `RayConfig.address`.

    Raises:
        ResourceError: nobody answers there within the time, or Ray cannot be started.
        ConfigError: this process is linked to another cluster.
    """
    asked = _KEEPER.ask(partial(_LINK.join, address))
    try:
        return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(asked)), timeout_s)
    except TimeoutError:
        asked.add_done_callback(_give_up)
        raise _unreachable(address, f"no answer within {timeout_s:g} s") from None


def _give_up(asked: Future[Cluster]) -> None:
    if not asked.cancelled() and asked.exception() is None:
        asked.result().leave()  # nobody waits for it any more


class _Keeper:
    """The thread that Ray is started in and ended in: processes that a thread started end with it.

    A daemon: Ray may try to join a cluster for minutes, and that does not hold up the end of the process.
    """

    def __init__(self) -> None:
        self._asked: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def ask(self, work: Callable[[], T]) -> Future[T]:
        """Have something done there, after what was asked before."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="areal-ray", daemon=True)
            self._thread.start()
        answer: Future[T] = Future()
        self._asked.put((work, answer))
        return answer

    def _run(self) -> None:
        while True:
            work, answer = self._asked.get()
            if not answer.set_running_or_notify_cancel():
                continue
            try:
                answer.set_result(work())
            except BaseException as error:
                answer.set_exception(error)


class _Link:
    """What all schedulers of this process share. Used by the keeper alone."""

    def __init__(self) -> None:
        self._users = 0
        self._address = ""
        self._own_folder: PrivateFolder | None = None
        self._theirs = False  # made by the user before, and not ours to end

    def join(self, address: str) -> Cluster:
        if self._users and address not in ("", self._address, LOCAL if self._own_folder else ""):
            raise ConfigError(
                f"this process cannot join the Ray cluster at {address!r}",
                why=f"it is linked to the one at {self._address!r}, and Ray allows one link",
                fix="use one cluster for all runs of a process",
            )
        if not self._users:
            self._theirs = ray.is_initialized()
            self._address = self._open(address)
        self._users += 1
        return Cluster(self._address, own=self._own_folder is not None)

    def leave(self) -> None:
        self._users -= 1
        if self._users or self._theirs:
            return
        ray.shutdown()
        folder, self._own_folder = self._own_folder, None
        if folder is not None:
            folder.close()

    def _open(self, address: str) -> str:
        if self._theirs:
            return str(ray.get_runtime_context().gcs_address)
        address = address or os.environ.get("RAY_ADDRESS", "") or "auto"
        if address != LOCAL:
            _knock(address)
            try:
                _initialize(address=address)
            except ConnectionError as error:
                if address != "auto":
                    raise _unreachable(address, f"{error}: {_LISTENS}") from error
            except (RuntimeError, RayError) as error:
                raise _refused(address, error) from error
            else:
                return str(ray.get_runtime_context().gcs_address)
        return self._start()

    def _start(self) -> str:
        self._own_folder = PrivateFolder([root for root in private_roots(os.environ) if len(str(root)) <= _MAX_ROOT])
        try:
            with _variables({**_STARTING, _TOKEN: os.environ.get(_TOKEN, _STARTING[_TOKEN])}), _on_loopback():
                _initialize(
                    address=LOCAL,
                    include_dashboard=False,
                    **_devices(),
                    object_store_memory=_STORE_BYTES,
                    _temp_dir=str(self._own_folder.path),
                )
        except Exception as error:
            self._own_folder.close()
            self._own_folder = None
            raise ResourceError("Ray could not be started on this machine", why=str(error)) from error
        return LOCAL


def _initialize(**options: object) -> None:
    os.environ.setdefault("RAY_DISABLE_FAILURE_SIGNAL_HANDLER", "1")  # or SIGTERM aborts a run that saves its state
    notices = logging.getLogger("ray")
    level = notices.level
    notices.setLevel(logging.ERROR)  # it tells that it runs in a thread, and that it asks for tokens
    try:
        ray.init(log_to_driver=False, configure_logging=False, **options)  # type: ignore[arg-type]  # Ray's own
    finally:
        notices.setLevel(level)


def _devices() -> dict[str, object]:
    """Return how many of each accelerator this machine gives out, by Ray's names; its own guesses know fewer kinds."""
    counts: Counter[str] = Counter()
    for device in accelerators(default_registry()):
        counts[device.resource] += len(device.visible(os.environ))  # makers share names: a GPU may be anybody's
    gpus = counts.pop("GPU", 0)
    return {"num_gpus": gpus, "resources": {name: count for name, count in counts.items() if name and count}}


@contextlib.contextmanager
def _variables(values: dict[str, str]) -> Iterator[None]:
    """Set variables while Ray's processes start: they, and this one, have read them then."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _on_loopback() -> Iterator[None]:
    """Have this process, which read Ray's variables when it imported it, keep to loopback too."""
    before, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def _knock(address: str) -> None:
    """Refuse an address where nobody listens: Ray itself would try for minutes.

    Raises:
        ConfigError: it is no address of a cluster.
        ResourceError: nobody listens there.
    """
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "://" in address:
        raise ConfigError(
            f"scheduler.options.address={address!r} is no address of a Ray cluster",
            why="it is HOST:PORT, the address that `ray start --address` takes; `auto`, `local`, or empty",
            fix="for example scheduler.options.address=10.0.0.1:6379",
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), _KNOCK_S).close()
    except (OSError, OverflowError) as error:
        raise _unreachable(address, str(error)) from error


def _unreachable(address: str, why: str) -> ResourceError:
    return ResourceError(
        f"no Ray cluster answers at {address!r}",
        why=why,
        fix="check scheduler.options.address and RAY_AUTH_TOKEN, or start one there: ray start --head; "
        "`scheduler.options.address=local` starts one for this run",
    )


def _refused(address: str, error: Exception) -> ResourceError:
    return ResourceError(
        f"the Ray cluster at {address!r} cannot be used",
        why=str(error),
        fix="install the same versions of Ray and Python here as there",
    )


_LINK, _KEEPER = _Link(), _Keeper()
