"""A generation server small enough to read, for tests: it computes when told to, and misbehaves when told to.

Its "model" is a number made of all weight bytes, so that an output tells which weights computed it, and its prefix
cache remembers that number per prompt: a request that finds an entry of other weights answers with *their* tokens.

Knows: nothing of areal.
Does not know: time; `POST /step` computes, unless it was started with `--auto`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import struct
import sys
from pathlib import Path
from typing import Any

import xxhash
from aiohttp import web

VOCABULARY = 64
_NAMES = {"F32": "torch.float32", "BF16": "torch.bfloat16", "F16": "torch.float16", "F8_E4M3": "torch.float8_e4m3fn"}


def fingerprints(folder: str) -> dict[str, str]:
    """Hash every tensor of a folder's safetensors files as areal does."""
    found = {}
    for file in sorted(Path(folder).glob("*.safetensors")):
        data = file.read_bytes()
        (size,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + size])
        header.pop("__metadata__", None)
        for name, tensor in header.items():
            begin, end = tensor["data_offsets"]
            digest = xxhash.xxh3_128(f"{_NAMES[tensor['dtype']]}{tensor['shape']}".encode())
            digest.update(data[8 + size + begin : 8 + size + end])
            found[name] = digest.hexdigest()
    return found


def mark_of(prints: dict[str, str]) -> int:
    """Return the number all of a model's outputs depend on."""
    text = "".join(digits for name, digits in sorted(prints.items()) if name != "lm_head.weight")
    return xxhash.xxh3_64_intdigest(text.encode()) % 1009


def token(mark: int, position: int) -> int:
    """Return the token at a position of the whole sequence; never 0 or 1, the pad and end tokens."""
    return 2 + (29 * mark + 17 * position) % (VOCABULARY - 2)


class Request:
    """One call in the server."""

    def __init__(self, body: dict[str, Any]) -> None:
        self.body = body
        self.ids: list[int] = []
        self.versions: list[int] = []
        self.mark: int | None = None
        """Of the cached prompt; None until it is admitted."""
        self.cached = 0
        self.done: asyncio.Future[str] = asyncio.get_running_loop().create_future()


