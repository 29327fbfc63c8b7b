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
MOST_CALLS_OF_A_PRODUCT = 6


@pytest.fixture(scope="module")
def paths():
    """Return the functions of simlab between `rollout` and the rounding, for every rounding of a rollout."""
    found: set[tuple[str, ...]] = set()
    real = rounding._round

    def record(*arguments):
        frames = [frame.frame for frame in inspect.stack()]
        names = [f.f_code.co_name for f in frames if f.f_globals.get("__name__", "").startswith("simlab.")]
        found.add(tuple(reversed(names)))
        return real(*arguments)

    # Of sizes that no other test has: a function that is traced already calls nothing.
    sizes = {"group_size": 3, "model": BASE["model"] | {"hidden_size": 40, "intermediate_size": 24}}
    recipe = recipe_of(run_config(BASE | sizes | {"engines": "f32/f32", "infer_mantissa_bits": 3}))

    def first():
        return initial_state(recipe, init_params(jax.random.key(0), recipe.model), jax.random.key(1))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rounding, "_round", record)
        jax.eval_shape(lambda state: rollout(recipe, state), jax.eval_shape(first))
    return found


def test_drawing_is_the_path_of_attention(paths):
    section = PAGE.read_text().split("## Path of a precision value")[1].split("```")[1]
    drawn = re.findall(r"^ +(\w+)\([^=\n]*\)", section, flags=re.MULTILINE)
    assert tuple(drawn) in paths


def test_product_rounds_within_six_calls(paths):
    lengths = {len(path) - path.index("linear") for path in paths if "linear" in path}
    assert lengths
    assert max(lengths) <= MOST_CALLS_OF_A_PRODUCT
