"""What a server is told when its own ranks take weights from the sender; server and sender here are scripts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from typing import Any, cast

import pytest
import torch
from attrs import define, field
from torch import Tensor

from areal_core.contract.errors import CoverageError, WeightSyncError
from areal_core.contract.weights import WeightManifest
from areal_core.weights.specs import manifest_of
from areal_serving.http import Api, ServerAnswer
from areal_serving.server_lifecycle import ServerLifecycle
from areal_sglang.direct import Direct, stamp
from areal_torch.collective.rank_slot import RankSlot

MANIFEST = manifest_of([("a", torch.zeros(2, 3)), ("b", torch.zeros(4))], version=3)
WHOLE = {"fingerprints": {"a": "1", "b": "2"}, "passed_over": []}


@define
class ScriptedServer:
    """Remembers what it was told; answers hooks from `received`. It is its own Api and lifecycle."""

    received: Mapping[str, Any]
    fails_at: str = ""
    told: list[tuple[str, Any]] = field(factory=list)
    replaced: int = 0

    async def post(self, path: str, body: Any = None, **_: Any) -> Any:
        """Answer a POST."""
        self.told.append((path, body))
        if path == self.fails_at:
            raise ServerAnswer(path, 400, "no")
        return {"message": json.dumps([self.received])}

    async def api(self) -> Api:
        """Return itself."""
        return cast(Api, self)

    async def replace(self, _api: Api) -> None:
        """Count how often it was thrown away."""
        self.replaced += 1

    @property
    def paths(self) -> list[str]:
        """Return what it was told, in order."""
        return [path for path, _ in self.told]


@define
class ScriptedSource:
    """A sender that gives slots of a group."""

    group: str = "one"
    manifest: WeightManifest = MANIFEST
    held: list[str] = field(factory=list)
    closed: int = 0

    def take_slot(self, num_ranks: int, *, device: str = "cpu", held: str = "") -> RankSlot:
        """Give a slot."""
        self.held.append(held)
        return RankSlot(
            address="127.0.0.1",
            port=1,
            group_name=self.group,
            backend="gloo",
            first_rank=1,
            num_ranks=num_ranks,
            world_size=1 + num_ranks,
            timeout_s=1.0,
        )

    def wait_finished(self) -> None:
        """Be finished."""

    def buckets(self) -> Iterator[Mapping[str, Tensor]]:
        """Not read: the ranks have slots."""
        raise AssertionError

    def close(self) -> None:
        """Count."""
        self.closed += 1


def receive(direct: Direct, server: ScriptedServer, source: ScriptedSource) -> Any:
    """Receive version 3. Any: a receipt."""
    checked: list[WeightManifest] = []
    return asyncio.run(direct.receive(cast(ServerLifecycle, server), source, 3, checked.append))


def test_an_update_begins_and_ends() -> None:
    """SGLang answers 400 to tensors outside, and never finishes quantized ones without the end."""
    server = ScriptedServer(WHOLE)
    receipt = receive(Direct(2, "cpu"), server, ScriptedSource())

    assert server.paths == [
        "/init_weights_update_group",
        "/begin_weight_update",
        "/update_weights_from_distributed",
        "/end_weight_update",
        "/weights_checker",
    ]
    assert (receipt.version, receipt.num_bytes, receipt.fingerprints) == (3, 40, {"a": "1", "b": "2"})


def test_tensors_are_announced_in_the_order_they_are_sent() -> None:
    """One broadcast each; no token is stamped yet, no request ended."""
    server = ScriptedServer(WHOLE)
    receive(Direct(1, "cpu"), server, ScriptedSource())
    body = dict(server.told)["/update_weights_from_distributed"]

    assert (body["names"], body["shapes"], body["dtypes"]) == (["a", "b"], [[2, 3], [4]], ["float32", "float32"])
    assert body["abort_all_requests"] is False
    assert "weight_version" not in body


def test_the_group_is_kept_while_the_sender_keeps_it() -> None:
    """Joining again costs a new process group of all ranks."""
    direct, server = Direct(1, "cpu"), ScriptedServer(WHOLE)
    sources = [ScriptedSource(), ScriptedSource(), ScriptedSource(group="two")]
    for source in sources:
        receive(direct, server, source)

    assert [source.held for source in sources] == [[""], ["one"], ["one"]]
    assert server.paths.count("/init_weights_update_group") == 2
    assert ("/destroy_weights_update_group", {"group_name": "one"}) in server.told


def test_half_an_update_costs_the_server() -> None:
    """Nobody knows which weights it has."""
    server = ScriptedServer(WHOLE, fails_at="/update_weights_from_distributed")
    with pytest.raises(ServerAnswer):
        receive(Direct(1, "cpu"), server, ScriptedSource())

    assert server.replaced == 1


def test_a_tensor_that_is_passed_over_costs_the_server() -> None:
    """The loader has no place for it."""
    server = ScriptedServer({"fingerprints": {}, "passed_over": ["b"]})
    with pytest.raises(CoverageError, match="'b'"):
        receive(Direct(1, "cpu"), server, ScriptedSource())

    assert server.replaced == 1


def test_an_abort_before_the_commit_costs_the_server() -> None:
    """Its old weights are gone. A second abort costs nothing."""
    direct, server = Direct(1, "cpu"), ScriptedServer(WHOLE)
    receive(direct, server, ScriptedSource())
    for _ in range(2):
        asyncio.run(direct.abort(cast(ServerLifecycle, server)))

    assert server.replaced == 1
    assert direct.taken(3) is None


def test_only_the_server_that_took_a_version_may_stamp_it() -> None:
    """One that was started meanwhile has the old weights."""
    direct, server, another = Direct(1, "cpu"), ScriptedServer(WHOLE), ScriptedServer(WHOLE)
    receive(direct, server, ScriptedSource())
    taken = direct.taken(3)
    assert taken is not None
    with pytest.raises(WeightSyncError, match="gone"):
        asyncio.run(stamp(cast(Api, another), taken, keep_cache=True))
    asyncio.run(stamp(cast(Api, server), taken, keep_cache=True))

    assert server.told[-1] == ("/update_weight_version", {"new_version": "3", "abort_all_requests": False})
