"""report.html in a real browser: it draws, sorts, changes its theme, fits a phone, prints, and runs nobody's script."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Dialog, Page, sync_playwright

from autoaccum.records import Outcome
from autoaccum.report import page as pages
from autoaccum.report.record import Report
from tests.reports import anatomy, failed, ran, report, tuning

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
SCRIPT, IMAGE, FORMULA = "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "=cmd|' /C calc'!A0"
CHARTS = ("memory", "speed", "history", "knobs", "tradeoff")
WHITE, BLACK = "rgb(255, 255, 255)", "rgb(18, 22, 27)"
INK = {"light": "rgb(27, 31, 36)", "dark": "rgb(230, 234, 238)"}

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: none of its names is on the PATH")


@dataclass
class Opened:
    """A page, and what went wrong on it."""

    page: Page
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    dialogs: list[str] = field(default_factory=list)

    def dismiss(self, dialog: Dialog) -> None:
        """Note a dialog, and go on."""
        self.dialogs.append(dialog.message)
        dialog.dismiss()

    def column(self, table: str, name: str) -> list[str]:
        """Give the cells of a column, from the top down."""
        found: list[str] = self.page.evaluate(
            """([table, name]) => {
                const head = [...document.querySelectorAll("h2")].find((h) => h.textContent.startsWith(table));
                const found = head.parentElement.querySelector("table");
                const index = [...found.tHead.rows[0].cells].findIndex((cell) => cell.textContent === name);
                return [...found.tBodies[0].rows].map((row) => row.cells[index].textContent);
            }""",
            [table, name],
        )
        return found

    def sort(self, table: str, name: str) -> list[str]:
        """Click on a column's head, and give its cells."""
        section = self.page.locator("section", has=self.page.locator("h2", has_text=table))
        section.get_by_role("button", name=name, exact=True).click()
        return self.column(table, name)

    def style(self, selector: str, what: str) -> str:
        """Give the style of an element as the browser computes it."""
        found: str = self.page.eval_on_selector(selector, f"(e) => getComputedStyle(e).{what}")
        return found


Open = Callable[..., Opened]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Browser, tmp_path: Path) -> Iterator[Open]:
    """Open the page of a report, with options of the browser's context; whatever went wrong on it fails the test."""
    opened: list[Opened] = []

    def open_it(run: Report, **options: Any) -> Opened:
        path = tmp_path / f"{len(opened)}.html"
        path.write_text(pages.render(run), encoding="utf-8")
        page = browser.new_context(**options).new_page()
        page.set_default_timeout(10_000)
        found = Opened(page)
        opened.append(found)
        page.on("console", lambda message: found.errors.append(message.text))
        page.on("pageerror", lambda error: found.errors.append(str(error)))
        page.on("request", lambda request: found.requests.append(request.url))
        page.on("dialog", found.dismiss)
        page.goto(path.as_uri())
        return found

    yield open_it
    for each in opened:
        each.page.context.close()
        assert (each.errors, each.dialogs) == ([], [])
        assert [url for url in each.requests if not url.startswith("data:")] == [each.requests[0]]
        assert each.requests[0].startswith("file://")


def test_every_chart_is_drawn(open_page: Open) -> None:
    found = open_page(report(tuning=tuning()))

    for name in CHARTS:
        chart = found.page.locator(f"#chart-{name}")
        assert chart.locator("svg.main-svg").count() >= 1
        assert chart.locator(".trace").count() >= 1, name
        box = chart.locator("svg.main-svg").first.bounding_box()
        assert box is not None
        assert box["width"] > 600
    drawn = found.page.locator("#chart-memory")
    assert drawn.locator(".legendtext", has_text="budget 20.0 GiB").count() == 1
    assert drawn.locator(".legendtext", has_text="optimizer state").count() == 1
    assert drawn.locator(".legendtext", has_text="did not fit").count() == 1


