"""Measure a softmax in few bits on the paper's Gaussian logits and on the logits of a real model."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from experiments.measurements.softmax import real, sampling, statistics, tables
from experiments.measurements.softmax.statistics import mean_interval
from experiments.measurements.softmax.tables import PAPER_PLACEMENT
from experiments.papers.hacking import H1, H2, H3
from simlab.core.results import Results
from simlab.core.streams import stream
from simlab.studies.estimands import Frame
from simlab.studies.experiment import Experiment, ExperimentContext
from simlab.studies.records import Criterion, Measured, StoredRow
from simlab.studies.samples import StoredInterval


@dataclass(frozen=True)
class SoftmaxSizes:
    """Sizes of the measurement; `seeds` by the number of tokens per vector of logits.

    The first five seeds are those of the paper's table. A separate vector for every token needs a
    hundred million logits per seed.
    """

    seeds: Mapping[int, int]
    seeds_per_placement: int = 5
    seeds_per_sweep: int = 2
    seeds_per_spread: int = 10
    seeds_per_format: int = 5
    tokens: int = 50_000
    per_vector_of_formats: int = 10
    positions: int = 100
    per_position: int = 500


FULL = SoftmaxSizes(seeds={1: 20, 10: 50})
SMOKE = SoftmaxSizes(seeds={10: 5}, seeds_per_spread=2, tokens=10_000, positions=20)
FIRST_SEED = 1234


def run(run: ExperimentContext) -> None:
    size = SMOKE if run.smoke else FULL
    run.configure(**asdict(size), logit_std=sampling.STD, vocabulary=sampling.VOCABULARY)
    seeds = run.seeds(range(FIRST_SEED, FIRST_SEED + max(size.seeds.values())))
    frames = _gaussian_logits(run, size, seeds) | _sweep(run, size, seeds) | _real_logits(run, size, seeds)
    for name, frame in frames.items():
        run.table(name, frame)


def _gaussian_logits(run: ExperimentContext, size: SoftmaxSizes, seeds: list[int]) -> dict[str, pd.DataFrame]:
    """The paper's table and figure: ratios and levels of tokens drawn from Gaussian logits."""
    rows: dict[str, list[dict]] = {"ratios": [], "level_pairs": [], "histograms": []}
    for per_vector, count in size.seeds.items():
        pairs_by_seed: dict[int, np.ndarray] = {}
        with run.phase(f"gaussian, {per_vector} per vector"):
            tracked = run.track(seeds[:count], f"{per_vector} tokens per vector of logits")
            for index, seed in enumerate(tracked):
                wanted = _choose_settings(size, per_vector, index)
                pairs = tables.draw_pairs(seed, per_vector, size.tokens, wanted)
                label = {"per_vector": per_vector, "seed": seed}
                rows["ratios"] += [
                    label | {"placement": placement, "format": name} | tables.ratio_row(pair)
                    for (placement, name), pair in pairs.items()
                ]
                if index < size.seeds_per_format:
                    pairs_by_seed[seed] = pairs[PAPER_PLACEMENT, "bf16"]
                if index < size.seeds_per_format and per_vector == size.per_vector_of_formats:
                    rows["histograms"] += _histograms(pairs, seed)
            rows["level_pairs"] += [
                {"per_vector": per_vector} | row for row in statistics.compare_seeds(pairs_by_seed)
            ]
    with run.phase("inverse ratios"):
        inverse = [tables.inverse_row(seed) for seed in seeds]
    frames = {name: pd.DataFrame(each) for name, each in rows.items()} | {"inverse": pd.DataFrame(inverse)}
    bf16 = frames["ratios"][frames["ratios"]["format"] == "bf16"]
    return frames | {"fit": statistics.fit(bf16)}


def _choose_settings(size: SoftmaxSizes, per_vector: int, index: int) -> Callable[[str, str], bool]:
    """Return the settings that are drawn: the paper's for every seed, the others for the first few seeds."""

    def is_wanted(placement: str, name: str) -> bool:
        if placement == PAPER_PLACEMENT and name == "bf16":
            return True
        if name == "bf16":
            return index < size.seeds_per_placement
        return per_vector == size.per_vector_of_formats and index < size.seeds_per_format

    return is_wanted


def _histograms(pairs: dict[tuple[str, str], np.ndarray], seed: int) -> list[dict]:
    return [
        {"format": name, "seed": seed} | row
        for (placement, name), pair in pairs.items()
        if placement == PAPER_PLACEMENT
        for row in statistics.histograms(pair[1])
    ]


def _sweep(run: ExperimentContext, size: SoftmaxSizes, seeds: list[int]) -> dict[str, pd.DataFrame]:
    """Measure all formats, roundings and placements, and the spread against mantissa bits."""
    with run.phase("sweep"):
        few = seeds[: size.seeds_per_sweep]
        swept = tables.sweep_frame(*tables.gaussian_sweep(tables.SWEPT_FORMATS, few))
    with run.phase("spread"):
        spread = pd.DataFrame(tables.rho_std_rows(seeds[: size.seeds_per_spread]))
    return {"sweep": swept, "spread": spread}


