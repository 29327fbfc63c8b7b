"""`simlab explain`: find the source of the mismatch of a policy."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from simlab.cli.output import Json, one_clear_error, print_json, show

EPILOG = (
    "Example: `simlab explain runs/first_sweep --arm TIS --params policy.npz`, or without a sweep: "
    "`simlab explain add-tiny-llama-0 --pair f32/fp8-e4m3-truncated`."
)
TITLES = {
    "size": "The mismatch, on held-out prompts",
    "tokens": "Worst tokens (the token is in brackets)",
    "positions": "By position in the response",
    "probabilities": "By probability of the token",
    "groups": "Groups of sites: fractions of mean squared log rho (Shapley shares sum to 1)",
    "sites": "Each site alone as in inference, the rest as in training",
    "weights": "Each matrix alone as in inference, the rest as in training",
    "autopsy": "The worst token, site by site: error of inference against training",
}

Run = Annotated[str, typer.Argument(metavar="RUN", help="Result directory of a sweep, or a warm start.")]
Arm = Annotated[str | None, typer.Option(help="Arm of the sweep (default: that of the first run).")]
Params = Annotated[
    Path | None,
    typer.Option(exists=True, dir_okay=False, help="Checkpoint of that run (.npz; default: its warm start)."),
]
Pair = Annotated[str | None, typer.Option(help="Engine pair train/infer (default: that of the run).")]
Model = Annotated[
    str | None, typer.Option(help="Model preset of a warm start (default: the one that fits its shapes).")
]
TaskName = Annotated[str | None, typer.Option(help="Task of a warm start (default add).")]
Prompts = Annotated[int, typer.Option(min=1, help="Number of held-out prompts.")]
GroupSize = Annotated[int, typer.Option(min=1, help="Responses per prompt.")]
Top = Annotated[int, typer.Option(min=0, help="Number of worst tokens to list.")]


def explain(
    run: Run,
    arm: Arm = None,
    params: Params = None,
    pair: Pair = None,
    model: Model = None,
    task: TaskName = None,
    prompts: Prompts = 8,
    group_size: GroupSize = 4,
    top: Top = 8,
    json: Json = False,
) -> None:
    """Rank tokens, sites and weights by their effect on the mismatch, and analyze the worst token.

    The command samples responses with the inference engine. For n groups of sites that differ, it scores
    them with 2^n intermediate engines, in one to two minutes. A sweep stores no parameters: without
    --params, the command explains the initial policy of a run.
    """
    from simlab.core.progress import track
    from simlab.engines import find_pair
    from simlab.studies.explain import ExplainTarget
    from simlab.studies.explain import explain as compute

    with one_clear_error():
        if Path(run).is_dir():
            warm_start_options = {"--model": model, "--task": task}
            _reject_options(warm_start_options, f"a warm start, and {run} is a sweep directory")
            values = _read_sweep(Path(run), arm)
            # The initial policy may be elsewhere now, or gone.
            values = values if params is None else _without_policy(values)
        else:
            values = _read_start(run, arm, pair, model, task)
        config, recipe, policy = _load_policy(values, params)
        engines = find_pair(pair) if pair else recipe.engines
        sizes = (prompts, group_size, config.seed)
        tables = compute(ExplainTarget(policy, recipe.model, recipe.task, engines, *sizes), track, top)
    if json:
        print_json(tables)
        return
    for name, rows in tables.items():
        show(rows, False, TITLES[name])


def _reject_options(options: dict[str, str | None], kind: str) -> None:
    """Raise `ValueError` for options that are given, with the kind of argument that they apply to."""
    for name, value in options.items():
        if value is not None:
            raise ValueError(f"{name} applies only to {kind}. Remove {name} {value}.")


def _read_start(
    run: str, arm: str | None, pair: str | None, model: str | None, task: str | None
) -> Mapping[str, object]:
    """Return the fields of a run from a warm start."""
    _check_start(run, model)
    _reject_options({"--arm": arm}, f"a sweep directory, and {run} is a warm start")
    if pair is None:
        raise ValueError(f"{run!r} is not a sweep directory. A warm start also needs --pair.")
    values = {"warm_start": run, "task": task or "add", "engines": pair, "objective": "grpo"}
    return values if model is None else values | {"model": model}


def _check_start(run: str, model: str | None) -> None:
    """Raise `ValueError` for an argument that is not a warm start, with those that exist."""
    from simlab.sweeps.start import model_of_start

    if model is not None and Path(run).is_file():
        return  # a file of any model
    try:
        model_of_start(run)
    except ValueError as error:
        raise ValueError(f"RUN must be a sweep directory or a warm start, got {run!r}: {error}") from error


def _read_sweep(folder: Path, arm: str | None) -> Mapping[str, object]:
    """Return the dotted fields of one run of a finished sweep."""
    from simlab.core.catalog import lookup
    from simlab.sweeps.result import load

    result = load(folder)
    runs = result.stored_runs()
    if arm is not None:
        lookup(dict.fromkeys(runs["arm"]), arm, "arm")
        runs = runs[runs["arm"] == arm]
    return result.fields(str(runs.iloc[0]["run"]))


def _without_policy(values: Mapping[str, object]) -> Mapping[str, object]:
    return {name: value for name, value in values.items() if not name.startswith("warm_start")}


def _load_policy(values: Mapping[str, object], params: Path | None):
    """Return config and recipe of the run, and the parameters to explain."""
    import tempfile

    from simlab.models.parameters import shapes_of
    from simlab.sweeps.config import recipe_of, run_config
    from simlab.sweeps.start import load_initial_params
    from simlab.training.checkpoints import load_tree

    config = run_config({}, values)
    recipe = recipe_of(config)
    if params is not None:
        return config, recipe, load_tree(params, shapes_of(recipe.model))
    with tempfile.TemporaryDirectory() as folder:
        policy = load_initial_params(config.warm_start, recipe.task, recipe.model, config.seed, Path(folder))
    return config, recipe, policy
