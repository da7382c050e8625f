"""A small generation server for the CPU, which TRL's asynchronous trainer talks to as if it were vLLM.

Continuous batching with a key-value cache: requests join and leave between any two steps, the rows in use stay
together at the front of one slab. One event loop does everything, so HTTP never fights the model for the interpreter.

    POST /v1/completions   {prompt: token ids, max_tokens, temperature}
    POST /update_weights   {path: a safetensors file}
    GET  /stats
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time

parser = argparse.ArgumentParser()
parser.add_argument("--model", required=True)
parser.add_argument("--ready", required=True, help="the file the port is written to")
parser.add_argument("--threads", type=int, default=1)
parser.add_argument("--max-rows", type=int, default=512)
parser.add_argument("--max-length", type=int, default=160)
OPTIONS = parser.parse_args()
os.environ["OMP_NUM_THREADS"] = str(OPTIONS.threads)

from pathlib import Path  # noqa: E402  the number of threads is set before torch is imported

import torch  # noqa: E402
from aiohttp import web  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

EOS = 1


class Slab:
    """Keys and values [rows, heads, length, dim] of every layer; a forward pass writes and reads rows `first:last`."""

    def __init__(self, config, rows: int, length: int) -> None:  # type: ignore[no-untyped-def]
        shape = (rows, config.num_key_value_heads, length, config.head_dim)
        self.layers = [(torch.zeros(shape), torch.zeros(shape)) for _ in range(config.num_hidden_layers)]
        self.first = self.last = self.reach = 0
        self.positions = torch.zeros(0, 0, dtype=torch.int64)

    def update(self, key, value, layer, *_, **__):  # type: ignore[no-untyped-def]
        """Store new entries at their positions; return everything up to the longest row."""
        rows = torch.arange(self.first, self.last)[:, None]
        for held, new in zip(self.layers[layer], (key, value), strict=True):
            held[rows, :, self.positions] = new.transpose(1, 2)
        keys, values = (held[self.first : self.last, :, : self.reach] for held in self.layers[layer])
        return keys, values

    def move(self, source: int, target: int, length: int) -> None:
        """Copy a row into another's place."""
        for pair in self.layers:
            for held in pair:
                held[target, :, :length] = held[source, :, :length]


class Request:
    """One completion under way."""

    def __init__(self, prompt: list[int], limit: int, temperature: float) -> None:
        self.prompt, self.limit, self.temperature = prompt, limit, temperature
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Generator:
    """Requests that wait, and requests in rows 0..n of the slab."""

    def __init__(self) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(OPTIONS.model, dtype=torch.float32).eval()
        self.slab = Slab(self.model.config, OPTIONS.max_rows, OPTIONS.max_length)
        self.waiting: list[Request] = []
        self.rows: list[Request] = []
        self.arrived = asyncio.Event()
        self.tokens, self.updates, self.busy_s = 0, 0, 0.0

    async def serve(self) -> None:
        """Step while there is work; let HTTP run between steps."""
        while True:
            if not self.waiting and not self.rows:
                self.arrived.clear()
                await self.arrived.wait()
            began = time.perf_counter()
            with torch.inference_mode():
                self._admit()
                if self.rows:
                    self._decode()
            self.busy_s += time.perf_counter() - began
            await asyncio.sleep(0)

    def load(self, path: str) -> None:
        """Take new weights, between two steps."""
        missing, unexpected = self.model.load_state_dict(load_file(path), strict=False)
        assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
        self.updates += 1

    def _admit(self) -> None:
        free = OPTIONS.max_rows - len(self.rows)
        new, self.waiting = self.waiting[:free], self.waiting[free:]
        if not new:
            return
        lengths = torch.tensor([len(request.prompt) for request in new])
        longest = int(lengths.max())
        ids = torch.zeros(len(new), longest, dtype=torch.int64)
        for row, request in enumerate(new):
            ids[row, : len(request.prompt)] = torch.tensor(request.prompt)
        positions = torch.arange(longest).expand(len(new), -1)
        logits = self._forward(ids, positions, first=len(self.rows), reach=longest)
        self.rows += new
        self._take(logits[torch.arange(len(new)), lengths - 1], new)

    def _decode(self) -> None:
        ids = torch.tensor([[request.tokens[-1]] for request in self.rows])
        lengths = [len(request.prompt) + len(request.tokens) for request in self.rows]
        positions = torch.tensor(lengths)[:, None] - 1
        self._take(self._forward(ids, positions, first=0, reach=max(lengths))[:, -1], self.rows)

    def _forward(self, ids: torch.Tensor, positions: torch.Tensor, *, first: int, reach: int) -> torch.Tensor:
        slab = self.slab
        slab.first, slab.last, slab.reach, slab.positions = first, first + len(ids), reach, positions
        mask = (torch.arange(reach) <= positions[..., None])[:, None]
        out = self.model(
            input_ids=ids, position_ids=positions, attention_mask=mask, past_key_values=slab, use_cache=True
        )
        return out.logits  # type: ignore[no-any-return]

    def _take(self, logits: torch.Tensor, requests: list[Request]) -> None:
        """Sample one token per request; hand back what is finished and close the gaps."""
        logits = logits.float() / torch.tensor([[request.temperature] for request in requests])
        scores = logits.log_softmax(-1)
        tokens = (scores - torch.empty_like(scores).exponential_().log()).argmax(-1, keepdim=True)
        logprobs = scores.gather(1, tokens).squeeze(1).tolist()
        for request, token, logprob in zip(requests, tokens.squeeze(1).tolist(), logprobs, strict=True):
            request.tokens.append(token)
            request.logprobs.append(logprob)
        self.tokens += len(requests)
        for row in reversed(range(len(self.rows))):
            request = self.rows[row]
            if request.tokens[-1] == EOS or len(request.tokens) >= request.limit:
                if not request.done.done():
                    request.done.set_result(None)
                last = self.rows.pop()
                if row < len(self.rows):
                    self.rows[row] = last
                    self.slab.move(len(self.rows), row, len(last.prompt) + len(last.tokens))


def make_app(generator: Generator) -> web.Application:
    """Return the three routes."""

    async def completions(http: web.Request) -> web.Response:
        body = await http.json()
        request = Request(body["prompt"], body["max_tokens"], body["temperature"])
        generator.waiting.append(request)
        generator.arrived.set()
        await request.done
        choice = {"token_ids": request.tokens, "logprobs": {"token_logprobs": request.logprobs}}
        return web.json_response({"choices": [choice]})

    async def update_weights(http: web.Request) -> web.Response:
        generator.load((await http.json())["path"])
        return web.json_response({})

    async def stats(_: web.Request) -> web.Response:
        return web.json_response({"tokens": generator.tokens, "updates": generator.updates, "busy_s": generator.busy_s})

    app = web.Application()
    app.router.add_post("/v1/completions", completions)
    app.router.add_post("/update_weights", update_weights)
    app.router.add_get("/stats", stats)
    return app


def announce(port: int) -> None:
    """Write the port to the file the launcher waits for; it appears whole."""
    partial = Path(OPTIONS.ready + ".partial")
    partial.write_text(str(port))
    partial.rename(OPTIONS.ready)


async def main() -> None:
    """Serve on a free loopback port until ended."""
    torch.set_num_threads(OPTIONS.threads)
    generator = Generator()
    runner = web.AppRunner(make_app(generator), access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    announce(runner.addresses[0][1])
    await generator.serve()


if __name__ == "__main__":
    asyncio.run(main())
