"""Starts TRL's scripts in TRL's environment, with the rows and numbers of an areal run.

Knows: how an areal configuration is said to TRL.
Does not know: TRL itself; that is in the scripts, which run under another interpreter.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

from attrs import frozen

from areal_core.config.schema import DataConfig, RunConfig
from areal_core.plugins.registry import default_registry

HERE = Path(__file__).resolve().parent
TIMEOUT_S = 3600
SERVER_START_S = 180
LOOK_S = 1.0
"""Between two looks at a trainer and its server."""
MODULES = "trl, aiohttp, datasets, reasoning_gym, requests, trl.experimental.async_grpo"
ROWS_AHEAD = 3
"""How many times the rows of its steps TRL gets: its asynchronous trainer generates ahead and drops what is stale."""


@frozen(kw_only=True)
class RowFiles:
    """The rows of one task on disk."""

    train: Path
    held: Path


def write_rows(config: RunConfig, folder: Path) -> RowFiles:
    """Write the rows areal's run trains on, in its order, and those it is evaluated on."""
    assert not config.data.shuffle and config.evaluation.data is not None
    folder.mkdir(parents=True)
    files = RowFiles(train=folder / "train.jsonl", held=folder / "held.jsonl")
    _write(files.train, config.data, ROWS_AHEAD * config.steps * config.rollout.prompts_per_step)
    _write(files.held, config.evaluation.data, config.evaluation.max_prompts)
    return files


class TRL:
    """TRL's trainers, each run in a process of its own."""

    def __init__(self, python: str, scratch: Path, *, seed: int, staleness: int) -> None:
        self._python, self._scratch, self._seed, self._staleness = python, scratch, seed, staleness
        self._runs = 0

    @staticmethod
    def missing(python: str) -> str:
        """Return what stands in the way of running TRL, or nothing."""
        if not python:
            return "no interpreter with TRL given (--trl-python or AREAL_TRL_PYTHON)"
        try:
            done = subprocess.run([python, "-c", f"import {MODULES}"], capture_output=True, text=True, timeout=300)
        except OSError as error:
            return f"{python} cannot be started: {error}"
        return f"{python}: {done.stderr.strip().splitlines()[-1]}" if done.returncode else ""

    def train(
        self,
        kind: str,
        config: RunConfig,
        model: Path,
        files: RowFiles,
        *,
        threads: int,
        evaluate_every: int,
        steps: int,
    ) -> dict[str, Any]:
        """Run one of TRL's trainers to the end and return what it wrote. Any: json.

        Raises:
            CalledProcessError: it failed; its output is in the error.
        """
        self._runs += 1
        folder = self._scratch / f"trl-{self._runs}"
        folder.mkdir()
        values = {
            "model": model,
            "rows": files.train,
            "held": files.held,
            "out": folder / "out.json",
            "scratch": folder,
            "steps": steps,
            "seed": self._seed,
            "threads": threads,
            "max-new": config.rollout.sampling.max_new_tokens,
            "eval-every": evaluate_every,
            "prompts": config.rollout.prompts_per_step,
            "group": config.rollout.group_size,
            "warmup": config.actor.optimizer.warmup_steps,
            "lr": config.actor.optimizer.lr,
            "staleness": self._staleness,
        }
        if kind == "async":
            with _Server(self._python, model, folder) as server:
                self._run("trl_async.py", {**values, "server": server.address}, threads, server)
        else:
            self._run("trl_sync.py", values, threads)
        found: dict[str, Any] = json.loads((folder / "out.json").read_text())
        return found

    def _run(self, script: str, values: dict[str, object], threads: int, server: _Server | None = None) -> None:
        """Run one script to its end; a trainer whose server is gone would wait for it for ever."""
        arguments = [word for name, value in values.items() for word in (f"--{name}", str(value))]
        command = [self._python, str(HERE / script), *arguments]
        environment, deadline = _environment(threads), time.monotonic() + TIMEOUT_S
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
        ) as running:
            while True:
                try:
                    output, _ = running.communicate(timeout=LOOK_S)
                    break
                except subprocess.TimeoutExpired:
                    late = time.monotonic() > deadline
                    if late or (server is not None and server.gone):
                        running.kill()
                        raise SystemExit(
                            f"{script} ran for {TIMEOUT_S} s" if late else f"its server ended:\n{server.log}"
                        ) from None
        if running.returncode:
            raise subprocess.CalledProcessError(running.returncode, command, output)


class _Server:
    """The generation server, on a port it chooses itself."""

    def __init__(self, python: str, model: Path, folder: Path) -> None:
        self._ready, self._log = folder / "port", folder / "server.log"
        script = str(HERE / "trl_server.py")
        self._command = [python, script, "--model", str(model), "--ready", str(self._ready), "--threads", "1"]

    @property
    def address(self) -> str:
        """Return where it listens."""
        return f"http://127.0.0.1:{self._ready.read_text()}"

    @property
    def gone(self) -> bool:
        """Return whether it has ended."""
        return self._process.poll() is not None

    @property
    def log(self) -> str:
        """Return its last words."""
        return self._log.read_text()[-2000:]

    def __enter__(self) -> _Server:
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=subprocess.STDOUT, env=_environment(threads=1)
            )
        deadline = time.monotonic() + SERVER_START_S
        while not self._ready.exists():
            if self.gone or time.monotonic() > deadline:
                self.__exit__()
                raise SystemExit(f"the generation server did not start:\n{self.log}")
            time.sleep(0.1)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()


def _environment(threads: int) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return {**own, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}


def _write(path: Path, data: DataConfig, count: int) -> None:
    rows: Any = default_registry().build(
        "dataset", data.name, data.options, "data.options"
    )  # Any: rows of the data set
    lines = [json.dumps({name: rows[n][name] for name in ("prompt", "answer", "entry")}) for n in range(count)]
    path.write_text("\n".join(lines) + "\n")
