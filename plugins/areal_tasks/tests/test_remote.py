"""A server is asked over HTTP what completions are worth; a real one here, with everything that may go wrong."""

from __future__ import annotations

import email.utils
import json
import threading
import time
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from attrs import frozen

from areal_core.contract.errors import ArealError
from areal_core.contract.workflow import RewardInput, RewardResult, RewardStatus
from areal_core.plugins.registry import Registry
from areal_local.rewards.child import Scorer
from areal_tasks.rewards.remote import Remote, RemoteConfig
from areal_tasks.served import Served, retry_after

KEY = "the-key-of-the-scorer"


@frozen(kw_only=True)
class Says:
    """What the server does next."""

    body: Any = None
    status: int = 200
    headers: Mapping[str, str] = {}
    raw: bytes = b""
    closes: bool = False
    hangs: bool = False


class Server(ThreadingHTTPServer):
    """Does what it is told to, one request after another, and keeps what it was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.says: list[Says] = []
        self.asked: list[Any] = []
        self.keys: list[str | None] = []
        self.released = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/score"


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        assert self.path == "/score"
        self.server.asked.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        self.server.keys.append(self.headers["authorization"])
        says = self.server.says.pop(0)
        if says.hangs:
            self.server.released.wait(60)
        if says.closes or says.hangs:
            self.close_connection = True
            return
        body = says.raw or json.dumps(says.body).encode()
        self.send_response(says.status)
        for name, content in {"content-length": str(len(body)), **says.headers}.items():
            self.send_header(name, content)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as made:
        threading.Thread(target=made.serve_forever, args=(0.02,), daemon=True).start()
        yield made
        made.released.set()
        made.shutdown()


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the pauses that were wanted; nobody waits for them."""
    wanted: list[float] = []
    monkeypatch.setattr("areal_tasks.served.time.sleep", wanted.append)
    return wanted


def value(completion: str, **row: Any) -> RewardInput:
    return RewardInput(prompt="p", completion=completion, completion_ids=(4, 5), stop_reason="stop", row=row)


def scored(server: Server, *values: RewardInput, **options: Any) -> list[RewardResult]:
    """Return what is made of the answers, as a reward process does it."""
    return Scorer(Remote(RemoteConfig(url=server.url, **options)))(values)


def scored_one(server: Server, **options: Any) -> RewardResult:
    (result,) = scored(server, value("c"), **options)
    return result


