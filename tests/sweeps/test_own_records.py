"""User-defined objectives, tasks, engines, schedules and formats run like built-in ones."""

import importlib
import json
import subprocess
import sys
from dataclasses import replace
from types import ModuleType

import pytest

from simlab.core.fingerprint import fingerprint
from simlab.core.own_code import is_own_code
from simlab.engines import ENGINES, EnginePair, find_pair
from simlab.objectives import OBJECTIVES, with_overrides
from simlab.sweeps import recipe_of, run_config, run_key, sweep
from simlab.sweeps.config import columns
from simlab.sweeps.file import read_file
from simlab.sweeps.grids import as_grid
from simlab.sweeps.own_records import collect_records, describe_own, receive
from simlab.sweeps.plan import expand
from simlab.sweeps.switch_objective import SwitchObjective, as_switch_objective
from simlab.tasks import TASKS
from simlab.training.schedules import Cosine
from tests.sweeps.small import BASE, RUNS_PER_BATCH

MODULE = """
from dataclasses import dataclass, replace
import jax.numpy as jnp
from simlab.core.pytree import Scalar, pytree
from simlab.formats import FORMATS
from simlab.engines import ENGINES, EnginePair, Site
from simlab.objectives import OBJECTIVES, with_overrides
from simlab.objectives.ratios import Surrogate, token_ratio
from simlab.tasks import TASKS
from simlab.training.schedules import Schedule
from numbers_of_mine import HIGH

mine = with_overrides(OBJECTIVES["grpo"], {"clip_high": HIGH})
NARROW = replace(FORMATS["bf16"], mantissa_bits=FORMATS["e5m2"].mantissa_bits)
NARROW_SITE = Site.of(NARROW)
engine = replace(ENGINES["bf16"], residual=NARROW_SITE)
number = 3

@pytree
class Parabola(Surrogate):
    width: Scalar = 0.2

    def __call__(self, batch, advantages):
        ratio = token_ratio(batch)
        return ratio - jnp.sign(advantages) * (ratio - 1) ** 2 / (2 * self.width)

parabola = replace(OBJECTIVES["grpo"], surrogate=Parabola())

@pytree(kw_only=True)
class Steps(Schedule):
    every: Scalar = 10.0

    def __call__(self, step, schedule_state=None):
        return jnp.where(step % self.every == 0, 1.0, 0.5)

class Sorted(TASKS["sort"]):
    pass

pair = EnginePair(ENGINES["f32"], engine)
easy = Sorted(difficulty=2, train_size=64, held_out_size=16)

@dataclass(frozen=True)
class Plain(Schedule):
    def __call__(self, step, schedule_state=None):
        return jnp.float32(1)
"""


@pytest.fixture
def module(tmp_path, monkeypatch, request):
    """Write a module of user-defined components into a folder; return its name, which no other test has."""
    name = f"own_{abs(hash(request.node.name))}"
    (tmp_path / f"{name}.py").write_text(MODULE.replace("numbers_of_mine", f"numbers_{name}"))
    (tmp_path / f"numbers_{name}.py").write_text("HIGH = 0.3\n")
    monkeypatch.syspath_prepend(tmp_path)
    return name


TOML = """
[base]
task = "add"
model = "tiny-dense"
objective = "own_of_folders:mine"
[over]
seed = [0]
"""


def high_of(config):
    return float(recipe_of(config).objective.surrogate.clip.clip_high)


def objective_of(value):
    return run_config({**BASE, "objective": value})


def test_own_records_are_read_by_name(module):
    assert high_of(objective_of(f"{module}:mine")) == pytest.approx(0.3)
    own = {"objective": f"{module}:mine+tis", "schedule": f"{module}:Steps", "schedule.every": 4}
    own |= {"task": {**BASE["task"], "name": f"{module}:Sorted"}, "engines": f"f32/{module}:engine"}
    own |= {"gradient_site": f"{module}:NARROW", "infer_format": f"{module}:NARROW"}
    config = run_config(BASE, own)
    recipe = recipe_of(config)
    assert recipe.objective.correction is not None
    assert (float(recipe.schedule.every), type(recipe.task).__name__) == (4.0, "Sorted")
    assert int(recipe.engines.infer.projection.weights.format.mantissa_bits) == 2
    assert int(recipe.gradient_site.format.mantissa_bits) == 2
    assert json.loads(json.dumps(config.table)) == config.table
    assert run_config(config) == config


