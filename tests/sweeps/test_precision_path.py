"""The path of a mantissa width from the config to the rounding is the one that docs/architecture.md draws."""

import inspect
import re
from pathlib import Path

import jax
import pytest

from simlab.formats import rounding
from simlab.models.parameters import init_params
from simlab.sweeps import recipe_of, run_config
from simlab.training.recipe import initial_state
from simlab.training.step import rollout
from tests.sweeps.small import BASE

PAGE = Path(__file__).resolve().parents[2] / "docs" / "architecture.md"
MOST_CALLS = 8


def trace_paths(**sizes) -> set[tuple[str, ...]]:
    """Return the functions of simlab from `generate` to the kernel, for every rounding of a rollout."""
    paths: set[tuple[str, ...]] = set()
    real = rounding.prepare_format

    def record(*arguments):
        frames = [frame.frame for frame in inspect.stack()]
        names = [f.f_code.co_name for f in frames if f.f_globals.get("__name__", "").startswith("simlab.")]
        paths.add(tuple(reversed(names[: names.index("generate") + 1])))
        return real(*arguments)

    changes = {"engines": "f32/f32", "infer_mantissa_bits": 3, "model": BASE["model"] | sizes}
    recipe = recipe_of(run_config(BASE | {"group_size": 3} | changes))

    def first():
        return initial_state(recipe, init_params(jax.random.key(0), recipe.model), jax.random.key(1))

    # A function that is traced already calls nothing.
    jax.clear_caches()
    with pytest.MonkeyPatch.context() as patch:
        # The kernel's first call.
        patch.setattr(rounding, "prepare_format", record)
        jax.eval_shape(lambda state: rollout(recipe, state), jax.eval_shape(first))
    return paths


@pytest.fixture(scope="module")
def dense_paths():
    return trace_paths()


def test_drawing_is_the_path_of_attention(dense_paths):
    section = PAGE.read_text().split("## Path of a precision value")[1].split("```")[1]
    drawn = re.findall(r"^ +(\w+)\([^=\n]*\)", section, flags=re.MULTILINE)
    assert tuple(drawn[drawn.index("generate") :]) in dense_paths


def test_dense_model_rounds_within_eight_calls(dense_paths):
    assert max(map(len, dense_paths)) <= MOST_CALLS


def test_moe_model_rounds_within_eight_calls():
    paths = trace_paths(moe_intermediate_size=24, num_experts=3)
    assert any("_experts" in path for path in paths)
    assert max(map(len, paths)) <= MOST_CALLS
