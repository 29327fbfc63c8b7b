"""Build the documentation site: `python -m scripts.site.build`, or `make docs`.

Pages come from docs/, README.md and other files of the repository, from docstrings, from stored results, and
from the notebooks, which are run. The site lands in build/site. A warning or a broken link is an error.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

from latex2mathml.converter import convert

from scripts.site.claims import claim_pages
from scripts.site.links import FENCE, broken_links, outside_code, rewrite_links
from scripts.site.notebooks import notebook_pages
from scripts.site.reference import reference_pages
from simlab.studies.board import Board
from simlab.studies.report import write_report

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"
SOURCES, SITE = BUILD / "site_sources", BUILD / "site"
EXTRA = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "EQUATIONS.md": "equations.md",
    "experiments/LOG.md": "log.md",
}
"""Pages from files outside docs/."""
LIST = re.compile(r"^((?![ ]*(?:[-*|>#]|\d+\.) )(?! ).*\S.*)\n(?=(?:- |1\. ))", re.MULTILINE)
FORMULA = re.compile(r"(?<![\\$`\w])\$(?! )([^$`\n]+?(?:\n[^$`\n]+?)?)(?<! )\$(?![\w$])")
DISPLAY = re.compile(r"^\$\$(.+?)\$\$$", re.MULTILINE | re.DOTALL)
TEX = re.compile(r"\$[^$`\n]*\\(?:pi|rho|theta|frac|sum)")


def assemble(mode: str, repository: str = "") -> None:
    """Write all sources of the site; see `notebook_pages` for the arguments."""
    shutil.rmtree(SOURCES, ignore_errors=True)
    SOURCES.mkdir(parents=True)
    pages = {path: path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    pages |= {ROOT / name: target for name, target in EXTRA.items()}
    pictures = {path: f"figures/{path.name}" for path in (ROOT / "figures" / "out").glob("*.png")}
    scripts = {path: f"scripts/{path.name}" for path in (ROOT / "docs" / "scripts").glob("*.py")}
    targets = pages | pictures | scripts | {ROOT / "notebooks": "notebooks/index.md"}
    for path, target in (pictures | scripts).items():
        _write(target, path.read_bytes())
    notebook_pages(ROOT / "notebooks", SOURCES / "notebooks", mode, repository)
    for folder, made in (("claims", claim_pages(write_board())), ("reference", reference_pages())):
        for name, text in made.items():
            _write(f"{folder}/{name}", text.encode())
    for path, target in pages.items():
        _write(target, rewrite_links(path.read_text(encoding="utf-8"), path, target, targets).encode())
    for path in SOURCES.rglob("*.md"):
        text = outside_code(path.read_text(encoding="utf-8"), with_formulas)
        if left := TEX.search(FENCE.sub("", text)):
            sys.exit(f"{path.name}: the formula {left[0]!r} is not drawn")
        path.write_text(outside_code(text, with_spaced_lists), encoding="utf-8")


def write_board() -> Board:
    """Write the interactive board into the folder of the claims and return it."""
    (SOURCES / "claims").mkdir(parents=True, exist_ok=True)
    return write_report(SOURCES / "claims" / "board.html")


def with_formulas(text: str) -> str:
    """Return Markdown whose `$...$` and `$$...$$` are MathML, which browsers draw without a script."""
    text = DISPLAY.sub(lambda match: convert(match[1].replace("\n", " "), display="block"), text)
    return FORMULA.sub(lambda match: convert(match[1].replace("\n", " ")), text)


def with_spaced_lists(text: str) -> str:
    """Return Markdown with a blank line before each list: without one the site shows it as running text."""
    return LIST.sub(r"\1\n\n", text)


def _write(target: str, content: bytes) -> None:
    path = SOURCES / target
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def configuration() -> str:
    """Return zensical.toml: docs/site.toml with folders and the list of claims and symptoms filled in."""
    text = (ROOT / "docs" / "site.toml").read_text(encoding="utf-8")
    claims = [path.name for path in (SOURCES / "claims").glob("*.md") if path.stem != "index"]
    names_by_folder = {
        "claims": sorted(claims, key=lambda name: (re.sub(r"\d+", "", name), int(re.sub(r"\D", "", name)))),
        "notebooks": sorted(path.name for path in (SOURCES / "notebooks").glob("[0-9]*.md")),
        "reference": sorted(path.name for path in (SOURCES / "reference").glob("simlab*.md")),
        "symptoms": sorted(path.name for path in (SOURCES / "symptoms").glob("*.md")),
    }
    for folder, names in names_by_folder.items():
        if not names:
            text = re.sub(rf'^.*"{folder}/\*".*\n', "", text, flags=re.MULTILINE)
        pages = ", ".join(json.dumps(f"{folder}/{name}") for name in names)
        text = text.replace(f'"{folder}/*"', pages)
    return text


def main() -> None:
    """Assemble, build and check the site."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--notebooks", choices=("full", "smoke", "none"), default="full")
    parser.add_argument("--repository", default="", help="OWNER/NAME on GitHub, for buttons to Colab")
    chosen = parser.parse_args()
    assemble(chosen.notebooks, chosen.repository)
    config = BUILD / "zensical.toml"
    config.write_text(configuration(), encoding="utf-8")
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict", "--config-file", str(config)]
    done = subprocess.run(command, cwd=BUILD, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"the site does not build:\n{done.stdout}{done.stderr}")
    broken = broken_links(SITE)
    if broken:
        sys.exit("broken links:\n" + "\n".join(broken))
    print(f"{SITE}: {len(list(SITE.rglob('*.html')))} pages, no warning, no broken link")


if __name__ == "__main__":
    main()
