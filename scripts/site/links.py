"""Rewrite links of Markdown pages for the site, and check the links of the built HTML."""

import os
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
FENCE = re.compile(r"^(```.*?^```[^\n]*$)", re.MULTILINE | re.DOTALL)
REFERENCES = {"a": "href", "img": "src", "link": "href", "script": "src"}


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """Return `text` with `change` applied to everything outside fenced code."""
    parts = FENCE.split(text)
    return "".join(part if part.startswith("```") else change(part) for part in parts)


def rewrite_links(text: str, source: Path, page: str, targets: dict[Path, str]) -> str:
    """Return a page whose links lead into the site.

    Args:
        text: Markdown.
        source: file of the repository from which the page comes; its links are relative to it.
        page: path of the page in the site's sources.
        targets: file of the repository to its path in the site's sources.

    A link to a file that is not part of the site becomes its text.
    """

    def link(match: re.Match) -> str:
        mark, label, target = match.groups()
        if urlsplit(target).scheme or target.startswith("#"):
            return match[0]
        path, _, anchor = target.partition("#")
        linked = targets.get((source.parent / path).resolve())
        if linked is None:
            return label
        relative = os.path.relpath(linked, os.path.dirname(page) or ".")
        return f"{mark}[{label}]({relative}{'#' if anchor else ''}{anchor})"

    return outside_code(text, lambda part: LINK.sub(link, part))


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.targets: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.ids |= {value for name in ("id", "name") if (value := values.get(name))}
        target = values.get(REFERENCES.get(tag, ""))
        if target:
            self.targets.append(target)


def broken_links(site: Path) -> list[str]:
    """Return `page: target` for each link of the built site that leads to no file or to no anchor.

    Addresses on other hosts are not fetched.
    """
    pages = {path.resolve(): _read(path) for path in sorted(site.rglob("*.html"))}
    broken = []
    for path, page in pages.items():
        for target in page.targets:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            base = site if parts.path.startswith("/") else path.parent
            file = (base / unquote(parts.path).lstrip("/")).resolve() if parts.path else path
            file = file / "index.html" if file.is_dir() else file
            anchor = unquote(parts.fragment)
            is_reached = file.is_file() and (
                not anchor or file not in pages or anchor in pages[file].ids or anchor.startswith("__")
            )
            if not is_reached and path.name != "404.html":
                broken.append(f"{path.relative_to(site.resolve())}: {target}")
    return broken


def _read(path: Path) -> _Page:
    page = _Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page
