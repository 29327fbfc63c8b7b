"""Random rollout batches on which the frameworks' losses and ours are compared.

Numpy alone, because the scripts that import this run in environments without JAX.
"""

import numpy as np

GROUP_SIZE = 4
GROUPS = 4
TOKENS = 20

# A quantity this close to a threshold (relative to its own size) could fall on either side of it in
# float32, depending on the order of summation; such batches are drawn again.
MARGIN = 2e-5

# Every threshold that a variant of the golden scripts compares with, by the quantity compared.
_LOGS = np.log([0.5, 0.8, 0.9, 1.1, 1.2, 1.28, 2.0, 3.0, 4.0, 5.0])
_RATIO = (*_LOGS, *-_LOGS)
THRESHOLDS = {
    "log_r": (*_RATIO, -20.0, 20.0, -0.4, 0.4, -0.5, 0.5),
    "mean_log_r": (*_RATIO, *np.log([1 - 3e-4, 1 + 4e-4]), 10.0, 20.0, -0.05),
    "log_rho": (*_RATIO, -20.0, 20.0),
    "mean_log_rho": _RATIO,
    "sum_log_rho": (*_RATIO, -20.0, 20.0),
    "k": (0.01, 0.02, 0.05, 0.1, 0.5),
    "probability_gap": (-0.2, 0.2),
    "binary_kl": (0.05,),
}


def random_batch(rng: np.random.Generator, far: float = 0.0, empty: bool = False) -> dict[str, np.ndarray]:
    """Draw one batch of `GROUPS * GROUP_SIZE` responses, away from every threshold.

    Log-ratios are a few tenths; with `far`, some responses have a fifth of them anywhere in +-far, and some
    nothing else. `empty` makes one response of length 0.
    """
    while True:
        batch = _draw(rng, far, empty)
        if not _is_near_threshold(batch):
            return batch


def _draw(rng: np.random.Generator, far: float, empty: bool) -> dict[str, np.ndarray]:
    rows = GROUPS * GROUP_SIZE
    lengths = rng.integers(1, TOKENS + 1, rows)
    lengths[:2] = TOKENS, 1
    if empty:
        lengths[GROUP_SIZE + 1] = 0
    logp_train = -rng.uniform(0.05, 6.0, (rows, TOKENS))
    # Half of the responses hardly move, so that both sides of the narrow sequence clips are populated.
    log_r = rng.normal(0, 0.25, (rows, TOKENS)) * rng.choice([1.0, 1e-3], (rows, 1))
    log_rho = rng.normal(0, 0.5, (rows, TOKENS)) * rng.choice([1.0, 0.4, 0.1], (rows, 1))
    for log_ratio in (log_r, log_rho) if far else ():
        chosen = rng.random((rows, TOKENS)) < rng.choice([0.0, 0.2, 1.0], (rows, 1))
        log_ratio[chosen] = rng.uniform(-far, far, chosen.sum())
    # Low enough for all three to be log-probabilities.
    logp_train = logp_train - np.maximum(log_r, 0) - np.maximum(-log_rho, 0)
    columns = {"logp": logp_train + log_r, "logp_train": logp_train, "logp_infer": logp_train - log_rho}
    # Every third number in the padding is far away: it must not matter.
    mask = np.arange(TOKENS)[None] < lengths[:, None]
    garbage = np.where(rng.random((rows, TOKENS)) < 1 / 3, -30.0, 0.0)
    batch = {name: np.where(mask, values, values + garbage) for name, values in columns.items()}
    q = np.exp(batch["logp_train"])
    batch["sum_squared_probabilities"] = q**2 + (1 - q) ** 2 * rng.uniform(0.02, 1.0, (rows, TOKENS))
    batch |= {"mask": mask, "rewards": _rewards(rng), "values": rng.normal(0.5, 0.5, (rows, TOKENS))}
    return {name: values.astype(np.float32) for name, values in batch.items()}


def _rewards(rng: np.random.Generator) -> np.ndarray:
    """One group each of: mixed 0/1, real numbers, one winner, all equal."""
    mixed = rng.permutation([1.0, 1.0, 0.0, 0.0])
    winner = rng.permutation([1.0, 0.0, 0.0, 0.0])
    return np.concatenate([mixed, rng.normal(0, 1, GROUP_SIZE), winner, np.ones(GROUP_SIZE)])


def _is_near_threshold(batch: dict[str, np.ndarray]) -> bool:
    mask = batch["mask"].astype(bool)
    wide = {name: values.astype(np.float64) for name, values in batch.items()}
    log_r = np.where(mask, wide["logp"] - wide["logp_train"], 0.0)
    log_rho = np.where(mask, wide["logp_train"] - wide["logp_infer"], 0.0)
    length = np.maximum(mask.sum(-1), 1)
    clamped = np.clip(log_rho, -20, 20)
    k2, k3 = clamped**2 / 2, np.exp(clamped) - 1 - clamped
    p, q = np.exp(wide["logp"][mask]), np.exp(wide["logp_train"][mask])
    binary_kl = q * -log_r[mask] + (1 - q) * np.log((1 - q + 1e-8) / (1 - p + 1e-8))
    # The sums that bound the float32 error of a cancelling one.
    scale = np.abs(log_rho).sum(-1)
    quantities = [
        ("log_r", log_r[mask], 1.0),
        ("log_rho", log_rho[mask], 1.0),
        ("probability_gap", p - q, 1.0),
        ("binary_kl", binary_kl, 1.0),
        ("mean_log_r", log_r.sum(-1) / length, np.abs(log_r).sum(-1) / length),
        ("mean_log_rho", clamped.sum(-1) / length, scale / length),
        ("sum_log_rho", log_rho.sum(-1), scale),
        ("sum_log_rho", clamped.sum(-1), scale),
        *(("k", k[mask], 1.0) for k in (k2, k3)),
        *(("k", k.sum(-1), k.sum(-1)) for k in (k2, k3)),
        *(("k", k.sum(-1) / length, k.sum(-1) / length) for k in (k2, k3)),
    ]
    return any(
        bool((np.abs(values - threshold) < MARGIN * np.maximum(scale, abs(threshold))).any())
        for name, values, scale in quantities
        for threshold in THRESHOLDS[name]
    )
