"""The README and docs: generated parts are current, links lead somewhere, the README stays short."""

import ast
import inspect
import re
import shlex
import tomllib
from importlib import import_module

import pytest
from typer.main import get_command

from experiments.studies.readme_example import BASE, LATE, OVER
from scripts.findings import decided_row
from scripts.readme import PAGES, ROOT, render
from scripts.site.reference import PACKAGES
from simlab.cli import app

LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
DOCS = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md"))


@pytest.mark.parametrize("page", PAGES)
def test_generated_parts_are_current(page):
    text = (ROOT / page).read_text()
    assert render(text) == text, "run python -m scripts.readme"


def test_readme_shows_the_example_that_was_run():
    code = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert code
    (call,) = (node for node in ast.walk(ast.parse(code[1])) if ast.unparse(node).startswith("simlab.sweep("))
    assert isinstance(call, ast.Call)
    assert [ast.literal_eval(argument) for argument in call.args] == [BASE, OVER]
    assert f"frame['step'] >= {LATE}" in ast.unparse(ast.parse(code[1]))


def list_commands(text: str) -> list[list[str]]:
    """Return the arguments of every `simlab` command in console blocks, and of those in table rows."""
    consoles = "\n".join(re.findall(r"```console\n(.*?)```", text, re.DOTALL)).replace("\\\n", " ")
    lines = re.findall(r"^\$ (.+)$", consoles, re.MULTILINE)
    lines += re.findall(r"`(simlab [^\s`]+ [^`]+)`", "\n".join(re.findall(r"^\|.*\|$", text, re.MULTILINE)))
    words = [shlex.split(part, comments=True) for line in lines for part in re.split(r" && | > ", line)]
    return [each[1:] for each in words if each[:1] == ["simlab"] and len(each) > 1]


@pytest.mark.parametrize(
    "page",
    [path.relative_to(ROOT).as_posix() for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))],
)
def test_commands_have_the_options_that_pages_name(page):
    for arguments in list_commands((ROOT / page).read_text()):
        command = get_command(app)
        while hasattr(command, "commands") and not arguments[0].startswith("-"):
            command, arguments = command.commands[arguments[0]], arguments[1:]
        if arguments != ["--version"]:
            command.make_context("simlab", list(arguments))


def test_readme_names_the_versions_of_the_project_file():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (jax,) = (each for each in project["dependencies"] if each.startswith("jax>"))
    low, high = re.fullmatch(r"jax>=0\.(\d+),<0\.(\d+)", jax).groups()
    shown = (
        f"Python {project['requires-python'].removeprefix('>=')} or later, JAX 0.{low} to 0.{int(high) - 1}"
    )
    assert shown in (ROOT / "README.md").read_text()


def test_a_finding_needs_its_verdict():
    assert decided_row("V1", "identical_engines", "reproduced").id == "V1"
    with pytest.raises(ValueError, match="V1 in identical_engines is reproduced, not contradicted"):
        decided_row("V1", "identical_engines", "contradicted")


def test_render_rejects_unknown_parts():
    with pytest.raises(KeyError, match="nothing"):
        render("<!-- generated: nothing --><!-- end -->")


def test_readme_has_at_most_150_lines():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


@pytest.mark.parametrize("page", ["README.md", *DOCS])
def test_python_code_calls_names_of_the_api_reference(page):
    for code in re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL):
        tree = ast.parse(code)
        names = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("simlab"):
                # `initial_state` is public, but `recipe` has no page.
                assert node.module in (*PACKAGES, "simlab.training.recipe")
                names |= {name.name: getattr(import_module(node.module), name.name) for name in node.names}
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
                keywords = {word.arg for word in node.keywords}
                known = inspect.signature(names[node.func.id]).parameters
                assert keywords <= set(known) or "options" in known


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", *DOCS])
def test_links_lead_to_files(page):
    folder = (ROOT / page).parent
    targets = LINK.findall((ROOT / page).read_text())
    assert not [target for target in targets if not (folder / target).exists()]
