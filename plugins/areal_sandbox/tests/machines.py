"""Rented machines that are here: namespaces with a real shell, behind the protocols of E2B and Daytona.

The servers speak as much of them as the providers use: E2B's control interface and its `envd` (Connect, by the
generated server in E2B's own package), Daytona's control interface and its toolbox. What they are asked for is kept.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from attrs import define, field
from e2b.envd.process.process_connect import ProcessASGIApplication
from e2b.envd.process.process_pb import ProcessEvent, StartRequest, StartResponse
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from protobuf import Oneof

KEY = "e2b_" + "0123456789abcdef" * 2
_HELD = "mount -t tmpfs tmpfs /home && mount -t tmpfs tmpfs /run && echo ready && exec env --ignore-signal=CHLD cat"


@define
class Machine:
    """A shell in process and mount namespaces of its own, for root."""

    asked: dict[str, Any]
    """What it was made with. Any: JSON."""
    name: str = field(factory=lambda: secrets.token_hex(4))
    _holder: asyncio.subprocess.Process | None = field(default=None, init=False)
    _pid: str = field(default="", init=False)

    async def start(self) -> None:
        self._holder = await asyncio.create_subprocess_exec(
            *("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", _HELD),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert self._holder.stdout is not None
        assert await self._holder.stdout.readline() == b"ready\n"
        with open(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children") as file:  # noqa: ASYNC230, PTH123
            self._pid = file.read().split()[0]

    async def run(self, *command: str, stdin: bytes = b"") -> tuple[int, bytes]:
        """Return exit code and output."""
        process = await asyncio.create_subprocess_exec(
            *("nsenter", "--target", self._pid, "--mount", "--pid", "--wd=/", "--", *command),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        output, _ = await process.communicate(stdin)
        return process.returncode or 0, output

    async def put(self, path: str, data: bytes) -> None:
        await self.run("sh", "-c", 'mkdir -p "$(dirname "$1")" && cat > "$1"', "sh", path, stdin=data)

    def crash(self) -> None:
        os.kill(int(self._pid), signal.SIGKILL)

    async def end(self) -> None:
        if self._holder is not None:
            assert self._holder.stdin is not None
            self._holder.stdin.close()
            await self._holder.wait()


@define
class Service:
    """What both servers have: machines, and who may ask."""

    machines: dict[str, Machine] = field(factory=dict)
    ended: list[Machine] = field(factory=list)
    last: Machine | None = None
    url: str = ""

    async def made(self, asked: dict[str, Any]) -> Machine:
        machine = Machine(asked)
        await machine.start()
        self.machines[machine.name] = self.last = machine
        return machine

    async def end(self, name: str) -> bool:
        if (machine := self.machines.pop(name, None)) is None:
            return False
        await machine.end()
        self.ended.append(machine)
        return True


class Envd:
    """The process service inside a machine of E2B."""

    def __init__(self, service: Service) -> None:
        self.service = service

    async def start(self, request: StartRequest, _context: Any) -> AsyncIterator[StartResponse]:
        machine = self.service.last
        assert machine is not None and request.process is not None
        yield _event("start", ProcessEvent.StartEvent(pid=1))
        code, output = await machine.run(request.process.cmd, *request.process.args)
        yield _event("data", ProcessEvent.DataEvent(output=Oneof("stdout", output)))
        yield _event("end", ProcessEvent.EndEvent(exit_code=code, exited=True, status="exited"))

    def __getattr__(self, name: str) -> Any:
        """Give the calls that nobody makes, which the generated server wants to have."""
        if name.startswith("_"):
            raise AttributeError(name)
        return None


def _event(name: Any, value: Any) -> StartResponse:
    return StartResponse(event=ProcessEvent(event=Oneof(name, value)))


def e2b(service: Service) -> FastAPI:
    """Return E2B's two servers as one application."""
    app = FastAPI()

    @app.middleware("http")
    async def authenticated(request: Request, go_on: Any) -> Response:
        if "sandboxes" in request.url.path and request.headers.get("x-api-key") != KEY:
            return JSONResponse({"code": 401, "message": f"no such key {request.headers.get('x-api-key')}"}, 401)
        answer: Response = await go_on(request)
        return answer

    @app.post("/v2/sandboxes", status_code=201)
    @app.post("/sandboxes", status_code=201)
    async def made(request: Request) -> Any:
        asked = await request.json()
        if asked["templateID"] == "none":
            return JSONResponse({"code": 404, "message": "template 'none' not found"}, 404)
        machine = await service.made(asked)
        return {"sandboxID": machine.name, "templateID": asked["templateID"], "clientID": "1", "envdVersion": "0.2.0"}

    @app.get("/v2/sandboxes")
    async def listed() -> list[Any]:
        return []

    @app.delete("/sandboxes/{name}", status_code=204)
    async def ended(name: str) -> Response:
        gone = JSONResponse({"code": 404, "message": "no such sandbox"}, 404)
        return Response(status_code=204) if await service.end(name) else gone

    @app.post("/files")
    async def put(request: Request, path: str) -> Any:
        assert service.last is not None
        async with request.form() as form:
            data = await form["file"].read()  # type: ignore[union-attr]
        await service.last.put(path, data)
        return [{"name": path.rpartition("/")[2], "type": "file", "path": path}]

    @app.get("/health")
    async def health() -> Response:
        return Response(status_code=204)

    app.mount("/", ProcessASGIApplication(Envd(service)))
    return app


