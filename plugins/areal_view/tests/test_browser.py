"""The page in a real browser: what is drawn, that nothing in a run is obeyed, that it fits a phone.

Part of `make test-browser`; CHROMIUM=PATH names another browser than the one on the search path.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from areal_view.app import make_app
from areal_view.view import _listening

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]
PATIENCE_MS = 120_000
"""A deadline on a busy machine, never a measure of speed."""
PHONE = {"width": 390, "height": 844}
PLACES = ("", "/episodes", "/episodes/1", "/groups/0/0", "/distributions", "/timeline")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, started once. It is an error, not a reason to skip, that there is none."""
    from playwright.sync_api import sync_playwright

    path = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
    assert path, "there is no chromium: apt install chromium, or name one with CHROMIUM=PATH"
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"] if os.geteuid() == 0 else [])
        yield opened
        opened.close()


class Visit:
    """A page that is looked at, and what went wrong on it."""

    def __init__(self, page: Any, base: str, token: str) -> None:
        self.page, self._base = page, base
        self.complaints = list[str]()
        self.strangers = list[str]()
        page.set_default_timeout(PATIENCE_MS)
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self._look(request.url))
        page.goto(f"{base}/?token={token}")

    def go(self, path: str) -> None:
        """Open a page and wait for its charts."""
        self.page.goto(f"{self._base}{path}")
        if self.page.query_selector("[data-charts]"):
            self.page.wait_for_selector("[data-charts][data-state]")

    def fits(self) -> bool:
        """Tell whether nothing sticks out sideways."""
        shown: bool = self.page.evaluate(
            "document.documentElement.scrollWidth <= document.documentElement.clientWidth && innerWidth <= outerWidth"
        )
        return shown

    def _look(self, url: str) -> None:
        if not url.startswith((self._base, "data:")):
            self.strangers.append(url)


@pytest.fixture
def served(tmp_path: Path, token: str) -> Iterator[str]:
    """The address of a server over the folder `runs`."""
    (tmp_path / "runs").mkdir(exist_ok=True)
    with _listening(0) as listener:
        app = make_app(tmp_path / "runs", token=token)
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", ws="none"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join()


@pytest.fixture
def visit(browser: Any, served: str, token: str) -> Iterator[Callable[..., Visit]]:
    """Return what opens a browser window of a size; all are closed afterwards."""
    contexts = []

    def open_window(**options: Any) -> Visit:
        contexts.append(browser.new_context(**options))
        return Visit(contexts[-1].new_page(), served, token)

    yield open_window
    for context in contexts:
        context.close()


def hostile_run(make_run: Any, hostile: str) -> None:
    """Make a run in which everything that can have a name or a text is an attack."""
    run = make_run(f"0{hostile.replace('/', '')}")
    run.steps(1, 12, **{hostile: 1.0, "datum.x[0]'\"": 2.0, "w" * 190: 3.0})
    run.event(hostile, at=9.0, text=hostile, error=hostile)
    run.event("long", at=9.0, text="y" * 3000)
    long_word = "z" * 2000
    run.episodes(12, prompt=hostile + long_word, answer=hostile, error=hostile + long_word, row={hostile: long_word})


def test_a_hostile_run_is_shown_and_never_obeyed(
    make_run: Any, visit: Any, run_ids: Callable[[], Sequence[str]], hostile: str
) -> None:
    """On no page does a script of the run run, anything break the policy, or a request leave the page."""
    hostile_run(make_run, hostile)
    make_run("other").steps(1, 3)
    window = visit()
    one = run_ids()[0]

    for path in ("/", f"/?run={one}&metric=datum.x%5B0%5D'%22", *(f"/runs/{one}{place}" for place in PLACES)):
        window.go(path)
        assert window.page.evaluate("window.broken") is None, path
        assert window.page.query_selector("main img") is None, path
    assert window.complaints == []
    assert window.strangers == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_fits_a_phone(
    make_run: Any, visit: Any, run_ids: Callable[[], Sequence[str]], hostile: str, scheme: str
) -> None:
    """390 points wide, nothing sticks out, whatever the names are; the charts are as wide as their cards."""
    hostile_run(make_run, hostile)
    make_run("other").steps(1, 3)
    window = visit(viewport=PHONE, color_scheme=scheme, is_mobile=True, has_touch=True)
    one = run_ids()[0]

    for path in ("/", *(f"/runs/{one}{place}" for place in PLACES)):
        window.go(path)
        assert window.fits(), path
    assert window.complaints == []


