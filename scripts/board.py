"""Write the counts of verdicts into README.md, between its two marks; `--check` only compares."""

import argparse
import re
import sys
from pathlib import Path

from simlab.claims.board import board, summary

README = Path(__file__).resolve().parents[1] / "README.md"
BEGIN, END = "<!-- board: written by scripts/board.py -->", "<!-- end of board -->"


def renewed(text: str) -> str:
    """Return the README with the counts of today's board; raises `ValueError` where the marks are missing."""
    if not (BEGIN in text and END in text):
        raise ValueError(f"README.md needs the lines {BEGIN} and {END}")
    pattern = f"{re.escape(BEGIN)}.*?{re.escape(END)}"
    return re.sub(pattern, lambda _: f"{BEGIN}\n{summary(board().rows)}\n{END}", text, flags=re.DOTALL)


def main() -> None:
    """Renew the README, or exit with an error when it is out of date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    text = README.read_text()
    new = renewed(text)
    if not parser.parse_args().check:
        README.write_text(new)
    elif new != text:
        sys.exit("the counts in README.md are out of date: python scripts/board.py")


if __name__ == "__main__":
    main()