@pytest.mark.parametrize(
    ("field", "name"),
    [
        ("engines", "pair"),
        ("objective", "parabola"),
        ("gradient_site", "NARROW"),
        ("infer_format", "NARROW"),
        ("engines.infer.projection.weights", "NARROW"),
        ("task", "Sorted"),
        ("schedule", "Steps"),
    ],
)
def test_a_record_is_read_as_its_name_is(field, name, module):
    record = getattr(importlib.import_module(module), name)
    assert run_config(BASE, {field: record}) == run_config(BASE, {field: f"{module}:{name}"})


def test_pair_record_is_named_by_its_sides(module):
    own = importlib.import_module(module).engine
    pairs = {
        f"f32/{module}:engine": EnginePair(ENGINES["f32"], own),
        f"{module}:engine/bf16": EnginePair(own, ENGINES["bf16"]),
        f"{module}:engine/{module}:engine": EnginePair(own, own),
    }
    for name, pair in pairs.items():
        assert run_config(BASE, {"engines": pair}) == run_config(BASE, {"engines": name})
    with_replay = EnginePair(ENGINES["f32"], own, replay="R3")
    named = {"name": f"f32/{module}:engine", "replay": "R3"}
    assert run_config(BASE, {"engines": with_replay}) == run_config(BASE, {"engines": named})
    over = as_grid({"engines": [pairs[f"f32/{module}:engine"], f"f32/{module}:engine"]})
    assert len(expand(BASE, over, RUNS_PER_BATCH)) == 1


def test_pair_of_unnamed_engine_is_carried():
    unnamed = replace(ENGINES["bf16"], lm_head=ENGINES["f32"].lm_head)
    for pair in (EnginePair(ENGINES["f32"], unnamed), EnginePair(unnamed, unnamed, replay="R2")):
        config = run_config(BASE, {"engines": pair})
        receive(collect_records([config.table]))
        assert run_config(config) == config
        assert fingerprint(recipe_of(config).engines) == fingerprint(pair)
    assert config.table["engines"]["name"].count("__main__:Engine-") == 2


def test_instance_is_named_by_class_and_fields(module):
    own = importlib.import_module(module)
    sizes = {"difficulty": 2, "train_size": 32, "held_out_size": 16}
    pairs = [
        ({"task": own.Sorted(**sizes)}, {"task": {"name": f"{module}:Sorted", **sizes}}),
        ({"schedule": own.Steps(every=4)}, {"schedule": {"name": f"{module}:Steps", "every": 4}}),
        ({"task": own.easy}, {"task": f"{module}:easy"}),
    ]
    for record, named in pairs:
        assert run_config(BASE, record) == run_config(BASE, named)
    flat = columns(run_config(BASE, pairs[0][0]))
    assert (flat["task"], flat["task.train_size"]) == (f"{module}:Sorted", 32)


def test_instance_of_local_class_is_carried(module):
    class Local(importlib.import_module(module).Sorted):
        pass

    record = Local(difficulty=2, train_size=32, held_out_size=16)
    assert run_config(BASE, {"task": record}).table["task"]["name"].startswith("__main__:Local-")


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"engines": "f32/{}:NARROW"}, "must be an engine, got .*NARROW', which is of type Format"),
        ({"schedule": "{}:Plain"}, "must be a schedule whose class is decorated with simlab.core.pytree"),
    ],
)
def test_own_record_of_a_wrong_kind_is_rejected(own, message, module):
    named = {field: name.format(module) for field, name in own.items()}
    with pytest.raises(ValueError, match=message):
        run_config(BASE, named)


def test_own_objective_takes_overrides(module):
    assert high_of(run_config({**BASE, "objective": f"{module}:mine"}, {"clip_high": 0.25})) == 0.25
    config = run_config({**BASE, "objective": f"{module}:parabola"}, {"objective.width": 0.1})
    assert recipe_of(config).objective.surrogate.width == 0.1


