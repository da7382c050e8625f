"""`areal view` serves on this machine alone, says where, and ends with Ctrl-C."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import psutil
import pytest

from areal_core.contract.errors import ResourceError, RunFolderError
from areal_view.view import view


def test_the_command_prints_an_address_that_opens_and_ends_with_ctrl_c(make_run: Any) -> None:
    """Loopback only; the token is in the printed address and in no argument; nothing is asked of a browser."""
    run = make_run("a")
    run.steps(1, 2)
    command = [sys.executable, "-m", "areal_core.cli.main", "view", str(run.folder), "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            match = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/\?token=([\w-]{40,})", address)
            assert match, address + process.stdout.read()
            sockets = [each for each in psutil.Process(process.pid).net_connections() if each.status == "LISTEN"]
            with pytest.raises(urllib.error.HTTPError, match="401"):
                urllib.request.urlopen(address.partition("?")[0])
            opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
            page = opener.open(address).read().decode()
            process.send_signal(signal.SIGINT)
            rest = process.stdout.read()
            code = process.wait(timeout=60)
        finally:
            process.kill()

    assert [(each.laddr.ip, each.laddr.port) for each in sockets] == [("127.0.0.1", int(match[1]))]
    assert 'data-field="step">2<' in page
    assert (code, "Traceback" in rest) == (0, False)


def test_a_folder_without_runs_and_a_port_in_use_are_told(tmp_path: Path, make_run: Any) -> None:
    """Before anything is served."""
    with pytest.raises(RunFolderError, match="there is no run in"):
        view(tmp_path, open_page=False)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ResourceError, match="cannot be had"):
            view(make_run("a").folder, port=taken.getsockname()[1], open_page=False)
    with pytest.raises(ResourceError, match="cannot be had"):
        view(make_run("a").folder, port=70_000, open_page=False)
