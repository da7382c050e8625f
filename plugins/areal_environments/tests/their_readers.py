"""Answer by the packages harbor and terminal-bench what they read: a line of JSON in, [kind, value], and one out."""

import json
import sys
from pathlib import Path


def harbor(path: str) -> object:
    """Return what Harbor reads of a task's folder."""
    from harbor.models.task.task import Task

    task = Task(Path(path))
    place, agent, verifier = task.config.environment, task.config.agent, task.config.verifier
    return {
        "instruction": task.instruction.strip(),
        "image": place.docker_image or "",
        "agent_timeout_s": agent.timeout_sec,
        "test_timeout_s": verifier.timeout_sec,
        "memory_mb": place.memory_mb,
        "disk_mb": place.storage_mb,
        "network": place.network_mode.value == "public",
        "workdir": place.workdir or "/app",
        "test_environment": verifier.env,
        "tests": str(task.paths.discovered_test_path),
    }


def template(_: str) -> object:
    """Return the folder of the task that Harbor begins new ones with."""
    import harbor

    return str(Path(harbor.__file__).parent / "cli" / "template-task")


def terminal_bench(path: str) -> object:
    """Return what Terminal-Bench reads of a task's folder."""
    from terminal_bench.handlers.trial_handler import TrialHandler

    trial = TrialHandler(trial_name="a", input_path=Path(path))
    return {
        "instruction": trial.instruction,
        "name": trial.task_id,
        "agent_timeout_s": trial.task.max_agent_timeout_sec,
        "test_timeout_s": trial.task.max_test_timeout_sec,
        "tests": str(trial.task_paths.run_tests_path),
    }


def summary(said: str) -> object:
    """Return which tests passed in what they printed."""
    from terminal_bench.parsers.base_parser import UnitTestStatus
    from terminal_bench.parsers.pytest_parser import PytestParser

    return {name: state is UnitTestStatus.PASSED for name, state in PytestParser().parse(said).items()}


for line in sys.stdin:
    kind, value = json.loads(line)
    print(json.dumps(globals()[kind](value)), flush=True)
