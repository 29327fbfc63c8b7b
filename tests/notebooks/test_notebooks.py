"""Notebooks are complete stories that need only the wheel; `make docs` runs them from top to bottom."""

import ast
import re
from pathlib import Path

import jupytext
import pytest

NOTEBOOKS = sorted((Path(__file__).resolve().parents[2] / "notebooks").glob("[0-9]*.py"))
CHECKOUT_ONLY = {"scripts", "tests"}
BUNDLED = {"experiments", "figures"}


def _imports(path):
    """Yield (line, top package, is inside try) of the imports of a notebook."""
    tree = ast.parse(path.read_text())
    guarded = {id(node) for each in ast.walk(tree) if isinstance(each, ast.Try) for node in each.body}
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
        for name in names:
            yield node.lineno, name.split(".")[0], id(node) in guarded


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_imports_only_what_the_wheel_ships(path):
    opened = re.search(r"^add_checkout_to_path\(\)", path.read_text(), re.MULTILINE)
    opened_at = path.read_text()[: opened.start()].count("\n") + 1 if opened else float("inf")
    for line, package, is_guarded in _imports(path):
        assert package not in CHECKOUT_ONLY or is_guarded, f"line {line} imports {package}"
        assert package not in BUNDLED or line > opened_at, f"line {line}: first add_checkout_to_path()"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_begins_with_a_title_and_tells_its_story(path):
    cells = jupytext.read(path).cells
    assert cells[0].cell_type == "markdown"
    assert cells[0].source.startswith("# ")
    assert sum(cell.cell_type == "markdown" for cell in cells) >= 3
