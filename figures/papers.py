"""Which of our figures shows what a figure or table of the papers shows, and why some have none."""

import re

from figures import FIGURES

WANTED: dict[str, tuple[str, ...]] = {
    "hacking": (*(f"Fig. {n}" for n in range(2, 18)), "Tab. 1", "Tab. 2"),
    "lr": tuple(f"Fig. {n}" for n in range(1, 14)),
    "acrl": (
        "Fig. 6",
        *(f"Fig. {n}" for n in range(8, 12)),
        *(f"Tab. {n}" for n in (1, 2, 4, 5, 6, 7, 8, 9)),
    ),
    "cancel": ("Fig. 2", *(f"Tab. {n}" for n in range(1, 5))),
}
"""What the lab draws of each paper: what was measured, without sketches and tables of settings."""

OTHER_NAMES = {"hacking Fig. 13": "softmax_levels", "hacking Tab. 2": "softmax_placements"}

NOT_DRAWN = {
    "hacking Fig. 11": "a sketch without data; what it tells apart is measured in `hacking_fig5` and "
    "`hacking_fig12`",
}

TITLE = "| paper | our figure | experiment | what it shows |\n|---|---|---|---|"


def name_of(item: str) -> str | None:
    """Return the name of our figure for `hacking Fig. 2`; None if there is none."""
    paper, kind, number = item.rsplit(" ", 2)
    name = OTHER_NAMES.get(item, f"{paper}_{kind[:3].lower()}{number}")
    return name if name in FIGURES else None


def item_of(name: str) -> str:
    """Return what of a paper our figure `name` is, as `hacking Fig. 2`; empty if it is ours alone."""
    items = (f"{paper} {item}" for paper, items in WANTED.items() for item in items)
    return next((item for item in items if name_of(item) == name), "")


def named(paper: str, where: str) -> list[str]:
    """Return our figures of the figures and tables in `where`, which reads like `Fig. 3, 9b, Tab. 1-2`."""
    numbers = re.findall(r"(Fig|Tab)\. (\d+[a-z]?(?:(?:-|, )\d+[a-z]?)*)", where)
    found = []
    for kind, listed in numbers:
        for part in re.sub("[a-z]", "", listed).split(", "):
            first, _, last = part.partition("-")
            found += [name_of(f"{paper} {kind}. {n}") for n in range(int(first), int(last or first) + 1)]
    return [name for name in found if name]


def table() -> str:
    """Return the table of `docs/figures.md`."""
    return "\n".join([TITLE, *(_row(f"{paper} {item}") for paper, items in WANTED.items() for item in items)])


def _row(item: str) -> str:
    name = name_of(item)
    if name is None:
        return f"| {item} | - | | not drawn: {NOT_DRAWN[item]} |"
    source = FIGURES[name]
    return f"| {item} | [`{name}`](../figures/{name}.py) | `{source.experiment}` | {source.caption} |"


if __name__ == "__main__":
    print(table())