def test_curves_are_drawn_and_grow_while_the_run_goes_on(
    make_run: Any, visit: Any, run_ids: Callable[[], Sequence[str]]
) -> None:
    """Several runs in one chart; a step that is written appears without a click, half of one does not."""
    import fcntl

    run, other = make_run("a"), make_run("b")
    run.steps(1, 5)
    other.steps(1, 7)
    with (run.folder / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as a live run holds it
        window = visit()
        window.go("/")
        plot = "[data-chart=reward] .plot"
        window.page.wait_for_selector(f"{plot}[data-points='12'] canvas")
        window.page.wait_for_selector(f"[data-run='{run_ids()[0]}'][data-status=running]")
        run.steps(6, 8)
        with (run.folder / "metrics.jsonl").open("a") as file:
            file.write('{"step": 9, "rew')
        window.page.wait_for_selector(f"{plot}[data-points='15']")
        step = window.page.text_content(f"[data-run='{run_ids()[0]}'][data-field=step]")
        run.event("run_ended", at=20.0, status="finished")
    window.page.wait_for_selector("[data-charts][data-state=done]")

    assert step == "8"
    assert window.complaints == []


def test_tokens_are_coloured_and_walked_through_by_keys(
    make_run: Any, visit: Any, run_ids: Callable[[], Sequence[str]]
) -> None:
    """The surprising token is another colour than the certain one; arrow keys tell of each; so does a touch."""
    run = make_run("a")
    run.episodes(2)
    run.tokenizer()
    window = visit(viewport=PHONE, has_touch=True)
    window.go(f"/runs/{run_ids()[0]}/episodes/1")
    page = window.page

    def colour(number: int) -> str:
        script = "n => getComputedStyle(document.querySelectorAll('.tok')[n]).backgroundColor"
        return str(page.evaluate(script, number))

    by_logprob = [colour(number) for number in range(6)]
    page.focus("[data-tokens]")
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    by_key = page.text_content("[data-tip]")
    page.locator(".tok").nth(5).tap()
    by_touch = page.text_content("[data-tip]")
    page.click(".colours a:text-is('version')")
    page.wait_for_selector("[data-colour=version]")

    assert by_logprob[0] == by_logprob[1]  # given
    assert len(set(by_logprob[2:])) > 2
    assert by_key.startswith('"x"')
    assert "log-prob -0.01" in by_key
    assert by_touch.startswith('"0"')
    assert colour(2) != colour(5)
    assert window.complaints == []


def test_everything_can_be_reached_by_keys(make_run: Any, visit: Any, run_ids: Callable[[], Sequence[str]]) -> None:
    """From the top of the list of episodes to the first of them by Tab and Enter alone."""
    make_run("a").episodes(3)
    window = visit()
    window.go(f"/runs/{run_ids()[0]}/episodes")
    page = window.page

    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.classList.contains('over')"):
            break
    page.keyboard.press("Enter")
    page.wait_for_url("**/episodes/12")

    assert page.text_content("h1").strip().startswith("train/0/2")


def test_the_timeline_is_drawn_with_a_lane_for_everybody(
    make_run: Any, visit: Any, run_ids: Callable[[], Sequence[str]]
) -> None:
    """Bars of trainer and replicas, a mark where something happened, and the shares in words."""
    run = make_run("a")
    run.steps(1, 6)
    run.event("replica_lost", at=6.0, worker="rollout/1")
    run.episodes(6)
    window = visit()
    window.go(f"/runs/{run_ids()[0]}/timeline")

    window.page.wait_for_selector("[data-chart=timeline] canvas")
    assert "waits for episodes 50%" in window.page.text_content("[data-note]")
    drawn = window.page.evaluate(
        """() => { const c = document.querySelector('[data-chart=timeline] canvas');
        const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
        const seen = new Set(); for (let i = 0; i < d.length; i += 4) if (d[i + 3] === 255)
        seen.add([d[i], d[i + 1], d[i + 2]].join()); return [...seen]; }"""
    )
    assert {"201,162,39", "76,120,168", "84,162,75"} <= set(drawn)
    assert window.complaints == []
