"""EQUATIONS.md is generated, current, and covers what the docstrings cite."""

import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_spec = importlib.util.spec_from_file_location("equations", ROOT / "scripts" / "equations.py")
equations = importlib.util.module_from_spec(_spec)
sys.modules["equations"] = equations
_spec.loader.exec_module(equations)


def test_file_is_current():
    assert (ROOT / "EQUATIONS.md").read_text() == equations.render(equations.entries()), (
        "run `make equations`"
    )


def test_source_lines_are_split_into_items():
    text = "hacking Eq. 44-45, Tab. 2; acrl Eq. 6, 7; verl core_algos.agg_loss."
    assert list(equations.parse_source(text)) == [
        ("hacking", "Eq. 44-45"),
        ("hacking", "Tab. 2"),
        ("acrl", "Eq. 6"),
        ("acrl", "Eq. 7"),
        ("other", "verl core_algos.agg_loss"),
    ]


def test_continued_source_lines_are_read_whole():
    docstring = "Text.\n\nReference: hacking Eq. 1;\n    lr Eq. 2.\nDeviation: none."
    assert equations.REFERENCE_LINES.findall(docstring) == ["hacking Eq. 1;\n    lr Eq. 2."]


def test_numbers_sort_as_numbers():
    items = ["Eq. 10", "Eq. 9", "App. D", "Tab. 2"]
    assert sorted(items, key=equations._position) == ["App. D", "Eq. 9", "Eq. 10", "Tab. 2"]