def daytona(service: Service) -> FastAPI:
    """Return Daytona's control interface and its toolbox as one application."""
    app = FastAPI()

    def told(machine: Machine) -> dict[str, Any]:
        zeros = dict.fromkeys(("cpu", "gpu", "memory", "disk"), 0)
        asked = {"labels": machine.asked.get("labels") or {}, "networkBlockAll": True, "public": False, "kvm": False}
        return {"id": machine.name, "organizationId": "1", "name": machine.name, "user": "root", "env": {}, **asked,
                "target": "here", **zeros, "state": "started", "toolboxProxyUrl": f"{service.url}/toolbox"}  # fmt: skip

    @app.middleware("http")
    async def authenticated(request: Request, go_on: Any) -> Response:
        if request.headers.get("authorization") != f"Bearer {KEY}" and "socket" not in request.url.path:
            return JSONResponse({"message": f"no such key {request.headers.get('authorization')}"}, 401)
        answer: Response = await go_on(request)
        return answer

    @app.post("/api/sandbox")
    async def made(request: Request) -> Any:
        asked = await request.json()
        if asked.get("snapshot") == "none":
            return JSONResponse({"message": "snapshot none not found"}, 404)
        return told(await service.made(asked))

    @app.get("/api/sandbox")
    async def listed() -> Any:
        return {"items": [], "nextCursor": None}

    @app.get("/api/sandbox/{name}")
    async def one(name: str) -> Any:
        return told(service.machines[name]) if name in service.machines else JSONResponse({"message": "gone"}, 404)

    @app.delete("/api/sandbox/{name}")
    async def ended(name: str) -> Any:
        machine = service.machines.get(name)
        if machine is None:
            return JSONResponse({"message": "gone"}, 404)
        answer = told(machine) | {"state": "destroyed"}
        await service.end(name)
        return answer

    @app.post("/toolbox/{name}/process/execute")
    async def executed(name: str, request: Request) -> Any:
        asked = await request.json()
        code, output = await service.machines[name].run("bash", "-c", asked["command"])
        return {"exitCode": code, "result": output.decode(errors="replace")}

    @app.post("/toolbox/{name}/files/bulk-upload")
    async def put(name: str, request: Request) -> Any:
        async with request.form() as form:
            await service.machines[name].put(str(form["files[0].path"]), await form["files[0].file"].read())  # type: ignore[union-attr]
        return {}

    return app


@contextmanager
def serving(app: FastAPI, service: Service) -> Iterator[Service]:
    """Serve an application on loopback, and end its machines."""
    started = threading.Event()

    class Server(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            started.set()

        async def shutdown(self, sockets: Any = None) -> None:
            for name in list(service.machines):
                await service.end(name)
            await super().shutdown(sockets)

    server = Server(uvicorn.Config(app, port=0, log_level="critical", loop="asyncio"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        assert started.wait(60)
        service.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        yield service
    finally:
        server.should_exit = True
        thread.join(60)
