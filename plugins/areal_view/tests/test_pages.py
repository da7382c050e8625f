"""The pages as a browser asks for them: who may see them, what they show, and that nothing in a run is obeyed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from areal_core.plugins.episodes import Ending
from areal_view.app import make_app
from areal_view.pages import PAGE

Ids = Callable[[], Sequence[str]]
PLACES = ("", "/episodes", "/episodes/1", "/groups/0/0", "/distributions", "/timeline")


def test_without_the_token_nothing_is_shown(tmp_path: Path, make_run: Any, token: str) -> None:
    """No page, no data, no script, whatever is tried instead of it; what is refused names no run."""
    make_run("secret-name")
    client = TestClient(make_app(tmp_path / "runs", token=token), base_url="http://127.0.0.1:8000")

    for path in (
        "/",
        "/?token=",
        "/?token=x",
        "/?token=%ff",
        f"/?token={token[:-1]}",
        "/data/curves",
        "/static/app.js",
    ):
        answer = client.get(path)
        assert (answer.status_code, "secret-name" in answer.text) == (401, False), path
    client.cookies.set("areal_view", "guess")
    assert client.get("/").status_code == 401


def test_the_token_becomes_a_cookie_and_leaves_the_address(tmp_path: Path, make_run: Any, token: str) -> None:
    """So that it is in no history; scripts cannot read it, other sites cannot use it."""
    make_run("a")
    make_run("b")
    client = TestClient(make_app(tmp_path / "runs", token=token), base_url="http://127.0.0.1:8000")

    given = client.get(f"//?token={token}&smooth=none", follow_redirects=False)
    cookie = given.headers["set-cookie"].lower()

    assert (given.status_code, given.headers["location"]) == (303, "/?smooth=none")
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert client.get("/").status_code == 200


@pytest.mark.parametrize("host", ["example.org", "127.0.0.1.example.org", "[::1]", "0.0.0.0"])
def test_a_name_of_elsewhere_is_refused(client: TestClient, host: str) -> None:
    """A page elsewhere whose name was bound to this machine gets nothing, cookie or not."""
    assert client.get("/", headers={"host": f"{host}:8000"}).status_code == 421


def test_nothing_can_be_changed_and_every_answer_forbids_strange_scripts(client: TestClient) -> None:
    """Reading only; scripts, styles and requests of this page alone; no frame, no referrer, no cache."""
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert client.request(method, "/").status_code == 405
    for path in ("/", "/data/curves", "/static/style.css", "/nowhere"):
        headers = client.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["x-content-type-options"] == "nosniff"
    assert client.get("/").headers["cache-control"] == "no-store"


def test_pages_have_no_script_or_style_of_their_own(client: TestClient, make_run: Any, run_ids: Ids) -> None:
    """What the policy would refuse is not there; nothing is loaded from elsewhere."""
    run = make_run("a")
    run.steps(1, 5)
    run.episodes(3)

    for place in PLACES:
        text = client.get(f"/runs/{run_ids()[0]}{place}").text
        assert text.count("<script") == 2
        assert "style=" not in text
        assert "//" not in text.replace(str(run.folder), ""), place


@pytest.mark.parametrize(
    "path",
    [
        "/runs/..%2f..%2fetc",
        "/runs/%2e%2e/episodes",
        "/static/..%2fapp.py",
        "/static/%2e%2e/%2e%2e/app.py",
        "/runs/a/episodes",
        "/data/runs/../../x/timeline",
        "/static/style.css%00",
    ],
)
def test_no_address_is_a_path(client: TestClient, make_run: Any, path: str) -> None:
    """Runs are asked for by their ids, files by one of three names."""
    make_run("a")

    assert client.get(path).status_code == 404


def test_episodes_come_in_pages(client: TestClient, make_run: Any, run_ids: Ids) -> None:
    """Every episode on exactly one page; links keep the filter; a page beyond the last is empty."""
    make_run("a").episodes(20)
    base = f"/runs/{run_ids()[0]}/episodes"

    pages = [client.get(f"{base}?order=oldest&fate=trained&page={page}").text for page in (1, 2, 3, 4)]
    everything = "".join(pages)

    assert [page.count('class="over"') for page in pages] == [PAGE, PAGE, PAGE, 80 - 3 * PAGE]
    assert all(f"{base}/{number}&#34;" in everything or f'{base}/{number}"' in everything for number in range(1, 81))
    assert "fate=trained&amp;" in pages[0]
    assert "No episode passes." in client.get(f"{base}?page=9").text


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ("step=2", 4),
        ("task=train/0/3", 4),
        ("search=XYZ1", 5),
        ("fate=failed", 0),
        ("status=ok&kind=train", 20),
        ("status=raised", 0),
        ("search=%25", 0),
        ("search=' OR 1=1 --", 0),
    ],
)
def test_filters_choose(client: TestClient, make_run: Any, run_ids: Ids, query: str, count: int) -> None:
    """By step, task, text, fate, status of the reward and kind; what is typed is never SQL."""
    make_run("a").episodes(5)

    text = client.get(f"/runs/{run_ids()[0]}/episodes?{query}").text

    assert f"{count} episodes" in text


@pytest.mark.parametrize("query", ["step=x", "step=-1", "step=99999999999999999999", "page=x", "order=x", "step=²"])
def test_what_is_no_number_is_told(client: TestClient, make_run: Any, run_ids: Ids, query: str) -> None:
    """A page that says so, no traceback."""
    make_run("a").episodes(1)

    answer = client.get(f"/runs/{run_ids()[0]}/episodes?{query}")

    assert (answer.status_code, "must be" in answer.text) == (400, True)


def test_the_best_come_first_if_asked(client: TestClient, make_run: Any, run_ids: Ids) -> None:
    """Order is the store's."""
    make_run("a").episodes(2)
    base = f"/runs/{run_ids()[0]}/episodes"

    assert client.get(f"{base}?order=best").text.index("xyz3") < client.get(f"{base}?order=best").text.index("xyz0")
    assert client.get(f"{base}?order=worst").text.index("xyz0") < client.get(f"{base}?order=worst").text.index("xyz3")


