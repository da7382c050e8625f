"""Serve resource servers that NeMo Gym ships: `python resource_servers.py NAME ...`, by a Python that has it.

Prints a line of JSON for each, with its port and the folder of its rows; ends when its standard input does.
"""

import asyncio
import importlib
import inspect
import json
import socket
import sys
from pathlib import Path

import uvicorn
from nemo_gym.base_resources_server import BaseResourcesServerConfig, SimpleResourcesServer
from nemo_gym.config_types import BaseServerConfig
from nemo_gym.server_utils import ServerClient
from omegaconf import OmegaConf

HEAD = BaseServerConfig(host="127.0.0.1", port=1)
CLIENT = ServerClient(head_server_config=HEAD, global_config_dict=OmegaConf.create())


async def serve(name: str, running: list[uvicorn.Server]) -> None:
    """Listen, print where, and serve until that is to end."""
    module = importlib.import_module(f"resources_servers.{name}.app")
    classes = [each for _, each in inspect.getmembers(module, inspect.isclass) if each.__module__ == module.__name__]
    (kind,) = (each for each in classes if issubclass(each, SimpleResourcesServer))
    configured = inspect.get_annotations(kind).get("config", BaseResourcesServerConfig)
    config = configured(host="127.0.0.1", port=0, entrypoint="app.py", name=name, domain="other")
    listening = socket.create_server(("127.0.0.1", 0))
    print(json.dumps([name, listening.getsockname()[1], str(Path(module.__file__).parent / "data")]), flush=True)
    app = kind(config=config, server_client=CLIENT).setup_webserver()
    running.append(uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1)))
    await running[-1].serve(sockets=[listening])


async def main() -> None:
    """Serve them all."""
    running: list[uvicorn.Server] = []
    serving = asyncio.gather(*(serve(name, running) for name in sys.argv[1:]))
    await asyncio.to_thread(sys.stdin.read)
    for each in running:
        each.should_exit = True
    await serving


asyncio.run(main())
