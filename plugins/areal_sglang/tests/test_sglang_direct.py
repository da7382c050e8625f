"""What an SGLang server is told when its own ranks take weights from the sender; the server here is a script."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, cast

import pytest
import torch
from attrs import define, field

from areal_core.contract.errors import CoverageError, FingerprintMismatch
from areal_core.contract.inference import InferenceSpec
from areal_core.weights.tensors import manifest_of
from areal_serving.direct import DirectRanks
from areal_serving.http import Api
from areal_sglang.direct import SGLangDirect
from areal_torch.collective.rank_slot import RankSlot

MANIFEST = manifest_of([("a", torch.zeros(2, 3)), ("b", torch.zeros(4))], version=3)
WHOLE = {"fingerprints": {"a": "1", "b": "2"}, "passed_over": []}
SLOT = RankSlot(
    address="127.0.0.1",
    port=1,
    group_name="two",
    backend="gloo",
    first_rank=1,
    num_ranks=2,
    world_size=3,
    timeout_s=1.0,
)


@define
class ScriptedServer:
    """Remembers what it was told; answers hooks with `ranks`."""

    ranks: list[Mapping[str, Any]] = field(factory=lambda: [WHOLE, WHOLE])
    told: list[tuple[str, Any]] = field(factory=list)

    async def post(self, path: str, body: Any = None, **_: Any) -> Any:
        """Answer a POST."""
        self.told.append((path, body))
        return {"message": json.dumps(self.ranks)}

    @property
    def api(self) -> Api:
        """Return itself."""
        return cast(Api, self)

    @property
    def paths(self) -> list[str]:
        """Return what it was told, in order."""
        return [path for path, _ in self.told]


def test_all_tensor_ranks_take_part_on_their_kind_of_device() -> None:
    """Each needs a rank of the sender's group."""
    spec = InferenceSpec(model_path="m", layout={"t": 2}, device="cuda:0")

    assert asyncio.run(SGLangDirect().ranks(ScriptedServer().api, spec)) == DirectRanks(count=2, device="cuda")


def test_a_group_that_is_held_is_left_before_the_next_is_joined() -> None:
    """SGLang keeps groups by name until it is told."""
    server = ScriptedServer()
    asyncio.run(SGLangDirect().join(server.api, SLOT, "one"))
    asyncio.run(SGLangDirect().join(server.api, SLOT, ""))

    join = "/init_weights_update_group"
    assert server.paths == ["/destroy_weights_update_group", join, join]
    assert server.told[0][1] == {"group_name": "one"}
    assert dict(server.told)[join]["rank_offset"] == 1


def test_an_update_begins_and_ends() -> None:
    """SGLang answers 400 to tensors outside, and never finishes quantized ones without the end."""
    server = ScriptedServer()
    asyncio.run(SGLangDirect().take(server.api, SLOT, MANIFEST))

    assert server.paths == ["/begin_weight_update", "/update_weights_from_distributed", "/end_weight_update"]


def test_tensors_are_announced_in_the_order_they_are_sent() -> None:
    """One broadcast each; no token is stamped yet, no request ended."""
    server = ScriptedServer()
    asyncio.run(SGLangDirect().take(server.api, SLOT, MANIFEST))
    body = dict(server.told)["/update_weights_from_distributed"]

    assert (body["names"], body["shapes"], body["dtypes"]) == (["a", "b"], [[2, 3], [4]], ["float32", "float32"])
    assert body["abort_all_requests"] is False
    assert "weight_version" not in body


def test_what_ranks_took_is_one_answer_or_an_error() -> None:
    """A loader that has no place for a tensor is told from ranks that hold other bytes."""
    direct = SGLangDirect()
    other = {"fingerprints": {"a": "1", "b": "3"}, "passed_over": []}

    assert asyncio.run(direct.received(ScriptedServer().api)) == WHOLE["fingerprints"]
    with pytest.raises(CoverageError, match="'b'"):
        asyncio.run(direct.received(ScriptedServer([{"fingerprints": {}, "passed_over": ["b"]}]).api))
    with pytest.raises(FingerprintMismatch, match="'b'"):
        asyncio.run(direct.received(ScriptedServer([WHOLE, other]).api))


def test_a_version_is_stamped_with_the_cache_as_it_is() -> None:
    """From the next token on, and no request is ended."""
    server = ScriptedServer()
    asyncio.run(SGLangDirect().stamp(server.api, 3, keep_cache=True))

    assert server.told[-1] == ("/update_weight_version", {"new_version": "3", "abort_all_requests": False})
