"""Open the report in a browser without a window and print what it sees as JSON.

Runs in the environment of requirements/browser.txt, without simlab:
`$(python scripts/make_env.py browser) scripts/browser_check.py report.html --scheme dark --shots shots`.
"""

# pyright: reportMissingImports=false
import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

WIDTHS = (360, 1280)
PARTS = ("claims", "effects", "figures", "experiments")
PATIENCE = 60_000

# What is asked of the page at each width. Everything folded is opened first.
SEEN = """(() => {
  document.querySelectorAll("details").forEach((each) => { each.open = true; });
  const root = document.documentElement;
  const wide = [...document.body.querySelectorAll("*")].filter((each) => {
    const box = each.getBoundingClientRect();
    return box.width && box.right > root.clientWidth + 1 && !each.closest("pre, thead");
  });
  const links = [...document.links];
  const rgb = (text) => text.match(/[\\d.]+/g).slice(0, 3).map((x) => {
    const part = x / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  const light = (text) => { const [r, g, b] = rgb(text); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const behind = (each) => {
    for (let at = each; at; at = at.parentElement) {
      const color = getComputedStyle(at).backgroundColor;
      if (!color.endsWith(", 0)") && color !== "transparent") return color;
    }
    return "rgb(255, 255, 255)";
  };
  const contrast = (each) => {
    const pair = [light(getComputedStyle(each).color), light(behind(each))].sort((a, b) => b - a);
    return (pair[0] + 0.05) / (pair[1] + 0.05);
  };
  const texts = [...document.querySelectorAll("body *:not(script)")].filter((each) =>
    each.getClientRects().length &&
    [...each.childNodes].some((node) => node.nodeType === 3 && node.data.trim()));
  return {
    client: root.clientWidth, scroll: root.scrollWidth,
    wide: wide.slice(0, 5).map((each) => each.outerHTML.slice(0, 80)),
    links: links.length,
    broken: links.filter((each) => !document.getElementById(each.hash.slice(1))).map((each) => each.href),
    outside: performance.getEntriesByType("resource").map((each) => each.name)
      .filter((name) => !name.startsWith("data:") && !name.startsWith(new URL(".", location.href).href)),
    images: document.images.length,
    blank: [...document.images].filter((each) => !each.complete || !each.naturalWidth || !each.alt).length,
    unlabeled: [...document.querySelectorAll("input, select")].filter((each) => !each.labels.length).length,
    contrast: Math.min(...texts.map(contrast)),
    dark: matchMedia("(prefers-color-scheme: dark)").matches,
  };
})()"""

# Each filter alone, then all at once, then a link to what is filtered away.
FILTERED = """(() => {
  const rows = [...document.querySelectorAll("tbody tr")];
  const shown = () => rows.filter((each) => each.getClientRects().length);
  const set = (name, value) => {
    const field = document.getElementById(name);
    field.value = value;
    field.dispatchEvent(new Event("input", { bubbles: true }));
  };
  const found = { all: shown().length };
  for (const name of ["paper", "verdict", "kind", "regime"]) {
    found[name] = [...document.getElementById(name).options].slice(1).map((option) => {
      set(name, option.value);
      const right = rows.filter((each) => each.dataset[name] === option.value);
      return [option.value, shown().length, shown().length === right.length && right.every((x) => !x.hidden)];
    });
    set(name, "");
  }
  set("search", "entropy");
  found.search = shown().map((each) => each.textContent.toLowerCase().includes("entropy"));
  found.status = document.getElementById("shown").textContent;
  set("paper", "lr");
  found.both = shown().map((each) => each.dataset.paper);
  location.hash = "#C6";
  return found;
})()"""

# Brings a part of the page into view, as scrolling does.
VIEWED = """(() => {{
  document.getElementById("{part}").scrollIntoView({{ behavior: "instant" }});
  return true;
}})()"""

LAZY = """[...document.images].filter((each) => !each.complete || !each.naturalWidth).length"""
SCROLLED = """(() => {
  for (const each of document.images) each.loading = "eager";
  return document.images.length;
})()"""

# The plot: its points, the filter applied to it, and the keyboard.
PLOTTED = """(() => {
  const plot = document.getElementById("forest");
  const estimates = () => plot.data.filter((trace) => trace.name !== "margin").flatMap((trace) => trace.y);
  const points = () => plot.data ? estimates().length : -1;
  const paper = document.getElementById("paper");
  const found = { ready: plot.dataset.ready === "true", all: points() };
  found.height = plot.querySelector(".main-svg").getBoundingClientRect().height;
  paper.value = "lr";
  paper.dispatchEvent(new Event("input", { bubbles: true }));
  found.lr = estimates();
  plot.focus();
  found.focused = document.activeElement === plot;
  const press = (key) => plot.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
  press("ArrowDown");
  press("ArrowDown");
  press("ArrowUp");
  found.pointed = document.getElementById("pointed").textContent;
  found.hovered = plot.querySelectorAll(".hovertext").length;
  press("Enter");
  found.hash = location.hash;
  paper.value = "";
  paper.dispatchEvent(new Event("input", { bubbles: true }));
  return found;
})()"""

