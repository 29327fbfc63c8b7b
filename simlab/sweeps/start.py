"""Initial policies: a file of parameters identified by its content, or training on demonstrations."""

import contextlib
import hashlib
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import jax

from simlab.core.catalog import shorten, suggest
from simlab.core.fingerprint import fingerprint
from simlab.core.json_value import Json
from simlab.core.paths import checkout_root
from simlab.core.ranges import SEED
from simlab.core.streams import stream
from simlab.models.config import MODELS, TransformerConfig
from simlab.models.parameters import Params, init_params, shapes_of
from simlab.sweeps.code_version import code_digest
from simlab.sweeps.config_reader import locate_errors, number, read
from simlab.tasks import Task
from simlab.training.checkpoints import DamagedCheckpointError, load_tree, save_tree
from simlab.training.warm_start import WarmStart, compile_warm_start

PREFIX = "sha256:"
LONGEST_NAME = 250  # bytes of a file name that every file system takes


def read_start(value: Json, model: TransformerConfig) -> Json:
    """Return the canonical form of `warm_start`: None, `{"file", "sha256"}`, or a table with `seed`.

    Raises `ValueError` for a missing file and for a file that does not fit the model.
    """
    if value is None:
        return None
    if isinstance(value, Mapping) and "file" not in value:
        table = dict(value)
        with locate_errors("warm_start.seed"):
            seed = number(table.pop("seed", 0), int)
            SEED.check(seed)
        return read(WarmStart, table, "warm_start").plain | {"seed": seed}
    name = value["file"] if isinstance(value, Mapping) else value
    if not isinstance(name, str | Path):
        raise ValueError(f"warm_start must be a file, its sha256:..., or a table, got {shorten(value)}.")
    path = _find(str(name))
    written = path.stat().st_mtime_ns
    start = {"file": str(path), "sha256": _digest(path, written)}
    if isinstance(value, Mapping):
        _check_table_of_file(value, start)
    _check_model(path, written, model)
    return start


def _check_table_of_file(value: Mapping[str, Json], start: Mapping[str, str]) -> None:
    """Raise `ValueError` for a table that names a file and anything else but its content."""
    if unknown := sorted(set(value) - set(start)):
        raise ValueError(f"warm_start: a file has no {', '.join(unknown)}. Remove it, or file.")
    if value.get("sha256", start["sha256"]) != start["sha256"]:
        raise ValueError(f"warm_start: {start['file']} has changed: its sha256 is {start['sha256']}.")


def model_of_start(value: Json) -> Json:
    """Return the model of a file of parameters, as a preset's name or a table of changes to one.

    Files do not name their model; its preset is the one whose parameters have the same names and shapes.
    Raises `ValueError` for a table, which trains a model of any shape, and for a file that fits no preset.
    """
    name = value.get("file") if isinstance(value, Mapping) else value
    if not isinstance(name, str | Path):
        raise ValueError("model must be given, because this warm start is trained, not read from a file.")
    path = _find(str(name))
    return _preset_of(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=64)
def _preset_of(path: Path, written: int) -> Json:
    without = [
        ({"name": name, "qk_norm": False}, replace(each, qk_norm=False)) for name, each in MODELS.items()
    ]
    for value, config in (*MODELS.items(), *without):
        if _fits(path, written, config):
            return value
    raise ValueError(f"model must be given, because {path.name} fits none of {', '.join(MODELS)}.")


def start_key(start: Json) -> Json:
    """Return what identifies an initial policy: the content of a file, not its path."""
    return PREFIX + start["sha256"] if start is not None and "sha256" in start else start