def test_one_completion_is_a_request_of_its_own(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it is sent, with the key of the environment; components come back."""
    monkeypatch.setenv("SCORER_KEY", KEY)
    server.says = [Says(body={"reward": 0.5, "components": {"style": 1}}), Says(body={"reward": True})]

    first, second = scored(server, value("c", answer="4", level=3), value("d", answer="5"), api_key_env="SCORER_KEY")

    assert (first.value, first.components, second.value) == (0.5, {"style": 1.0}, 1.0)
    assert server.asked[0] == {
        "prompt": "p",
        "completion": "c",
        "completion_ids": [4, 5],
        "stop_reason": "stop",
        "row": {"answer": "4", "level": 3},
    }
    assert server.keys == [f"Bearer {KEY}"] * 2


def test_several_completions_are_one_request(server: Server) -> None:
    """Each gets its own; of one that is no number nobody else hears."""
    server.says = [Says(body={"rewards": [{"reward": 1.0}, {"reward": "2"}, {"reward": 3.0, "components": {"x": 4}}]})]

    first, wrong, last = scored(server, value("a"), value("b"), value("c"), batch_size=8)

    assert ([each["completion"] for each in server.asked[0]["batch"]], server.keys) == (["a", "b", "c"], [None])
    assert (first.value, wrong.status, last.value, last.components) == (1.0, RewardStatus.INVALID, 3.0, {"x": 4.0})


def test_the_columns_that_are_named_are_sent(server: Server) -> None:
    """What is no JSON is told by its column, and costs its own completion only."""
    server.says = [Says(body={"reward": 1.0})] * 2

    assert scored(server, value("c", answer="4", image=b"x"), columns=("answer",))[0].value == 1.0
    assert server.asked[0]["row"] == {"answer": "4"}
    refused, taken = scored(server, value("c", image=b"x"), value("d", image=None), batch_size=1)
    assert refused.status == RewardStatus.RAISED and "column 'image' of the row cannot be sent" in refused.detail
    assert taken.value == 1.0
    assert "no column 'gold'" in scored(server, value("c"), columns=("gold",))[0].detail


@pytest.mark.parametrize("trouble", [Says(status=429), Says(status=500), Says(status=503), Says(closes=True)])
def test_a_server_that_is_busy_or_gone_is_asked_again(server: Server, pauses: list[float], trouble: Says) -> None:
    """Each time after about twice as long, and not at the same time as everybody else."""
    server.says = [trouble, trouble, trouble, Says(body={"reward": 1.0})]

    assert scored_one(server).value == 1.0
    assert [0.5 <= pause / 2**attempt <= 1.0 for attempt, pause in enumerate(pauses)] == [True] * 3


def test_the_time_a_server_asks_for_is_kept_if_there_is_as_much(server: Server, pauses: list[float]) -> None:
    """Otherwise nobody waits at all, and the failure says so."""
    server.says = [Says(status=429, headers={"retry-after": "7"}), Says(body={"reward": 1.0})]
    assert (scored_one(server).value, pauses) == (1.0, [7.0])

    server.says = [Says(status=429, body="slow down", headers={"retry-after": "70"})]
    failed = scored_one(server)
    assert (failed.status, pauses) == (RewardStatus.RAISED, [7.0])
    assert "answered 429" in failed.detail and "asks to wait 70 s (asked 1 times within 10 s)" in failed.detail


def test_a_refusal_is_final_and_told_without_the_key(
    server: Server, monkeypatch: pytest.MonkeyPatch, pauses: list[float]
) -> None:
    """In the server's words, whatever it repeats."""
    monkeypatch.setenv("SCORER_KEY", KEY)
    server.says = [Says(status=401, body=f"{KEY} is no key of mine")]

    failed = scored_one(server, api_key_env="SCORER_KEY")

    assert failed.status == RewardStatus.RAISED and "answered 401" in failed.detail
    assert "is no key of mine" in failed.detail and KEY not in failed.detail and "Bearer" not in failed.detail
    assert pauses == []


def test_a_refused_batch_is_asked_about_one_by_one(server: Server) -> None:
    """One of them may be what is refused."""
    taken = Says(body={"rewards": [{"reward": 1.0}]})
    server.says = [Says(status=413, body="too long"), taken, Says(status=413, body="too long"), taken]

    results = scored(server, value("a"), value("b" * 9), value("c"), batch_size=8)

    assert [result.value for result in results] == [1.0, None, 1.0]
    assert "answered 413" in results[1].detail and "too long" in results[1].detail


def test_a_server_that_stays_away_fails_a_batch_once(server: Server) -> None:
    """Not once for every completion of it."""
    server.says = [Says(status=503)] * 2

    results = scored(server, value("a"), value("b"), value("c"), batch_size=8, retries=1)

    assert [result.status for result in results] == [RewardStatus.RAISED] * 3
    assert len(server.asked) == 2
    gone = Scorer(Remote(RemoteConfig(url="http://127.0.0.1:9/score", retries=1)))([value("a")])[0]
    assert gone.status == RewardStatus.RAISED and "cannot be reached" in gone.detail


def test_a_server_that_hangs_is_left_within_the_time(server: Server) -> None:
    """All attempts together take no longer."""
    server.says = [Says(hangs=True)] * 4
    began = time.monotonic()

    failed = scored_one(server, timeout_s=0.2)

    assert failed.status == RewardStatus.RAISED and "cannot be reached: timed out" in failed.detail
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    "answer",
    [
        Says(raw=b"<html>"),
        Says(raw=b'{"reward": NaN}'),
        Says(raw=b"\xff\xfe"),
        Says(body=[1.0]),
        Says(body=0.5),
        Says(body={}),
        Says(body={"reward": None}),
        Says(body={"reward": "0.5"}),
        Says(body={"reward": [1.0]}),
        Says(body={"reward": 10**400}),
        Says(body={"reward": 1.0, "components": [1]}),
        Says(body={"reward": 1.0, "components": {"a": "b"}}),
        Says(body={"rewards": [{"reward": 1.0}]}),
    ],
)
def test_an_answer_of_another_form_is_invalid_and_no_zero(server: Server, answer: Says) -> None:
    """Typed, without a value, and nobody asks again."""
    server.says = [answer]

    failed = scored_one(server)

    assert (failed.status, failed.value) == (RewardStatus.INVALID, None) and failed.detail


@pytest.mark.parametrize("body", [[], {}, {"rewards": {"a": 1}}, {"rewards": [{"reward": 1.0}]}, {"reward": 1.0}])
def test_a_batch_that_is_not_answered_one_by_one_is_invalid(server: Server, body: Any) -> None:
    """Nobody gets another's reward."""
    server.says = [Says(body=body)]

    results = scored(server, value("a"), value("b"), batch_size=2)

    assert [(result.status, result.value) for result in results] == [(RewardStatus.INVALID, None)] * 2


def test_a_date_to_come_again_is_a_time_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both forms of the header; what is neither asks for nothing."""
    monkeypatch.setattr("areal_tasks.served.time.time", lambda: 1_000_000.0)

    assert retry_after(email.utils.formatdate(1_000_060.0, usegmt=True)) == 60.0
    assert [retry_after(said) for said in ("5", "", "soon", "-1", "nan", "inf")] == [5.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    assert retry_after(email.utils.formatdate(900_000.0, usegmt=True)) == 0.0


def test_a_key_in_the_address_is_not_told() -> None:
    """Nor a password."""
    served = Served(who="scorer", url="http://me:secretpw@127.0.0.1:9/score?key=abcdef123", retries=0)

    with pytest.raises(OSError, match="cannot be reached") as caught:
        served.post("", {})
    assert "secretpw" not in str(caught.value) and "abcdef123" not in str(caught.value)


@pytest.mark.parametrize("options", [{}, {"url": "ftp://x"}, {"url": "http://x", "batch_size": 0}])
def test_options_that_cannot_be_meant_are_refused(options: dict[str, Any]) -> None:
    """While planning."""
    with pytest.raises(ArealError, match=r"^o"):
        Registry().options("reward", "remote", options, "o")
