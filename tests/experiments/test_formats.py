"""The demo of the number formats: a smoke run keeps to its own rule of decision."""

import pytest

from experiments.measurements.formats import EXPERIMENT
from simlab.formats import FORMATS, ROUNDINGS
from simlab.studies.experiment import execute


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return execute(EXPERIMENT, tmp_path_factory.mktemp("formats"), smoke=True)


def test_every_format_and_mode_is_measured(results):
    errors = results.table("errors")
    assert len(errors) == len(FORMATS) * len(ROUNDINGS) * 2
    assert errors.notna().all(axis=None)


def test_no_error_exceeds_the_unit_roundoff(results):
    errors = results.table("errors")
    nearest = errors.rounding.isin(["nearest_even", "nearest_away"])
    assert (errors.max_error <= errors.unit_roundoff * (2 - nearest)).all()
    # The bound is met: measuring nothing would not show.
    assert (errors[errors.format == "e4m3fn"].max_error > 0.9 / 16).all()


def test_profile_ends_where_the_range_does(results):
    profile = results.table("profile").set_index("format")
    assert profile.loc["e4m3fn"].log2_magnitude.max() == 8.875  # 448 lies between 2^8.75 and 2^9