def test_numbers_are_sorted_as_numbers_both_ways_and_empty_cells_stay_last(open_page: Open) -> None:
    speeds = (9.0, 1000.0, 20.0, 99.9)
    samples = [ran(number, number, samples_per_second=speed) for number, speed in enumerate(speeds, start=1)]
    found = open_page(report(samples=(*samples[:2], failed(5, 5), *samples[2:])))

    assert found.sort("Trials", "samples/s") == ["9", "20", "99.9", "1000", ""]
    assert found.sort("Trials", "samples/s") == ["1000", "99.9", "20", "9", ""]
    head = found.page.locator("section", has=found.page.locator("h2", has_text="Trials")).locator("th[aria-sort]")
    assert head.count() == 1
    assert head.get_attribute("aria-sort") == "descending"


def test_sizes_are_sorted_by_their_bytes_and_words_as_words(open_page: Open) -> None:
    sizes = (900 << 20, 2 << 30, 1500 << 10)
    samples = tuple(ran(number, number, device_used_bytes=size) for number, size in enumerate(sizes, start=1))
    found = open_page(report(samples=(*samples, failed(4, 4, Outcome.KILLED, "b"), failed(5, 5, Outcome.OOM, "a"))))

    assert found.sort("Trials", "peak") == ["1.46 MiB", "900.0 MiB", "2.00 GiB", "", ""]
    assert found.sort("Trials", "message") == ["a", "b", "", "", ""]
    assert found.sort("Trials", "outcome") == ["killed", "ok", "ok", "ok", "oom"]


def test_the_page_and_its_charts_follow_the_system_s_theme(open_page: Open) -> None:
    found = open_page(report(tuning=tuning()), color_scheme="dark")

    for scheme, ground in (("dark", BLACK), ("light", WHITE)):
        found.page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]

        assert found.style("body", "backgroundColor") == ground
        assert found.style("body", "color") == INK[scheme]
        for name in CHARTS:
            assert found.style(f"#chart-{name} .xtick text", "fill") == INK[scheme]
            assert found.style(f"#chart-{name} .xtitle", "fill") == INK[scheme]
        assert found.style("#chart-memory .legendtext", "fill") == INK[scheme]


def test_the_button_changes_the_theme_and_the_choice_is_remembered(open_page: Open) -> None:
    found = open_page(report(), color_scheme="dark")
    button = found.page.locator("#theme")

    seen = []
    for _ in range(4):
        seen.append((button.text_content(), found.style("body", "backgroundColor")))
        assert found.style("#chart-memory .xtick text", "fill") == INK["dark" if seen[-1][1] == BLACK else "light"]
        button.click()
    found.page.reload()

    assert seen == [("theme: auto", BLACK), ("theme: light", WHITE), ("theme: dark", BLACK), ("theme: auto", BLACK)]
    assert found.style("body", "backgroundColor") == WHITE
    found.requests.pop()  # the same file, once more


def test_a_phone_shows_it_without_scrolling_sideways(open_page: Open) -> None:
    long = "x" * 400
    run = report(tuning=tuning(), warnings=(long,), workload=f"{long}.py", environment={"variable": long})
    found = open_page(
        replace(run, samples=(*run.samples, failed(9, 256, message=long))), viewport={"width": 360, "height": 740}
    )

    assert found.page.evaluate("document.documentElement.scrollWidth") == 360
    assert found.page.evaluate("document.querySelector('main').scrollWidth") <= 360
    for name in CHARTS:
        box = found.page.locator(f"#chart-{name} svg.main-svg").first.bounding_box()
        assert box is not None
        assert box["width"] <= 360
        plot = found.page.locator(f"#chart-{name} .nsewdrag").first.bounding_box()
        assert plot is not None
        assert plot["height"] >= 150, name  # the legend leaves room for it
    # A wide table scrolls by itself.
    assert found.page.evaluate("[...document.querySelectorAll('.scroll')].some((e) => e.scrollWidth > e.clientWidth)")


def test_a_phone_shows_the_sizes_of_modules_without_scrolling(open_page: Open) -> None:
    found = open_page(report(anatomy=anatomy()), viewport={"width": 360, "height": 740})

    for table in found.page.locator(".pair .scroll").all():
        assert table.evaluate("(e) => e.scrollWidth <= e.clientWidth")
    assert not found.page.get_by_role("button", name="class").is_visible()
    assert found.sort("Activations by module", "size")[0] == "1.00 GiB"