REVEALED = """(() => {
  const row = document.getElementById("C6");
  const folded = row.querySelector("details");
  return [row.getClientRects().length > 0, folded ? folded.open : true,
    document.querySelectorAll("tbody tr[hidden]").length];
})()"""


def main() -> None:
    """Look at the page at both widths and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path)
    parser.add_argument("--scheme", choices=("light", "dark"), default="light")
    parser.add_argument("--shots", type=Path, help="folder for screenshots")
    chosen = parser.parse_args()
    flags = (
        f"--no-sandbox --disable-gpu --blink-settings=preferredColorScheme={int(chosen.scheme == 'light')}"
    )
    os.environ |= {"QT_QPA_PLATFORM": "offscreen", "QTWEBENGINE_CHROMIUM_FLAGS": flags}
    print(json.dumps(inspect_page(chosen.page.resolve(), chosen.shots, chosen.scheme), indent=1))


def inspect_page(page: Path, shots: Path | None, scheme: str) -> dict:
    """Return what the page shows: `console` messages, `widths`, `lazy`, `plot`, `filters`, `revealed`."""
    view, console = open_browser()
    view.resize(WIDTHS[-1], 900)
    view.show()
    report: dict = {"console": console, "loaded": load(view, page), "widths": {}}
    report["lazy"] = ask(view, LAZY)
    ask(view, VIEWED.format(part="forest"))
    wait_for(view, 'document.getElementById("forest").dataset.ready === "true"')
    ask(view, SCROLLED)
    wait_for(view, f"{LAZY} === 0")
    for width in WIDTHS:
        view.resize(width, 900)
        wait_for(view, f"innerWidth === {width}")
        pause(300)
        shoot(view, shots, f"{width}-{scheme}")
        report["widths"][width] = ask(view, SEEN)
        for part in PARTS if shots else ():
            ask(view, f'document.getElementById("{part}").scrollIntoView({{behavior: "instant"}}) || 0')
            pause(200)
            shoot(view, shots, f"{width}-{part}-{scheme}")
    report["plot"] = ask(view, PLOTTED)
    report["filters"] = ask(view, FILTERED)
    pause(200)
    report["revealed"] = ask(view, REVEALED)
    view.setPage(None)
    return report


def open_browser() -> tuple[Any, list[str]]:
    """Return a view without a window, and the list that its console messages go to."""
    from PyQt6.QtWebEngineCore import QWebEnginePage
    from PyQt6.QtWebEngineWidgets import QWebEngineView
    from PyQt6.QtWidgets import QApplication

    console: list[str] = []

    class Page(QWebEnginePage):
        def javaScriptConsoleMessage(self, level, message, line, source):  # noqa: N802
            console.append(f"{level.name} {message} ({source}:{line})")

    application = QApplication(sys.argv[:1])
    view = QWebEngineView()
    view.application = application  # kept as long as the view
    view.setPage(Page(view))
    return view, console


def run_until_called(start: Callable[[Callable], Any]) -> Any:
    """Run the event loop until `start` calls back, and return what with."""
    from PyQt6.QtCore import QEventLoop, QTimer

    loop, answers = QEventLoop(), []
    QTimer.singleShot(PATIENCE, loop.quit)
    start(lambda *answer: (answers.append(answer[0] if answer else None), loop.quit()))
    if not answers:
        loop.exec()
    if not answers:
        sys.exit("the browser did not answer")
    return answers[0]


def pause(milliseconds: int) -> None:
    """Let the browser lay out and draw."""
    from PyQt6.QtCore import QTimer

    run_until_called(lambda done: QTimer.singleShot(milliseconds, done))


def wait_for(view: Any, condition: str) -> None:
    """Wait until a JavaScript expression is true, at most `PATIENCE`; the tests see it if it never is."""
    for _ in range(PATIENCE // 100):
        if ask(view, condition):
            return
        pause(100)


def load(view: Any, page: Path) -> bool:
    """Load a file and return whether that worked."""
    from PyQt6.QtCore import QUrl

    def start(done: Callable) -> None:
        view.page().loadFinished.connect(done)
        view.load(QUrl.fromLocalFile(str(page)))

    return run_until_called(start)


def ask(view: Any, script: str) -> Any:
    """Return the value of a JavaScript expression."""
    answer = run_until_called(lambda done: view.page().runJavaScript(f"JSON.stringify({script})", done))
    if answer is None:
        sys.exit(f"a script failed: {script[:80]}")
    return json.loads(answer)


def shoot(view: Any, folder: Path | None, name: str) -> None:
    """Write a screenshot, where a folder was asked for."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        view.grab().save(str(folder / f"{name}.png"))


if __name__ == "__main__":
    main()