class Toy:
    """The server's state; `app` is its web application."""

    def __init__(self, model: str, *, key: str = "", auto: bool = False) -> None:
        self.key = key
        self.auto = auto
        self.mark = mark_of(fingerprints(model))
        self.version = 0
        self.adapters: dict[str, int] = {}
        self.paused: str | None = None
        self.requests: dict[str, Request] = {}
        self.cache: dict[tuple[str, tuple[int, ...]], int] = {}
        self.tokens = 0
        self.log: list[str] = []
        self.faults: dict[str, list[str]] = {}
        self.traces = Path()
        self.app = web.Application(middlewares=[self._door])
        self.app.add_routes([web.get(f"/{n}", getattr(self, n)) for n in ("health", "facts", "gauges", "story")])
        posts = ("generate", "abort", "pause", "resume", "prove", "load", "step", "misbehave")
        posts = (*posts, "start_profile", "stop_profile", "load_adapter", "unload_adapter", "stamp")
        self.app.add_routes([web.post(f"/{name}", getattr(self, name)) for name in posts])

    @web.middleware
    async def _door(self, request: web.Request, handler: Any) -> web.StreamResponse:
        name = request.path.strip("/")
        if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.Response(status=401, text="no key")
        if name not in ("health", "gauges", "story", "step", "misbehave", "facts"):
            self.log.append(name)
        how = self.faults[name].pop(0) if self.faults.get(name) else ""
        if how == "die":
            os._exit(3)
        if how == "hang":
            await asyncio.Event().wait()
        if how == "drop":
            assert request.transport is not None
            request.transport.abort()
        if how.isdigit():
            return web.Response(status=int(how), text=f"told to answer {how}")
        response: web.StreamResponse = await handler(request)
        if how == "lie":
            return web.json_response(dict.fromkeys(json.loads(response.body), "0"))  # type: ignore[attr-defined]
        return response

    async def health(self, _: web.Request) -> web.Response:
        return web.json_response({})

    async def facts(self, _: web.Request) -> web.Response:
        return web.json_response(
            {"version": "toy 1", "context_length": 200, "pid": os.getpid(), "argv": sys.argv, "env": dict(os.environ)}
        )

    async def gauges(self, _: web.Request) -> web.Response:
        waiting = sum(r.mark is None for r in self.requests.values())
        running = len(self.requests) - waiting
        return web.json_response({"running": running, "waiting": waiting, "tokens": self.tokens})

    async def story(self, _: web.Request) -> web.Response:
        return web.json_response(self.log)

    async def generate(self, request: web.Request) -> web.Response:
        body = await request.json()
        if 63 in body["ids"]:
            return web.Response(status=400, text="63 is no token")
        if body["adapter"] and body["adapter"] not in self.adapters:
            return web.Response(status=400, text=f"no adapter {body['adapter']}")
        mine = self.requests[body["id"]] = Request(body)
        self.log[-1] = f"generate {body['id']}"
        try:
            if self.auto:
                self.compute(1000)
            finish = await mine.done
        finally:
            self.requests.pop(body["id"], None)
        found = {"ids": mine.ids, "versions": mine.versions, "finish": finish, "cached": mine.cached}
        return web.json_response(found)

    async def abort(self, request: web.Request) -> web.Response:
        for name in (await request.json())["ids"]:
            if name in self.requests:
                self.end(self.requests[name], "abort")
        return web.json_response({})

    async def pause(self, request: web.Request) -> web.Response:
        self.paused = (await request.json())["mode"]
        self.log[-1] = f"pause {self.paused}"
        if self.paused == "abort":
            for mine in tuple(self.requests.values()):
                self.end(mine, "abort")
        return web.json_response({})

    async def resume(self, _: web.Request) -> web.Response:
        self.paused = None
        if self.auto:
            self.compute(1000)
        return web.json_response({})

    async def prove(self, request: web.Request) -> web.Response:
        return web.json_response(fingerprints((await request.json())["folder"]))

    async def load(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.log[-1] = f"load {body['version']}"
        if self.paused is None:
            return web.Response(status=409, text="not paused")
        self.mark = mark_of(fingerprints(body["folder"]))
        self.version = body["version"]
        return web.json_response({})

    async def load_adapter(self, request: web.Request) -> web.Response:
        body = await request.json()
        if body["lora_name"] in self.adapters:
            return web.Response(status=400, text="has already been loaded")
        self.adapters[body["lora_name"]] = mark_of(fingerprints(body["lora_path"]))
        return web.Response(text="Success: done")

    async def unload_adapter(self, request: web.Request) -> web.Response:
        if self.adapters.pop((await request.json())["lora_name"], None) is None:
            return web.Response(status=404, text="no such adapter")
        return web.Response(text="Success: done")

    async def stamp(self, request: web.Request) -> web.Response:
        self.version = (await request.json())["version"]
        self.log[-1] = f"stamp {self.version}"
        return web.json_response({})

    async def start_profile(self, request: web.Request) -> web.Response:
        self.traces = Path((await request.json())["folder"])
        return web.json_response({})

    async def stop_profile(self, _: web.Request) -> web.Response:
        for rank in range(2):
            (self.traces / f"toy_rank{rank}.17.json.gz").write_text(" ".join(self.log))
        (self.traces / "other").mkdir()
        (self.traces / "other" / "table.txt").write_text("of no use")
        return web.json_response({})

    async def step(self, request: web.Request) -> web.Response:
        self.compute((await request.json())["tokens"])
        return web.json_response({})

    async def misbehave(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.faults.setdefault(body["route"], []).extend([body["how"]] * body.get("times", 1))
        return web.json_response({})

    def compute(self, tokens: int) -> None:
        """Compute so many tokens for every request."""
        for mine in tuple(self.requests.values()):
            for _ in range(tokens):
                if self.paused is None and not mine.done.done():
                    self.next_token(mine)

    def mark_for(self, body: dict[str, Any]) -> int:
        """Return the number the outputs of a request depend on."""
        return self.mark + (self.adapters[body["adapter"]] if body["adapter"] else 0)

    def next_token(self, mine: Request) -> None:
        body = mine.body
        if mine.mark is None:
            entry = (body["space"], tuple(body["ids"]))
            mine.cached = len(body["ids"]) if entry in self.cache else 0
            mine.mark = self.cache.setdefault(entry, self.mark_for(body))
            made = token(mine.mark, len(body["ids"]))
        else:
            made = token(self.mark_for(body), len(body["ids"]) + len(mine.ids))
        mine.ids.append(made)
        mine.versions.append(self.version)
        self.tokens += 1
        if len(mine.ids) >= body["max_tokens"]:
            self.end(mine, "length")
        elif made in body["end_ids"] and len(mine.ids) >= body["min_tokens"]:
            self.end(mine, "stop")

    def end(self, mine: Request, finish: str) -> None:
        if not mine.done.done():
            mine.done.set_result(finish)


def main() -> None:
    """Serve until ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    parser.add_argument("--model")
    parser.add_argument("--auto", action="store_true")
    parser.add_argument("--fail", default="")
    parser.add_argument("--never", action="store_true", help="start, and never listen")
    parser.add_argument("--child", action="store_true", help="start a child that leaves the process group")
    given = parser.parse_args()
    if given.fail:
        print("loading", given.model)
        print(given.fail)
        sys.exit(7)
    if given.child:
        import subprocess

        command = [sys.executable, "-c", "import time; time.sleep(600)"]
        subprocess.Popen(command, start_new_session=True)
    if given.never:
        print("still loading", flush=True)
        asyncio.run(asyncio.Event().wait())  # type: ignore[arg-type]
    toy = Toy(given.model, key=os.environ.get("TOY_KEY", ""), auto=given.auto)
    web.run_app(toy.app, host="127.0.0.1", port=given.port, print=None, handle_signals=False)


if __name__ == "__main__":
    main()
