"""A judge is asked over HTTP what an answer is worth; what it says, and what goes wrong, is told."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from areal_core.contract.errors import ConfigError, DatasetError
from areal_tasks.rewards.judge import Judge, JudgeConfig


class Server(ThreadingHTTPServer):
    """Answers chat completions with what it is told to, one after another, and keeps what it was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.says: list[tuple[int, str]] = []
        self.asked: list[tuple[dict[str, str], dict[str, Any]]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.asked.append(({"path": self.path, **{k.lower(): v for k, v in self.headers.items()}}, body))
        status, text = self.server.says.pop(0)
        answer = json.dumps({"choices": [{"message": {"role": "assistant", "content": text}}]}).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as made:
        threading.Thread(target=made.serve_forever, args=(0.02,), daemon=True).start()
        yield made
        made.shutdown()


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits between attempts."""
    monkeypatch.setattr("areal_tasks.served.time.sleep", lambda _seconds: None)


def judged(
    server: Server, completion: str = "4", row: dict[str, Any] | None = None, **options: Any
) -> dict[str, float]:
    judge = Judge(JudgeConfig(url=server.url, model="the-judge", **options))
    return judge("2 + 2 =", completion, [4], "stop", row or {})


def test_the_last_score_of_the_answer_counts(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-123")
    server.says = [(200, "A score: 3 would be harsh.\nScore: 8.5")]

    found = judged(server)

    ((headers, body),) = server.asked
    assert found["value"] == 0.85 and found["judge_characters"] > 0
    assert headers["path"] == "/v1/chat/completions" and headers["authorization"] == "Bearer sk-123"
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("the-judge", 0.0, 512)
    assert "[Request]\n2 + 2 =" in body["messages"][0]["content"]


def test_a_score_may_be_below_zero(server: Server) -> None:
    """The sign belongs to the number."""
    server.says = [(200, "Score: -2")]

    assert judged(server)["value"] == -0.2


def test_columns_are_filled_in_and_an_answer_with_braces_stays_as_it_is(server: Server) -> None:
    """What the policy writes is never taken for a place to fill in."""
    server.says = [(200, "score 1")]

    judged(server, "{answer} {0.__class__}", {"answer": 42}, question="{completion} or {answer}?", scale=1.0)

    assert server.asked[0][1]["messages"][0]["content"] == "{answer} {0.__class__} or 42?"


def test_no_key_is_sent_where_there_is_none(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    server.says = [(200, "Score: 10")]

    assert judged(server)["value"] == 1.0
    assert "authorization" not in server.asked[0][0]


def test_a_busy_server_is_asked_again_and_a_refusal_is_told(server: Server) -> None:
    server.says = [(429, "slow down"), (503, "later"), (200, "Score: 5")]
    assert judged(server)["value"] == 0.5

    server.says = [(401, "no such key")]
    with pytest.raises(OSError, match=r"answered 401: .*no such key"):
        judged(server)
    assert len(server.asked) == 4


def test_an_answer_without_a_score_and_a_server_that_is_not_there_are_no_zero(server: Server) -> None:
    server.says = [(200, "I would rather not say.")]
    with pytest.raises(ValueError, match="holds no score"):
        judged(server)
    with pytest.raises(DatasetError, match="no column 'answer'"):
        judged(server, question="{answer}")
    with pytest.raises(OSError, match="cannot be reached"):
        Judge(JudgeConfig(url="http://127.0.0.1:9/v1", model="m", retries=1))("p", "c", [1], "stop", {})


@pytest.mark.parametrize("options", [{"pattern": "score"}, {"pattern": "("}])
def test_a_pattern_that_finds_no_score_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="pattern"):
        JudgeConfig(url="http://127.0.0.1/v1", model="m", **options)
