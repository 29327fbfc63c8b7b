"""Next-token logits of SmolLM2-135M over a text: `experiments/data/smollm2_logits.npz`.

The file holds the largest 2,047 logits of each position and the logsumexp of the others. That remainder is
one bucket: it enters the normalizer in float32 under every engine, and is never rounded or sampled. It holds
0.8% of the probability on average. `full_std` in the file is the std of rho over the complete vocabulary, and
gives the error of the bucket. `scripts/smollm2_logits.py` writes the file.
"""

from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from numpy import ndarray

from experiments.measurements.softmax import theory
from experiments.measurements.softmax.sampling import EXACT, Setting, draw_pairs, probabilities
from experiments.measurements.softmax.statistics import count_levels
from simlab.core.streams import stream

FILE = Path(__file__).parents[2] / "data" / "smollm2_logits.npz"


@dataclass(frozen=True)
class RealLogits:
    """Logits [n, V] float32, ascending; `rest` [n] float32; `full_std` [n] float64."""

    logits: np.ndarray
    rest: np.ndarray
    full_std: np.ndarray


def load(positions: int | None = None) -> RealLogits:
    """Return the first `positions` rows of the file, all of them by default."""
    with np.load(FILE) as file:
        return RealLogits(
            np.ascontiguousarray(file["logits"][:positions, ::-1]),
            file["rest"][:positions],
            file["full_std"][:positions],
        )


@dataclass(frozen=True)
class Distributions:
    """Logits [n, V] and both probabilities of them, float64; `train` sums to 1 with the remainder."""

    logits: ndarray
    train: ndarray
    infer: ndarray

    @staticmethod
    def of(logits: ndarray, rest: ndarray, chosen: Setting) -> "Distributions":
        """Compute both probabilities as the engines do."""
        train, infer = jax.jit(lambda z, r: (probabilities(z, r, EXACT), probabilities(z, r, chosen)))(
            logits, rest
        )
        return Distributions(*(np.asarray(x, float) for x in (logits, train, infer)))

    @property
    def weight(self) -> ndarray:
        """Probability [n, V] with which a sampler draws each token of each distribution."""
        return self.infer / self.infer.sum(-1, keepdims=True)

    @property
    def rho(self) -> ndarray:
        """p_train / p_infer [n, V]; 1 where p_infer is 0 and the token is never drawn."""
        return np.where(self.infer > 0, self.train / np.where(self.infer > 0, self.infer, 1), 1)

    def std(self) -> ndarray:
        """Standard deviation of rho under p_infer, for each distribution [n]."""
        mean = np.sum(self.weight * self.rho, -1, keepdims=True)
        return np.sqrt(np.sum(self.weight * (self.rho - mean) ** 2, -1))


def position_rows(real: RealLogits, both: Distributions) -> list[dict[str, float]]:
    """Return std of rho, its prediction and its value over the full vocabulary, for each position."""
    rows = []
    for i, std in enumerate(both.std()):
        logit_term, fraction = theory.empirical_shares(both.logits[i : i + 1], both.train[i : i + 1])
        rows.append(
            {
                "position": i,
                "largest_logit": both.logits[i].max(),
                "largest_probability": both.train[i].max(),
                "std": std,
                "theory": float(theory.rho_std(7, logit_term, fraction)),
                "std_full_vocabulary": real.full_std[i],
                "remainder": 1 - both.train[i].sum(),
            }
        )
    return rows


def octave_rows(both: Distributions) -> list[dict[str, float]]:
    """Return the std of rho, measured and predicted, by octave of p_train, and the mass in each octave."""
    variance = theory.token_variance(both.logits, both.train, mantissa_bits=7)
    octave = np.floor(np.log2(np.where(both.train > 0, both.train, 1)))
    rows = []
    for k in np.unique(octave):
        weight = np.where(octave == k, both.weight, 0)
        mass = weight.sum()
        if mass > 0:
            mean = np.sum(weight * both.rho) / mass
            rows.append(
                {
                    "octave": int(k),
                    "mass": mass / len(both.train),
                    "mean": mean,
                    "std": float(np.sqrt(np.sum(weight * (both.rho - mean) ** 2) / mass)),
                    "theory": float(np.sqrt(np.sum(weight * variance) / mass)),
                }
            )
    return rows


def discretization_row(both: Distributions, seed: int, per_vector: int) -> dict[str, float]:
    """Return numbers of levels: in one distribution, in a sample of all, and their distances."""
    shared = [np.unique(row[row > 0]) for row in both.infer]
    gaps = np.concatenate([np.diff(np.log(levels[levels > 2.0**-20])) for levels in shared])
    u = jax.random.uniform(stream(jax.random.key(seed), "real tokens"), (len(both.train), per_vector))
    drawn = jax.jit(draw_pairs)(jnp.float32(both.train), jnp.float32(both.infer), u)
    exact, rounded = (count_levels(np.asarray(p).ravel()) for p in drawn)
    return {
        "levels_per_distribution": float(np.mean([len(levels) for levels in shared])),
        "median_gap": float(np.median(gaps)),
        "sampled_levels": rounded[0],
        "sampled_levels_float32": exact[0],
        "effective_levels": rounded[1],
        "effective_levels_float32": exact[1],
        "std": float(np.sqrt(np.mean(both.std() ** 2))),
        "mean_inverse": float(np.mean(np.sum(both.weight / both.rho, -1))),
    }
