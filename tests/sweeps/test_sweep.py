"""A run's bytes depend on its config alone, and nothing is computed twice."""

import shutil

import jax
import numpy as np
import pandas as pd
import pytest

from simlab.core.manifest import processor_family
from simlab.objectives import OBJECTIVE_MODIFIERS, OBJECTIVES
from simlab.sweeps import load, recipe_of, run_config, sweep
from simlab.sweeps.grids import grid, listed
from tests.sweeps.small import BASE, GRID, RUNS_PER_BATCH, finish, start, tables


def small_sweep(out, over=None, workers=0, **changes):
    return sweep(
        BASE | changes.pop("base", {}), over, out, runs_per_batch=RUNS_PER_BATCH, workers=workers, **changes
    )


def test_tables_are_tidy(reference):
    runs, steps, vectors = reference.runs(), reference.steps(), reference.vectors()
    assert list(runs["arm"]) == ["grpo"] * 3 + ["grpo+tis"] * 3
    assert list(runs["seed"]) == [0, 1, 2] * 2
    assert set(runs["status"]) == {"finished"}
    assert list(steps["step"]) == [0, 1] * 6
    assert not steps.duplicated(["run", "step"]).any()
    assert steps["reward"].dtype == np.float32
    assert set(vectors["metric"]) >= {"mean_rho_by_pi_train", "tokens_by_pi_train"}
    frame = reference.frame()
    assert len(frame) == len(steps)
    assert list(frame.loc[frame["arm"] == "grpo", "seed"]) == [0, 0, 1, 1, 2, 2]
    assert "steps" not in frame  # the same in all runs
    assert "optimizer.learning_rate" in reference.frame(["optimizer.learning_rate"])
    assert "learning_rate" in reference.frame(["learning_rate"])
    # Runs of different seeds are different runs, and the policy moves.
    assert frame["entropy"].nunique() == 6
    assert reference.processor_families() == [processor_family()] * 6
    on_disk = load(reference.folder)
    pd.testing.assert_frame_equal(on_disk.runs(), runs)
    for name, count in reference.manifest["tables"].items():
        assert len(pd.read_parquet(reference.folder / f"{name}.parquet")) == count


def test_run_bytes_do_not_depend_on_other_runs(reference, tmp_path):
    alone = small_sweep(tmp_path, {"seed": [1]}, base={"objective": "grpo+tis"})
    (key,) = alone.runs()["run"]
    assert key in set(reference.runs()["run"])
    expected, actual = tables(reference.folder), tables(tmp_path)
    for name in (f"{key}.steps.parquet", f"{key}.vectors.parquet", f"{key}.json"):
        assert actual[name] == expected[name]


def test_run_bytes_do_not_depend_on_processes(reference, tmp_path):
    small_sweep(tmp_path, GRID, workers=2)
    assert tables(tmp_path) == tables(reference.folder)


def test_two_sweeps_share_a_folder(reference, tmp_path):
    # They share half of their runs; the second also wants what the first does not.
    first = start(tmp_path, {"objective": ["grpo"], "seed": [0, 1, 2]})
    second = start(tmp_path, GRID)
    finish(first)
    finish(second)
    small_sweep(tmp_path, GRID)
    assert tables(tmp_path) == tables(reference.folder)


def test_wider_sweep_computes_missing_runs_only(reference, tmp_path):
    small_sweep(tmp_path, {"objective": ["grpo"], "seed": [0, 2]})
    widened = small_sweep(tmp_path, GRID)
    assert widened.manifest["config"]["computed"] == 4
    assert tables(tmp_path) == tables(reference.folder)
    again = small_sweep(tmp_path, GRID)
    # Another sweep into the folder takes the file away for a moment.
    (tmp_path / "manifest.json").unlink()
    assert again.manifest["config"]["computed"] == 0
    assert tables(tmp_path) == tables(reference.folder)


def test_diverged_run_leaves_the_others_unchanged(reference, tmp_path, capsys):
    result = small_sweep(tmp_path, {"optimizer.learning_rate": [0.01, 1e30]})
    runs = result.runs().set_index("learning_rate")
    assert runs.loc[1e30, "status"] == "diverged"
    assert runs.loc[1e30, "diverged_at"] == 1
    assert "1 of 2 runs diverged, first at step 1" in capsys.readouterr().err
    assert runs.loc[0.01, "status"] == "finished"
    assert (result.steps().groupby("run").size() == 2).all()
    key = runs.loc[0.01, "run"]
    assert tables(tmp_path)[f"{key}.steps.parquet"] == tables(reference.folder)[f"{key}.steps.parquet"]


@pytest.mark.slow
def test_one_compilation_per_static_signature(tmp_path, monkeypatch):
    compiled: list[str] = []
    monkeypatch.setattr("simlab.sweeps.compilation._COMPILED", {})
    plain = [name for name, found in OBJECTIVES.items() if not getattr(found.advantage, "needs", ())]
    objectives = [*plain[:11], *(f"grpo+{modifier}" for modifier in list(OBJECTIVE_MODIFIERS)[:5])]
    residuals = [{"name": "f32/f32", "infer": {"residual": fmt}} for fmt in ("e5m2", "bf16", "fp16")]
    over = {"objective": objectives, "engines": ["f32/f32", *residuals], "seed": [0, 1]}
    lower = jax.stages.Lowered.compile

    def counted(self, *arguments, **options):
        compiled.append(str(self.in_tree))
        return lower(self, *arguments, **options)

    monkeypatch.setattr(jax.stages.Lowered, "compile", counted)
    result = sweep(BASE | {"steps": 1}, over, tmp_path, runs_per_batch=16, workers=0)
    assert len(result.runs()) == 128
    # Two rollouts and the update that they share.
    assert len(compiled) == 3
    assert set(result.runs()["status"]) == {"finished"}


def test_named_arms_keep_their_names(tmp_path):
    arms = listed({"none": {"objective": "grpo"}, "TIS": {"objective": "grpo+tis"}}) * grid({"seed": [0, 1]})
    result = small_sweep(tmp_path, arms)
    assert list(result.runs()["arm"]) == ["none", "none", "TIS", "TIS"]


def test_alias_column_when_another_sweep_computed_the_runs(reference, tmp_path):
    shutil.copytree(reference.folder, tmp_path, dirs_exist_ok=True)
    lengths = [recipe_of(run_config(BASE)).task.response_length]
    result = small_sweep(tmp_path, {"response_length": lengths, "objective": ["grpo"], "seed": [0, 1]})
    assert result.manifest["config"]["computed"] == 0
    frame = result.frame(["response_length", "task.difficulty"])
    assert set(frame["task.difficulty"]) == {2}
    assert set(frame["response_length_config"]) == set(lengths)
    pd.testing.assert_series_equal(frame["response_length"], result.steps()["response_length"])
    assert len(result.curves("reward", by="response_length").axes[0].lines) == 1
    assert "task.difficulty" in result.stored_runs()
    assert list(result.runs()["response_length"]) == lengths * 2
    pd.testing.assert_frame_equal(load(tmp_path).runs(), result.runs())


def test_curves_and_their_errors(reference):
    figure = reference.curves(("reward", "entropy"), by="objective")
    assert [axes.get_ylabel() for axes in figure.axes] == ["reward", "entropy"]
    assert len(figure.axes[0].lines) == 2
    with pytest.raises(ValueError, match="no metric 'rewards'; there are: run, step"):
        reference.curves("rewards")
    with pytest.raises(ValueError, match="no column 'lr'; there are: run, arm"):
        reference.frame(["lr"])
