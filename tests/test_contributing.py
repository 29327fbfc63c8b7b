"""The recipes of CONTRIBUTING.md, applied to a copy of the project: each new piece works."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
RECIPES = ("format", "engine", "objective", "task", "arm", "claim", "figure")
MAX_LINES = 10

# Prints one JSON object per recipe; runs in the copy.
CHECK = """
import json, sys
from pathlib import Path
import jax.numpy as jnp, numpy as np
from tests.compiling import compile_quickly, jax
compile_quickly(True)

def report(recipe, **values):
    print(json.dumps({"recipe": recipe, **values}))

import simlab
from simlab.formats import FORMATS, quantize
values = quantize(jnp.float32([1.3, 61440.0, 1e6]), FORMATS["e5m3"], overflow="saturate")
report("format", root=str(Path(simlab.__file__).parents[1]), values=np.asarray(values).tolist())

from tests.contracts.test_engines import W, X, forward
from simlab.engines import ENGINES
sites = jax.jit(lambda x, w: forward(x, w, ENGINES["bf16-e5m2kv"]))(X, W)
cache = np.asarray(sites["cache"])
report("engine", finite=all(bool(np.isfinite(site).all()) for site in sites.values()),
       rounded=bool((cache == np.asarray(quantize(cache, "e5m2"))).all()),
       probabilities=float(np.abs(np.asarray(sites["token_probs"]).sum(-1) - 1).max()))

from simlab.objectives import TokenBatch, token_coefficients
logp = jnp.full((4, 2), -1.0)
batch = TokenBatch(logp=logp, logp_train=logp, logp_infer=logp, rewards=jnp.float32([1, 0, 0.5, 1]),
                   mask=jnp.ones((4, 2), bool), group_size=4)
report("objective", coefficients=np.asarray(token_coefficients("grpo_best", batch)).tolist())

from simlab.tasks import TASKS, decode
task = TASKS["reverse"](train_size=8, held_out_size=2)
prompts = task.prompts(jax.random.key(0), 4)
responses = task.demonstrations(jax.random.key(1), prompts)
report("task", rewards=task.check(jnp.concatenate([prompts, responses], 1)).tolist(),
       wrong=task.check(jnp.concatenate([prompts, jnp.roll(responses, 1, axis=1)], 1)).tolist(),
       texts=[decode(prompts[0]), decode(responses[0])])

from simlab.studies.loading import load_experiment
from simlab.studies.preview import preview
plan = preview(load_experiment("lr_dynamics"))  # as printed by `simlab run lr_dynamics --explain`
arms = {arm["arm"]: arm for arm in plan["arms"]}
report("arm", differences=arms["chain: token TIS at 3"]["differences"], claims=str(plan["claims"]))

from simlab.studies.board import board
rows = {row.id: row for row in board(Path(sys.argv[1])).rows}
report("claim", verdict=rows["L99"].verdict, paper=rows["L99"].claim.paper)

