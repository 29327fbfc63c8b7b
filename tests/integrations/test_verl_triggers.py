"""The plug-in's triggers are plain Python; these hold them to the schedules of simlab."""

import importlib.util
import subprocess
import sys
import tomllib
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from simlab.integrations.verl.settings import Settings, read_settings
from simlab.integrations.verl.triggers import LengthTrigger, MismatchTrigger
from simlab.training.schedules import LengthTriggered, MismatchTriggered


def factors(schedule, values):
    """simlab's factor for each step after those observed."""
    name = "response_length" if isinstance(schedule, LengthTriggered) else schedule.metric
    memory, given = schedule.init(), []
    for step, value in enumerate(values):
        memory = schedule.observe(memory, jnp.int32(step), {name: jnp.float32(value)})
        given.append(float(schedule(jnp.int32(step + 1), memory)))
    return given


def _walk(seed, surge):
    rng = np.random.default_rng(seed)
    return np.exp(rng.normal(0, 0.1, 60)) * np.where(np.arange(60) > surge, 3.0, 1.0)


@pytest.mark.parametrize(("seed", "surge"), [(0, 12), (1, 20), (2, 99)])
def test_length_trigger(seed, surge):
    lengths = 100 * _walk(seed, surge)
    settings = Settings(schedule="length-triggered", early=6, delay=0.7)
    plain = LengthTrigger(settings)
    ours = [plain.observe(float(length)) for length in lengths]
    assert ours == pytest.approx(factors(LengthTriggered(early=6, delay=0.7), lengths), rel=1e-6)
    assert (min(ours) < 1) == (surge < 60)


@pytest.mark.parametrize(("seed", "surge"), [(0, 12), (1, 30), (2, 99)])
def test_mismatch_trigger(seed, surge):
    levels = 0.1 * _walk(seed, surge)
    levels[50] = np.inf
    settings = Settings(schedule="mismatch-triggered", mismatch_early=8, cooldown=5)
    plain = MismatchTrigger(settings)
    ours = [plain.observe(float(level)) for level in levels]
    assert ours == pytest.approx(factors(MismatchTriggered(early=8, cooldown=5), levels), rel=1e-6)
    assert min(ours) < 1


def test_settings_come_from_the_environment():
    found = read_settings({"SIMLAB_VERL_ACRL_GAMMA": "0.35", "SIMLAB_VERL_DUMP": "d", "OTHER": "1"})
    assert (found.acrl_gamma, found.dump, found.schedule) == (0.35, "d", None)
    with pytest.raises(ValueError, match=r"must be one of SIMLAB_VERL_DUMP.*got SIMLAB_VERL_GAMMA"):
        read_settings({"SIMLAB_VERL_GAMMA": "1"})
    with pytest.raises(ValueError, match="SIMLAB_VERL_RISE must be a number, got 'two'"):
        read_settings({"SIMLAB_VERL_RISE": "two"})
    with pytest.raises(ValueError, match="must be one of length-triggered, mismatch-triggered"):
        read_settings({"SIMLAB_VERL_SCHEDULE": "cosine"})


def test_the_entry_point_names_the_module_that_registers():
    text = (Path(__file__).resolve().parents[2] / "pyproject.toml").read_text()
    points = tomllib.loads(text)["project"]["entry-points"]["verl.plugins"]
    (module,) = points.values()
    # Not imported: it needs verl.
    assert importlib.util.find_spec(module) is not None


def test_the_plug_in_reaches_neither_jax_nor_the_rest_of_the_lab():
    code = (
        "import sys; import simlab.integrations.verl.settings, simlab.integrations.verl.triggers; "
        "print([name for name in sys.modules if name.split('.')[0] in ('jax', 'pandas', 'pyarrow')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