def test_record_of_a_module_has_its_name(module):
    record = recipe_of(objective_of(f"{module}:parabola")).objective
    assert objective_of(record) == objective_of(f"{module}:parabola")
    assert objective_of(OBJECTIVES["grpo"]) == objective_of("grpo")
    config = run_config(BASE, {"task": TASKS["sort"](difficulty=2, train_size=64, held_out_size=16)})
    assert config == run_config(BASE)
    assert run_config(BASE, {"schedule": Cosine(lr_warmup_steps=3)}) == run_config(
        BASE, {"schedule": {"name": "cosine", "lr_warmup_steps": 3}}
    )
    assert run_config(BASE, {"engines": find_pair("f32/bf16")}) == run_config(BASE, {"engines": "f32/bf16"})


@pytest.mark.parametrize("changed", ["own", "numbers"])
def test_changed_source_is_another_run(module, tmp_path, changed):
    before = objective_of(f"{module}:mine")
    path = tmp_path / (f"{module}.py" if changed == "own" else f"numbers_{module}.py")
    # Of equal length, and within the second in which the first was imported.
    path.write_text(path.read_text().replace("0.3", "0.4").replace("number = 3", "number = 4"))
    after = objective_of(f"{module}:mine")
    assert run_key(after, 2) != run_key(before, 2)
    assert high_of(after) == pytest.approx(0.4 if changed == "numbers" else 0.3)
    with pytest.raises(ValueError, match=r"objective: the source of .* this run was made with"):
        run_config(before)


def test_module_of_another_folder_is_imported_anew(tmp_path):
    highs = []
    for high in (0.3, 0.4):
        folder = tmp_path / str(high)
        folder.mkdir()
        (folder / "own_of_folders.py").write_text(
            "from simlab.objectives import OBJECTIVES, with_overrides\n"
            f"mine = with_overrides(OBJECTIVES['grpo'], clip_high={high})\n"
        )
        (folder / "sweep.toml").write_text(TOML)
        described = read_file(folder / "sweep.toml")
        (run,) = expand(described.base, described.grid, 2)
        highs.append(high_of(run.config))
    assert highs == pytest.approx([0.3, 0.4])


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (
            "objective",
            "no_such_module:mine",
            r"objective: no module 'no_such_module' \(searched: .*put no_such_module.py",
        ),
        ("objective", "{module}:minee", r"unknown name in {module}.py, 'minee'; did you mean 'mine'\?"),
        ("objective", "{module}:number", "must be an objective, got '{module}:number', which is of type int"),
        ("task", "{module}:mine", "task must be a task, got '{module}:mine'"),
        ("engines", "{module}:engine", "engines must be an engine pair .*which is of type Engine"),
        ("objective", "__main__:nothing", "'__main__:nothing' is not defined in this process. Move it into"),
        ("objective", 3, "objective must be a name or a table of fields, got 3"),
    ],
)
def test_bad_references_name_value_and_fix(module, field, value, message):
    value = value.format(module=module) if isinstance(value, str) else value
    with pytest.raises(ValueError, match=message.format(module=module)):
        run_config(BASE, {field: value})