def test_an_episode_shows_turns_tokens_and_its_group(client: TestClient, make_run: Any, run_ids: Ids) -> None:
    """Log-prob and version can colour; ids stand in where no tokenizer is here."""
    run = make_run("a")
    run.episodes(3)
    base = f"/runs/{run_ids()[0]}"

    without = client.get(f"{base}/episodes/6").text
    run.tokenizer()
    by_logprob, by_version = (client.get(f"{base}/episodes/6?colour={name}").text for name in ("logprob", "version"))

    assert f"{base}/groups/1/0" in without
    assert "token ids instead of text" in without
    assert 'title="id 120 · log-prob -0.01 (99.0%) · version 0">120 </span>' in without
    assert 'class="tok s0" title="id 120' in by_logprob
    assert '>x</span><span class="tok' in by_logprob
    assert 'class="tok s7" title="id 49' in by_logprob
    assert 'class="tok s1" title="id 120' in by_version
    assert 'class="tok s0" title="id 49' in by_version
    assert client.get(f"{base}/episodes/6?colour=nothing").status_code == 400


def test_a_stored_column_can_colour(
    client: TestClient, make_run: Any, run_ids: Ids, made_trajectory: Callable[..., Any]
) -> None:
    """An advantage or a ratio kept per token is offered under its name."""
    import torch

    extra = {"advantage": torch.linspace(-1, 1, 5), "experts": torch.zeros(5, 2)}
    make_run("a").episodes(1, trajectories=[made_trajectory("ab", "xyz", token_extras=extra)])

    text = client.get(f"/runs/{run_ids()[0]}/episodes/1?colour=advantage").text

    assert "colour=advantage" in text
    assert "colour=experts" not in text
    assert "advantage 1</" not in text
    assert 'class="tok s7" title="id 122' in text


def test_a_group_stands_side_by_side(client: TestClient, make_run: Any, run_ids: Ids) -> None:
    """Every member with its distance from the mean; a group that is not there is told."""
    make_run("a").episodes(2)
    base = f"/runs/{run_ids()[0]}/groups"

    text = client.get(f"{base}/1/0").text

    assert all(f"xyz{member}" in text for member in range(4))
    assert "0.375" in text
    assert "+0.375 from the mean" in text
    assert client.get(f"{base}/7/0").status_code == 404


def test_a_failed_episode_shows_its_error(client: TestClient, make_run: Any, run_ids: Ids) -> None:
    """In the list and on its own page."""
    run = make_run("a")
    run.episodes(1, ending=Ending.FAILED, error="the reward raised KeyError", reward=None)
    base = f"/runs/{run_ids()[0]}/episodes"

    assert "the reward raised KeyError" in client.get(base).text
    assert "the reward raised KeyError" in client.get(f"{base}/1").text


def test_nothing_a_run_holds_is_obeyed(client: TestClient, make_run: Any, run_ids: Ids, hostile: str) -> None:
    """Scripts in names, prompts, answers, errors, events, metrics and rows are shown; so are terminal escapes."""
    run = make_run(f"run{hostile.replace('/', '')}")
    make_run("other")
    run.steps(1, 3, **{hostile: 1.0, "{{ 7*7 }}": 2.0})
    run.event(hostile, at=1.0, text=hostile, error=hostile)
    run.episodes(2, prompt=hostile, answer=hostile, error=hostile, replica=hostile, row={hostile: hostile})
    one = next(run_id for run_id in run_ids() if "run" in client.get(f"/runs/{run_id}").text.split("<title>")[1][:3])

    for path in ("/", *(f"/runs/{one}{place}" for place in PLACES)):
        text = client.get(path).text
        assert "<script>window" not in text, path
        assert "<img" not in text, path
        assert "\x1b" not in text, path
        assert "\u202e" not in text, path
        assert "49" not in text.split("<title>")[1].split("</title>")[0]
    drawn = client.get("/data/curves", params={"run": one, "metric": hostile}).text
    assert "window.broken" in drawn
    assert "\\u001b" not in drawn
    assert client.get(f"/data/runs/{one}/timeline").status_code == 200