from figures.catalog import FIGURES
from figures.style import render
from simlab.core.paths import committed_results
from simlab.core.results import Results
results = Results(committed_results("lr_dynamics"))
paths = render(FIGURES["lr_norms"].draw, results, Path(sys.argv[1]), "lr_norms")
report("figure", sizes=[path.stat().st_size for path in paths])
"""


def read_recipes() -> dict[str, list[tuple[str, str]]]:
    """Return the (file, code) blocks of each recipe."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    sections = re.split(r"^### An? ", text.partition("## Other additions")[0], flags=re.MULTILINE)[1:]
    block = re.compile(r"^`([\w/.]+\.py)`[^\n]*\n```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
    return {section.split("\n", 1)[0]: block.findall(section) for section in sections}


def apply_block(file: Path, code: str) -> None:
    """Add a block to a file: rows after `...` to the display, imports on top, the rest at the end."""
    without_dots = code.replace("    ...\n", "")
    for statement in ast.parse(without_dots).body:
        text = file.read_text()
        source = ast.get_source_segment(without_dots, statement) or ""
        if isinstance(statement, ast.Assign) and without_dots != code:
            name = ast.unparse(statement.targets[0])
            rows = source.split("\n", 1)[1].rsplit("\n", 1)[0]
            file.write_text(insert_rows(text, name, rows))
        elif isinstance(statement, ast.ImportFrom):
            (docstring, *_) = ast.parse(text).body
            lines = text.split("\n")
            file.write_text(
                "\n".join([*lines[: docstring.end_lineno], source, *lines[docstring.end_lineno :]])
            )
        else:
            decorators = "".join(
                f"@{ast.unparse(each)}\n" for each in getattr(statement, "decorator_list", ())
            )
            file.write_text(f"{text}\n\n{decorators}{source}\n")


def insert_rows(text: str, name: str, rows: str) -> str:
    """Insert rows before the closing bracket of the dict or tuple `name` of a module."""
    for statement in ast.parse(text).body:
        if not isinstance(statement, ast.Assign | ast.AnnAssign):
            continue
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        if [ast.unparse(target) for target in targets] == [name]:
            assert isinstance(statement.value, ast.Dict | ast.Tuple), f"{name} is not a display"
            lines = text.split("\n")
            last = (statement.value.end_lineno or 0) - 1
            assert lines[last].strip() in ("}", ")"), lines[last]
            return "\n".join([*lines[:last], rows, *lines[last:]])
    raise AssertionError(f"no {name} in this module")


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """Apply all recipes to a copy; return what the check prints, by recipe."""
    copy, out = tmp_path_factory.mktemp("copy"), tmp_path_factory.mktemp("out")
    ignored = shutil.ignore_patterns("__pycache__", "results", "warm_starts", "data", "out")
    for name in ("simlab", "experiments", "figures"):
        shutil.copytree(ROOT / name, copy / name, ignore=ignored)
    for name in ("results", "warm_starts", "data"):
        (copy / "experiments" / name).symlink_to(ROOT / "experiments" / name)
    for blocks in read_recipes().values():
        for file, code in blocks:
            apply_block(copy / file, code)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(copy), str(ROOT)))}
    done = subprocess.run(
        [sys.executable, "-c", CHECK, str(out)], cwd=copy, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"recipe"')]
    assert Path(lines[0]["root"]) == copy
    return {line["recipe"]: line for line in lines}


def test_recipes_have_at_most_ten_lines_each():
    recipes = read_recipes()
    assert tuple(recipes) == RECIPES
    for name, blocks in recipes.items():
        # The bracket lines of a display and `...` are already in the file.
        lines = [
            line
            for _, code in blocks
            for line in code.splitlines()
            if line.strip() not in ("", "...") and not re.fullmatch(r"[A-Z_]+ = [({]|[)}]", line)
        ]
        assert 0 < len(lines) <= MAX_LINES, f"{name}: {len(lines)} lines"


def test_format_recipe_quantizes(reports):
    assert reports["format"]["values"] == [1.25, 61440.0, 61440.0]


def test_engine_recipe_runs_in_the_contract(reports):
    assert reports["engine"]["finite"]
    assert reports["engine"]["rounded"]
    assert reports["engine"]["probabilities"] < 2**-7


def test_objective_recipe_gives_coefficients(reports):
    # Means over two tokens and four sequences of reward minus 1; the best responses get none.
    assert reports["objective"]["coefficients"] == [[0, 0], [-0.125] * 2, [-0.0625] * 2, [0, 0]]


def test_task_recipe_rewards_its_demonstrations(reports):
    report = reports["task"]
    assert report["rewards"] == [1] * 4
    assert report["wrong"] == [0] * 4
    prompt, response = report["texts"]
    assert response == prompt[:5][::-1] + "$"


def test_arm_recipe_shows_in_the_plan(reports):
    differences = reports["arm"]["differences"]
    assert "grpo+tis" in str(differences)
    assert "3.0" in str(differences)
    assert "token TIS at 3" in reports["arm"]["claims"]


def test_claim_recipe_shows_on_the_board(reports):
    assert (reports["claim"]["verdict"], reports["claim"]["paper"]) == ("not run", "lr")


def test_figure_recipe_draws(reports):
    assert all(size > 5000 for size in reports["figure"]["sizes"])
