import jax
import numpy as np
import pytest

from simlab.core.pytree import Scalar
from simlab.objectives import OBJECTIVE_MODIFIERS, OBJECTIVES, get_objective, override_names, with_overrides
from simlab.objectives.objective import CHOICES, SWITCHES
from simlab.objectives.override_ranges import check_range, find_range


@pytest.mark.parametrize(
    ("name", "override", "value"),
    [
        ("grpo", "clip_low", -0.1),
        ("grpo", "clip_high", float("nan")),
        ("grpo", "clip_high", "wide"),
        ("grpo", "clip_high", (0.1, 0.2)),
        ("ppo", "dual_clip", 0.5),
        ("grpo+tis", "correction_clip", (2.0, 0.5)),
        ("grpo+tis", "correction_clip", (0.5, 2.0, 3.0)),
        ("gspo_bias", "distortion_threshold", 1.5),
        ("grpo+acrl", "acrl_reference", -0.01),
        ("dfpo_rebalance", "rebalance_floor", -1e-6),
    ],
)
def test_numbers_out_of_range_name_value_and_what_is_allowed(name, override, value):
    with pytest.raises(ValueError, match=rf"^{override} must be .*, got "):
        with_overrides(get_objective(name), **{override: value})


def test_edges_pairs_arrays_and_traced_numbers_pass():
    with_overrides(get_objective("grpo"), clip_low=0, clip_high=np.float32(np.inf), dual_clip=np.inf)
    with_overrides(get_objective("grpo+tis"), correction_clip=(0.5, 0.5))
    with_overrides(get_objective("gspo_bias"), distortion_delta=0)
    swept = jax.vmap(lambda low: with_overrides(get_objective("grpo"), clip_low=low).surrogate.clip.clip_low)
    assert swept(np.asarray([0.1, 0.2], np.float32)).shape == (2,)


NAMES = [*OBJECTIVES, *(f"grpo+{modifier}" for modifier in OBJECTIVE_MODIFIERS)]


@pytest.mark.parametrize("name", NAMES)
def test_every_number_that_can_be_overridden_has_a_range(name):
    objective = get_objective(name)
    for override in {*override_names(objective)} - {*CHOICES} - {*SWITCHES}:
        # NaN is in no range.
        with pytest.raises(ValueError, match=rf"^{override} must be .*, got nan"):
            with_overrides(objective, **{override: float("nan")})


def test_a_field_of_an_own_stage_needs_no_range():
    for hint in (float, Scalar, str, Scalar | None):
        assert find_range(hint) == (None, False)
        check_range("mine", float("nan"), hint)