def test_names_that_are_no_text_do_not_break_a_page(
    client: TestClient, make_run: Any, run_ids: Ids, tmp_path: Path
) -> None:
    """A folder named in bytes that are no UTF-8, a metric that is half a letter."""
    run = make_run("caf\udce9")
    run.steps(1, 2, **{"\ud800": 1.0})
    make_run("b")

    assert client.get("/").status_code == 200
    assert "caf\\udce9" in client.get(f"/runs/{run_ids()[-1]}").text


def test_several_runs_lie_side_by_side(client: TestClient, make_run: Any, run_ids: Ids) -> None:
    """Curves of the runs that are asked for, in that order; others are left out."""
    for name in "abc":
        make_run(name).steps(1, 4)
    first, _, third = run_ids()

    found = client.get(f"/data/curves?run={third}&run={first}&run=nobody&smooth=none").json()

    reward = next(chart for chart in found["charts"] if chart["name"] == "reward")["spec"]
    assert {point["r"] for point in reward["data"]["values"]} == {"a", "c"}
    assert reward["encoding"]["color"]["scale"]["domain"] == ["c", "a"]
    assert [run["step"] for run in found["runs"]] == ["4", "4"]


def test_curves_grow_with_the_run(client: TestClient, make_run: Any, run_ids: Ids) -> None:
    """In the middle of a line nothing breaks; when it is whole its step is there."""
    run = make_run("a")
    run.steps(1, 3)
    path = f"/data/curves?run={run_ids()[0]}"

    def last() -> str:
        return str(client.get(path).json()["runs"][0]["step"])

    before = last()
    with (run.folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "rew')
        file.flush()
        torn = last()
        file.write('ard": 0.5}\n')
        file.flush()
        whole = last()

    assert (before, torn, whole) == ("3", "3", "4")


def test_distributions_are_of_the_steps_asked_for(client: TestClient, make_run: Any, run_ids: Ids) -> None:
    """Length, staleness, reward and seconds, counted by SQLite."""
    run = make_run("a")
    run.steps(1, 5)
    run.episodes(5)
    path = f"/data/runs/{run_ids()[0]}/distributions"

    def count(query: str) -> dict[str, int]:
        charts = client.get(f"{path}?{query}").json()["charts"]
        return {chart["name"]: sum(bar["n"] for bar in chart["spec"]["data"]["values"]) for chart in charts}

    assert count("first=2&last=3") == {"length": 8, "staleness": 8, "reward": 8, "seconds": 8}
    assert count("") == {"length": 20, "staleness": 20, "reward": 20, "seconds": 20}
    assert count("first=9") == {}


def test_a_timeline_says_what_waits_for_whom(client: TestClient, make_run: Any, run_ids: Ids) -> None:
    """Trainer, controller and each replica have a lane; half of a step is waiting."""
    run = make_run("a")
    run.steps(1, 5)
    run.event("replica_lost", at=5.0, worker="rollout/1")
    run.episodes(5)

    found = client.get(f"/data/runs/{run_ids()[0]}/timeline?first=2&last=4").json()
    (chart,) = found["charts"]
    values = chart["spec"]["data"]["values"]

    assert chart["spec"]["encoding"]["y"]["scale"]["domain"] == ["controller", "trainer", "rollout/0", "rollout/1"]
    assert "waits for episodes 50%" in found["note"]
    assert [value["doing"] for value in values if value["event"]] == ["replica_lost"]
    assert {value["lane"] for value in values if value["doing"] == "generates"} == {"rollout/0", "rollout/1"}


@pytest.mark.parametrize("place", ["/episodes", "/episodes/1", "/distributions"])
def test_a_run_without_a_store_says_so(client: TestClient, make_run: Any, run_ids: Ids, place: str) -> None:
    """Its curves and timeline are there all the same; a damaged store is told too."""
    run = make_run("a")
    run.steps(1, 3)
    base = f"/runs/{run_ids()[0]}"
    data = f"/data{base}/distributions" if place == "/distributions" else f"{base}{place}"

    missing = client.get(data)
    (run.folder / "episodes.sqlite").write_bytes(b"SQLite format 3\x00" + b"\xff" * 5000)
    damaged = client.get(data)

    assert (missing.status_code, "wrote no episodes" in missing.text) in ((404, True), (404, False))
    assert "episodes.sqlite" in missing.text
    assert damaged.status_code == 404
    assert client.get(f"/data{base}/timeline").json()["charts"]


def test_an_empty_folder_has_a_page(client: TestClient) -> None:
    """A run that begins later appears on it."""
    assert "There is no run here yet" in client.get("/").text


def test_one_run_is_opened_at_once(client: TestClient, make_run: Any, run_ids: Ids) -> None:
    """There is nothing to choose."""
    make_run("a")

    assert client.get("/", follow_redirects=False).headers["location"] == f"/runs/{run_ids()[0]}"


def test_the_charts_come_from_the_package(client: TestClient) -> None:
    """Vega is served from here; no page asks a network for it."""
    answer = client.get("/static/vega.js")

    assert answer.headers["content-type"].startswith("text/javascript")
    assert "vegaEmbed" in answer.text
    assert len(answer.content) > 300_000