def _real_logits(run: ExperimentContext, size: SoftmaxSizes, seeds: list[int]) -> dict[str, pd.DataFrame]:
    """Measure the logits of a language model and as many Gaussian vectors."""
    with run.phase("real"):
        taken = real.load(size.positions)
        key = stream(jax.random.key(seeds[0]), "real")
        labels, settings = tables.combine(tables.SWEPT_FORMATS)
        swept = tables.measure(jnp.asarray(taken.logits), jnp.asarray(taken.rest), settings)
        z = np.sort(np.asarray(sampling.logits(key, len(taken.logits))), -1)
        none = np.full(len(z), -np.inf, np.float32)
        sources = {
            "smollm2": real.Distributions.of(taken.logits, taken.rest, tables.BF16),
            "gaussian": real.Distributions.of(z, none, tables.BF16),
        }
        octaves = [{"source": name} | row for name, d in sources.items() for row in real.octave_rows(d)]
        discretization = [
            {"source": name} | real.discretization_row(d, seeds[0], size.per_position)
            for name, d in sources.items()
        ]
    return {
        "real": tables.sweep_frame(labels, [swept]),
        "real_positions": pd.DataFrame(real.position_rows(taken, sources["smollm2"])),
        "real_octaves": pd.DataFrame(octaves),
        "discretization": pd.DataFrame(discretization),
    }


CLAIMS = (H1, H2, H3)
Tables = Mapping[str, Frame]


def collect_evidence(results: Results) -> list[Measured]:
    """Return H1 to H3."""
    rows = measure_rows({name: results.table(name) for name in results.table_names})
    measured = []
    for claim in CLAIMS:
        trial = claim.trial("softmax")
        samples = tuple(_sample(criterion, rows) for criterion in trial.criteria)
        notes = [trial.note, write_note(claim.id, rows)]
        measured.append(Measured(trial, samples, " ".join(filter(None, notes))))
    return measured


def _sample(criterion: Criterion, rows: Mapping[str, StoredInterval]) -> StoredInterval:
    assert isinstance(criterion.estimand, StoredRow)
    row, reference = rows[criterion.estimand.id], criterion.estimand.reference
    low, measured, high = sorted((row.low, row.estimate, row.high))
    return StoredInterval(measured - reference, low - reference, high - reference)


def measure_rows(tables: Tables) -> dict[str, StoredInterval]:
    """Return the measured numbers by id: those of criteria, and those of `write_note`."""
    chosen = _paper_rows(tables)
    inverse = tables["inverse"]
    smallest = float(inverse["normalized_min"].min())
    return {
        **_table(tables),
        "levels": _interval((chosen["levels"] / chosen["levels_float32"]).to_numpy()),
        "heights": _heights(tables),
        "inverse": StoredInterval(
            float(inverse["normalized"].mean()), smallest, float(inverse["normalized"].max())
        ),
        "inverse_reported": _interval(inverse["reported_below_1"].to_numpy()),
        "inverse_sampled": _interval(chosen["inverse"].to_numpy()),
        **_real(tables),
    }


def write_note(claim: str, rows: Mapping[str, StoredInterval]) -> str:
    """Return what decides nothing and stands in the note of a claim; empty if there is nothing."""
    if claim not in NOTES:
        return ""
    id, statement = NOTES[claim]
    return f"Also: {statement} ({rows[id].estimate:.4g})"


NOTES = {
    H1.id: (
        "real_spread",
        "BF16 spreads a real model's ratio as it does Gaussian logits': std, SmolLM2 over Gaussian",
    ),
    H2.id: (
        "real_levels",
        "a real model's BF16 probabilities fall on few levels too: distinct sampled values over float32",
    ),
    H3.id: (
        "inverse_reported",
        "with rounded probabilities as the engine reports them, which do not sum to 1: fraction of vectors "
        "where E[1/rho] is below 1 (the bound is then the sum of the probabilities)",
    ),
}
"""Id of a claim -> id of a row and what it measures."""


def _interval(values: np.ndarray) -> StoredInterval:
    return StoredInterval(float(values.mean()), *mean_interval(values))


def _find_reading(tables: Tables) -> int:
    """Return the reading of the paper that the claims use: the fewest tokens per vector of logits."""
    return int(tables["ratios"]["per_vector"].min())


def _paper_rows(tables: Tables) -> Frame:
    ratios = tables["ratios"]
    return ratios[
        (ratios["placement"] == PAPER_PLACEMENT)
        & (ratios["format"] == "bf16")
        & (ratios["per_vector"] == _find_reading(tables))
    ]


def _table(tables: Tables) -> dict[str, StoredInterval]:
    fits = tables["fit"]
    chosen = fits[(fits["placement"] == PAPER_PLACEMENT) & (fits["per_vector"] == _find_reading(tables))]
    return {
        f"table_{row['column']}": StoredInterval(row["ours"], row["low"], row["high"])
        for row in chosen.to_dict("records")
    }


def _heights(tables: Tables) -> StoredInterval:
    """Return the total variation of two seeds over that of a random split."""
    pairs = tables["level_pairs"]
    rounded = pairs[(pairs["precision"] == "rounded") & (pairs["per_vector"] == _find_reading(tables))]
    return _interval((rounded["variation"] / rounded["noise"]).to_numpy())


def _real(tables: Tables) -> dict[str, StoredInterval]:
    each = tables["discretization"].set_index("source")
    gaussian = each.loc["gaussian", "std"]
    squares = tables["real_positions"]["std"].to_numpy() ** 2
    low, high = np.sqrt(mean_interval(squares)) / gaussian
    fraction = each["sampled_levels"] / each["sampled_levels_float32"]
    return {
        "real_spread": StoredInterval(float(each.loc["smollm2", "std"] / gaussian), float(low), float(high)),
        "real_levels": StoredInterval(
            float(fraction["smollm2"]), float(fraction.min()), float(fraction.max())
        ),
    }


EXPERIMENT = Experiment(
    name="softmax",
    question="What does a softmax in few bits do to the probabilities of tokens, and to their ratio?",
    decision_rule="The criteria of H1, H2 and H3.",
    run=run,
    minutes=3.0,
    claims=tuple(claim.id for claim in CLAIMS),
    kind="measurement",
    collect_evidence=collect_evidence,
)