def load_initial_params(start: Json, task: Task, model: TransformerConfig, seed: int, folder: Path) -> Params:
    """Return the initial parameters of a run; those of a table are trained once and saved in `folder`."""
    if start is None:
        return init_params(stream(jax.random.key(seed), "init"), model)
    if "sha256" in start:
        path = Path(start["file"])
        # A run is known by the content of its policy: another one must not get its key.
        _check_table_of_file(start, {"file": str(path), "sha256": _digest(path, path.stat().st_mtime_ns)})
        return load_tree(path, shapes_of(model))
    path = policy_file(start, task, model, folder)
    if not path.is_file():
        changes = {field: value for field, value in start.items() if field != "seed"}
        how = read(WarmStart, changes, "warm_start").record
        train = compile_warm_start()
        save_tree(path, train(task, model, how, jax.random.key(start["seed"]))[0])
    return load_tree(path, shapes_of(model))


def policy_sha256(start: Json, task: Task, model: TransformerConfig, folder: Path) -> str:
    """Return the content hash of an initial policy: of its file, or of that which training saved in `folder`.

    It is empty without a warm start, and for a policy that is not trained yet.
    """
    if start is None:
        return ""
    if "sha256" in start:
        return start["sha256"]
    path = policy_file(start, task, model, folder)
    return _digest(path, path.stat().st_mtime_ns) if path.is_file() else ""


def policy_file(start: Mapping[str, Json], task: Task, model: TransformerConfig, folder: Path) -> Path:
    """Return the file in `folder` of the policy that a table describes."""
    # The fingerprint holds the source of a user-defined task, the digest that of what is built in.
    content = repr((code_digest(), fingerprint(task), model, sorted(start.items())))
    name = hashlib.sha256(content.encode()).hexdigest()[:20]
    return folder / f"{name}.npz"


def _find(name: str) -> Path:
    """Return the file of that path, name, or content."""
    shelf = checkout_root() / "experiments" / "warm_starts"
    for path in (Path(name), shelf / name, shelf / f"{name}.npz", checkout_root() / name):
        if len(path.name) < LONGEST_NAME and path.is_file():
            return path.resolve()
    stored = sorted(shelf.glob("*.npz"))
    if name.startswith(PREFIX):
        for path in stored:
            if _digest(path, path.stat().st_mtime_ns).startswith(name.removeprefix(PREFIX)):
                return path.resolve()
        raise ValueError(
            f"warm_start: no shipped policy has the content {shorten(name)}. Give the path of its file "
            "(in `simlab explain`: --params FILE)."
        )
    hint, names = suggest(name, [path.stem for path in stored], "experiments/warm_starts")
    raise ValueError(f"warm_start: no file {shorten(name)}; {hint}there are: {', '.join(names) or 'none'}")


@lru_cache(maxsize=64)
def _digest(path: Path, _written: int) -> str:  # a file that is written again is read again
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _check_model(path: Path, written: int, model: TransformerConfig) -> None:
    """Raise `ValueError` naming both models if the file holds parameters of another than `model`."""
    with locate_errors("warm_start"):
        if _fits(path, written, model):
            return
    wanted = f"that of the warm start {path.stem}, which fits no preset"
    with contextlib.suppress(ValueError):
        preset = read(TransformerConfig, _preset_of(path, written), "model").record
        wanted = f"{_describe_model(preset)}, the model of the warm start {path.stem}"
    raise ValueError(f"model must be {wanted}, got {_describe_model(model)}.")


def _describe_model(model: TransformerConfig) -> str:
    """Return the preset closest to `model`, and the fields that differ."""
    changes = {
        name: {field: value for field, value in vars(model).items() if value != getattr(preset, field)}
        for name, preset in MODELS.items()
    }
    name = min(changes, key=lambda name: len(changes[name]))
    differing = ", ".join(f"{field} = {value}" for field, value in changes[name].items())
    return f"{name} with {differing}" if differing else name


@lru_cache(maxsize=64)
def _fits(path: Path, _written: int, model: TransformerConfig) -> bool:
    """Return whether the file holds the parameters of `model`; raise an error for a damaged file."""
    try:
        load_tree(path, shapes_of(model))
    except DamagedCheckpointError:
        raise
    except ValueError:
        return False
    return True
