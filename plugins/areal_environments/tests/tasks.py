"""Small task folders in both formats."""

from __future__ import annotations

from pathlib import Path

TOML = """\
schema_version = "1.4"
[task]
name = "areal/greeting"
[agent]
timeout_sec = 900.0
[verifier]
timeout_sec = 700.0
[verifier.env]
EXPECTED = "hello"
[environment]
memory_mb = 256
storage_mb = 32
"""
TEST_SH = """\
mkdir -p "$LOGS_DIR/verifier"
if [ "$(cat "$APP_DIR/greeting" 2>/dev/null)" = "$EXPECTED" ]; then r=1; else r=0; fi
echo "{\\"reward\\": $r, \\"files\\": $(ls "$APP_DIR" | wc -l)}" > "$LOGS_DIR/verifier/reward.json"
"""
YAML = """\
instruction: |
  Write hello to the file greeting.
difficulty: easy
max_agent_timeout_sec: 900.0
max_test_timeout_sec: 700.0
"""
RUN_TESTS = """\
check() {
  if [ "$(cat greeting 2>/dev/null)" = "$1" ]
  then echo "PASSED $TEST_DIR/t.py::$2"
  else echo "FAILED $TEST_DIR/t.py::$2 - not $1"
  fi
}
test -f "$TEST_DIR/t.py" || exit 3
echo "=========== short test summary info ==========="
check hello test_content
echo "PASSED $TEST_DIR/t.py::test_other"
"""


def harbor_task(
    top: Path, name: str = "greeting", *, toml: str = TOML, test: str = TEST_SH, image: bool = False
) -> Path:
    """Write a task of Harbor's; with `image` it brings a Dockerfile."""
    return _written(
        top / name,
        {
            "task.toml": toml,
            "instruction.md": "Write hello to the file greeting.\n",
            "environment/notes.txt": "hello",
            "tests/test.sh": test,
            **({"environment/Dockerfile": "FROM debian:12\n"} if image else {}),
        },
    )


def terminal_bench_task(top: Path, name: str = "greeting", *, yaml: str = YAML, test: str = RUN_TESTS) -> Path:
    """Write a task of Terminal-Bench's."""
    return _written(top / name, {"task.yaml": yaml, "run-tests.sh": test, "tests/t.py": "", "solution.sh": "true"})


def _written(path: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    return path