def test_module_that_fails_is_one_error(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_broken.py").write_text("1 / 0\n")
    with pytest.raises(ValueError, match="'own_broken' cannot be imported: ZeroDivisionError"):
        objective_of("own_broken:mine")
    (tmp_path / "own_broken.py").write_text("def\n")
    with pytest.raises(ValueError, match=r"own_broken.py cannot be imported: invalid syntax"):
        objective_of("own_broken:mine")


def local_objective(power):
    def advantage(batch, survivors):
        return batch.rewards * power

    return replace(OBJECTIVES["grpo"], advantage=advantage)


def test_inline_record_is_known_by_its_code():
    first, again, other = (describe_own(local_objective(power)) for power in (2.0, 2.0, 3.0))
    assert first["source"] == again["source"] != other["source"]
    changed = with_overrides(OBJECTIVES["grpo"], {"clip_high": 0.3})
    assert describe_own(changed)["source"] != describe_own(OBJECTIVES["grpo"])["source"]


def test_carried_record_is_received():
    record = local_objective(5.0)
    config = objective_of(record)
    texts = collect_records([config.table])
    assert list(texts) == [config.table["objective"]["source"]]
    receive(texts)
    assert fingerprint(recipe_of(run_config(config)).objective) == config.table["objective"]["source"]


def test_fingerprint_ignores_globals_named_like_attributes():
    def digest(**names):
        code = compile("lambda x: x.width * scale", "notebook", "eval")
        return fingerprint(eval(code, {"__name__": "__main__", "scale": 1} | names))

    assert digest() == digest(width=3) != digest(scale=2)


def test_fingerprint_sees_what_a_closure_holds():
    source = """
def one(x): return x + 1
def two(x): return x * 2
def make(k):
    def third(x): return one(x) * k
    return third
def advantage(batch): return one(batch) + two(batch) + third(batch)
third = make(K)
"""

    def digest(k):
        names = {"__name__": "__main__", "K": k}
        exec(compile(source, "notebook", "exec"), names)
        return fingerprint(names["advantage"])

    assert len({digest(k) for k in range(20)}) == 20
    assert len({digest(1) for _ in range(20)}) == 1


def test_code_of_main_is_own_when_main_is_an_installed_file(monkeypatch):
    main = ModuleType("__main__")
    main.__file__ = "/venv/lib/python3.12/site-packages/simlab/sweeps/worker.py"
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert is_own_code("__main__")


def test_record_without_content_is_an_error(tmp_path):
    with open(tmp_path / "file", "w") as file:
        record = replace(OBJECTIVES["grpo"], advantage=lambda *_: file)
        with pytest.raises(ValueError, match=r"objective: .* cannot be carried to worker .*Define it in a"):
            objective_of(record)


def test_own_stage_is_not_mistaken_for_a_built_in():
    def grpo(batch, survivors):
        return batch.rewards * 0

    built_in = OBJECTIVES["grpo"].advantage
    grpo.__qualname__ = built_in.__qualname__ if hasattr(built_in, "__qualname__") else grpo.__qualname__
    assert isinstance(as_switch_objective(OBJECTIVES["grpo"]), SwitchObjective)
    assert not isinstance(as_switch_objective(replace(OBJECTIVES["grpo"], advantage=grpo)), SwitchObjective)


def test_sweep_recomputes_a_changed_own_objective(module, tmp_path):
    over = {"objective": [f"{module}:mine", "grpo"]}
    first = sweep(BASE, over, tmp_path / "out", runs_per_batch=RUNS_PER_BATCH, workers=0)
    assert set(first.frame()["objective"]) == {f"{module}:mine", "grpo"}
    assert not [name for name in first.frame() if "source" in name]
    assert list(first.runs()["arm"]) == [f"{module}:mine", "grpo"]
    numbers = tmp_path / f"numbers_{module}.py"
    numbers.write_text("HIGH = 0.4\n")
    again = sweep(BASE, over, tmp_path / "out", runs_per_batch=RUNS_PER_BATCH, workers=0)
    assert again.manifest["config"]["computed"] == 1


MAIN = """
import sys
from dataclasses import replace
from simlab import sweep
from simlab.core.pytree import Scalar, pytree
from simlab.objectives import OBJECTIVES
from simlab.objectives.ratios import Surrogate, token_ratio
from tests.sweeps.small import BASE, RUNS_PER_BATCH

@pytree
class Double(Surrogate):
    scale: Scalar = 2.0

    def __call__(self, batch, advantages):
        return self.scale * token_ratio(batch)

out, module, workers = sys.argv[1:]
double = replace(OBJECTIVES["grpo"], surrogate=Double())
over = {"objective": [double, module], "seed": [0, 1]}
result = sweep(BASE, over, out, runs_per_batch=RUNS_PER_BATCH, workers=int(workers))
print(sorted(set(result.frame()["objective"])))
"""


@pytest.mark.slow
def test_own_records_run_in_worker_processes(module, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(MAIN)
    command = [sys.executable, str(script), str(tmp_path / "out"), f"{module}:mine"]
    for workers in ("2", "0"):  # the second finds what the processes have computed
        done = subprocess.run([*command, workers], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == [f"['__main__:double', '{module}:mine']"]
    assert "4 are there already" in done.stderr