def test_printing_a_dark_page_gives_a_light_one(open_page: Open) -> None:
    found = open_page(report(tuning=tuning()), color_scheme="dark")
    # This listener is called after the page's own: it sees what is printed.
    found.page.evaluate(
        """() => addEventListener("beforeprint", () => {
            const fill = (s) => getComputedStyle(document.querySelector(s)).fill;
            window.printed = ["memory", "speed"].map((name) => fill(`#chart-${name} .xtick text`));
        })"""
    )

    pdf = found.page.pdf()

    assert pdf.startswith(b"%PDF")
    assert found.page.evaluate("window.printed") == [INK["light"]] * 2
    assert found.style("#chart-memory .xtick text", "fill") == INK["dark"]  # as before, on the screen
    found.page.emulate_media(media="print")
    assert found.style("body", "backgroundColor") == WHITE
    assert found.style("body", "color") == INK["light"]
    assert not found.page.locator("#theme").is_visible()
    assert found.style(".scroll", "overflow") == "visible"


def test_without_javascript_the_tables_are_there(open_page: Open) -> None:
    found = open_page(report(tuning=tuning()), java_script_enabled=False)

    body = found.page.locator("body")
    assert "Train with micro-batch 64 x 8" in body.inner_text()
    assert "The charts need JavaScript" in body.inner_text()
    rows = found.page.locator("section", has=found.page.locator("h2", has_text="Trials")).last.locator("tbody tr")
    assert rows.count() == 8
    assert rows.first.is_visible()
    assert not found.page.locator("#chart-memory").is_visible()
    assert not found.page.locator("#theme").is_visible()


def test_the_user_s_text_is_seen_as_text_and_runs_nothing(open_page: Open) -> None:
    message = f"{IMAGE} {FORMULA}"
    run = report(workload=SCRIPT, samples=(ran(1, 2), failed(2, 4, message=message)), tuning=tuning())
    run = replace(run, warnings=(f"{SCRIPT} {IMAGE}",), environment={IMAGE: SCRIPT})
    found = open_page(run)

    assert found.page.locator("main img, header img").count() == 0
    assert found.page.locator("script").count() == 3
    assert found.column("Trials", "message")[1] == message
    assert SCRIPT in (found.page.locator(".brand").text_content() or "")
    assert found.page.get_by_text(message, exact=True).is_visible()
    assert found.page.title().startswith(SCRIPT)


def test_the_page_s_policy_stops_a_script_that_slipped_in(open_page: Open) -> None:
    found = open_page(report())

    found.page.evaluate(
        """() => {
            const script = document.createElement("script");
            script.textContent = "window.slipped = true";
            document.body.append(script);
        }"""
    )

    assert found.page.evaluate("window.slipped") is None
    (refused,) = found.errors
    assert "Content Security Policy" in refused
    found.errors.clear()


def test_a_click_copies_the_line_or_selects_it(open_page: Open) -> None:
    found = open_page(report())

    found.page.locator("#copy").click()

    found.page.wait_for_function("['copied', 'selected'].includes(document.getElementById('copy').textContent)")


def test_five_hundred_trials_can_be_sorted(open_page: Open) -> None:
    samples = tuple(ran(number, number) for number in range(1, 501))
    found = open_page(report(samples=samples, tuning=tuning(500)))

    found.sort("Tuning trials", "trial")
    rows = found.sort("Tuning trials", "trial")

    assert rows == [str(number) for number in range(500, -1, -1)]
    assert len(found.column("Trials", "trial")) == 500


def test_a_run_with_nothing_to_draw_still_opens(open_page: Open) -> None:
    found = open_page(report(samples=(), memory_model=None, plan=None, plans=(), model=None, budget=None, device=None))

    assert found.page.locator(".figure").count() == 0
    assert "No plan." in found.page.locator("h1").inner_text()
