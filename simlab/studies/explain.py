"""Tokens, sites and weights that move the mismatch of a policy most, and an autopsy of its worst token."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from simlab.core.json_value import Json
from simlab.core.streams import stream
from simlab.engines import Engine, EnginePair, store
from simlab.metrics import PROBABILITY_EDGES
from simlab.models.config import TransformerConfig
from simlab.models.kv_cache import empty_cache
from simlab.models.parameters import Params
from simlab.models.transformer import extend, prepare, read_logits, response_logps, token_logps
from simlab.rollout import Trajectory
from simlab.studies.attribution import between, differing, group_sites, shapley_rows, subsets
from simlab.tasks import Task
from simlab.tasks.vocabulary import decode
from simlab.training.recipe import SamplingRecipe
from simlab.training.step import sample_responses

Row = dict[str, Json]
Track = Callable[[Iterable, str, int], Iterable]


@dataclass(frozen=True)
class ExplainTarget:
    """A policy with its engine pair, on the prompts of a task that it was not trained on."""

    params: Params
    model: TransformerConfig
    task: Task
    pair: EnginePair
    prompts: int = 8
    group_size: int = 4
    seed: int = 0

    @cached_property
    def sampled(self) -> Trajectory:
        """Responses that the inference engine samples at temperature 1."""
        key = stream(jax.random.key(self.seed), "explain")
        return jax.jit(self._generate)(self.params, self.pair.infer, key)

    def _generate(self, params: Params, engine: Engine, key: Array) -> Trajectory:
        sampling = SamplingRecipe(
            engine=engine,
            task=self.task,
            model=self.model,
            prompts_per_step=self.prompts,
            group_size=self.group_size,
        )
        prompts = self.task.prompts(stream(key, "prompts"), self.prompts, "held_out")
        return sample_responses(sampling, params, key, prompts)

    def score(self, engine: Engine, params: Params | None = None) -> np.ndarray:
        """Return log-probabilities [B, T] of the sampled tokens, zero at padding.

        Operation by operation: engines between two others share operations, but no compiled function.
        """
        taken = self.sampled
        replayed = taken.routed_experts if self.pair.replay == "R3" else None
        scored = self.params if params is None else params
        scores = response_logps(scored, self.model, engine, taken.prompts, taken.responses, replayed)
        return np.where(taken.mask, np.asarray(scores.logp, float), 0.0)


def explain(subject: ExplainTarget, track: Track, top: int = 8) -> dict[str, list[Row]]:
    """Score what the inference engine sampled under engines between the two of the pair, and compare.

    Returns tables of rows, in the order in which they are worth reading: `size`, `tokens` (the `top` worst),
    `positions`, `probabilities`, `groups`, `sites`, `weights`, `autopsy` of the worst token. `track` iterates
    with progress. Raises `ValueError` where the two engines do not differ, at any site or on any token.
    """
    train, infer = subject.pair.train, subject.pair.infer
    sites = differing(train, infer, subject.model)
    if not sites:
        raise ValueError(
            "the two engines of the pair are the same at every site: there is nothing to explain"
        )
    groups = group_sites(sites)
    base = subject.score(train)
    known: dict[frozenset[str], np.ndarray] = {}

    def log_rho(changed: Iterable[str]) -> np.ndarray:
        key = frozenset(changed)
        if key not in known:
            known[key] = base - subject.score(between(train, infer, sorted(key)))
        return known[key]

    total = log_rho(sites)
    if not total.any():
        raise ValueError("the two engines give every sampled token bitwise the same probability")
    sequence, position = np.unravel_index(np.argmax(np.abs(total)), total.shape)
    worst = int(sequence), int(position)
    for chosen in track(subsets(list(groups)), "groups of sites", 2 ** len(groups)):
        log_rho(_members(groups, chosen))
    for site in track(sites, "sites", len(sites)):
        log_rho([site])
    return {
        "size": _size(subject, base, total),
        "tokens": _tokens(subject, base, total, top),
        "positions": _positions(subject, total),
        "probabilities": _probabilities(subject, base, total),
        "groups": _groups(groups, log_rho),
        "sites": [{"site": site, **_alone(log_rho([site]), total, worst)} for site in sites],
        "weights": _weights(subject, base, total, worst, track),
        "autopsy": _autopsy(subject, worst),
    }


def _members(groups: dict[str, list[str]], chosen: Iterable[str]) -> list[str]:
    return [site for group in chosen for site in groups[group]]


def _fraction(log_rho: np.ndarray, total: np.ndarray) -> float:
    return float((log_rho**2).sum() / (total**2).sum())


def _rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(values**2)))


def _size(subject: ExplainTarget, base: np.ndarray, total: np.ndarray) -> list[Row]:
    """Return the mismatch, and the difference between decoding and scoring with the same engine."""
    mask = np.asarray(subject.sampled.mask)
    decoded = np.where(mask, np.asarray(subject.sampled.logp_infer, float), 0.0)
    return [
        {
            "tokens": int(mask.sum()),
            "reward": float(np.mean(np.asarray(subject.sampled.rewards))),
            "std_rho": float(np.exp(total[mask]).std()),
            "rms_log_rho": _rms(total[mask]),
            "rms_decoding_minus_scoring": _rms((decoded - base + total)[mask]),
        }
    ]


def _tokens(subject: ExplainTarget, base: np.ndarray, total: np.ndarray, top: int) -> list[Row]:
    """Return the tokens with the largest |log rho|."""
    taken, rows = subject.sampled, []
    for flat in np.argsort(-np.abs(total), axis=None)[:top]:
        sequence, position = (int(each) for each in np.unravel_index(flat, total.shape))
        text = decode(np.asarray(taken.responses)[sequence])
        rows.append(
            {
                "prompt": decode(np.asarray(taken.prompts)[sequence]),
                "response": f"{text[:position]}[{text[position]}]{text[position + 1 :]}".rstrip("_"),
                "position": position,
                "pi_train": float(np.exp(base[sequence, position])),
                "pi_infer": float(np.exp(base[sequence, position] - total[sequence, position])),
                "log_rho": float(total[sequence, position]),
                "share": float(total[sequence, position] ** 2 / (total**2).sum()),
            }
        )
    return rows


def _positions(subject: ExplainTarget, total: np.ndarray) -> list[Row]:
    """Return the RMS log rho by position in the response."""
    mask = np.asarray(subject.sampled.mask)
    return [
        {
            "position": position,
            "tokens": int(mask[:, position].sum()),
            "rms_log_rho": _rms(total[mask[:, position], position]),
            "share": _fraction(total[:, position], total),
        }
        for position in range(total.shape[1])
        if mask[:, position].any()
    ]


def _probabilities(subject: ExplainTarget, base: np.ndarray, total: np.ndarray) -> list[Row]:
    """Return mean rho and RMS log rho by pi_train."""
    mask, rows = np.asarray(subject.sampled.mask), []
    bins = np.searchsorted(PROBABILITY_EDGES[1:-1], np.exp(base), side="right")
    for number, low in enumerate(PROBABILITY_EDGES[:-1]):
        chosen = mask & (bins == number)
        if chosen.any():
            rows.append(
                {
                    "pi_train": f"{low:g} to {PROBABILITY_EDGES[number + 1]:g}",
                    "tokens": int(chosen.sum()),
                    "mean_rho": float(np.exp(total[chosen]).mean()),
                    "rms_log_rho": _rms(total[chosen]),
                    "share": _fraction(total[chosen], total),
                }
            )
    return rows


def _groups(groups: dict[str, list[str]], log_rho: Callable) -> list[Row]:
    """Return shares of the mean squared log rho: alone, missing from all, and Shapley's (these sum to 1)."""
    shares = shapley_rows(
        lambda chosen: (log_rho(_members(groups, chosen)) ** 2).sum(),
        list(groups),
        lambda part, total: {"shapley": float(part / total)},
    )
    rows = [{"group": group, **row, "sites": groups[group]} for group, row in shares.items()]
    return sorted(rows, key=lambda row: -row["shapley"])


def _alone(moved: np.ndarray, total: np.ndarray, worst: tuple[int, int]) -> Row:
    return {"alone": _fraction(moved, total), "worst_token_log_rho": float(moved[worst])}


def _weights(
    subject: ExplainTarget, base: np.ndarray, total: np.ndarray, worst: tuple[int, int], track: Track
) -> list[Row]:
    """Test each matrix alone as the inference engine holds it, with everything else as in training."""
    engine = subject.pair.infer
    matrices = [(name, None) for name in ("embedding", "lm_head") if name in subject.params]
    matrices += [
        (name, number)
        for number, layer in enumerate(subject.params["layers"])
        for name, matrix in layer.items()
        if matrix.ndim > 1
    ]
    rows = []
    for name, number in track(matrices, "weights", len(matrices)):
        held = _with_one(
            subject.params, name, number, lambda matrix, name=name: _round_matrix(matrix, name, engine)
        )
        moved = base - subject.score(subject.pair.train, held)
        if moved.any():
            weight = name if number is None else f"layer {number} {name}"
            rows.append({"weight": weight, **_alone(moved, total, worst)})
    return sorted(rows, key=lambda row: -row["alone"])


def _with_one(params: Params, name: str, number: int | None, change: Callable[[Array], Array]) -> Params:
    if number is None:
        return {**params, name: change(params[name])}
    layers = list(params["layers"])
    layers[number] = {**layers[number], name: change(layers[number][name])}
    return {**params, "layers": type(params["layers"])(layers)}


def _round_matrix(matrix: Array, name: str, engine: Engine) -> Array:
    """Return a matrix (or one per expert) rounded to the site of its product."""
    products = {"router": engine.router, "lm_head": engine.lm_head}
    site = engine.elementwise if name == "embedding" else products.get(name, engine.projection).weights
    return jax.vmap(lambda w: store(w, site))(matrix) if matrix.ndim == 3 else store(matrix, site)


def _autopsy(subject: ExplainTarget, worst: tuple[int, int]) -> list[Row]:
    """Follow the worst token through all sites under both engines, on the same tokens before it.

    Norms and relative error of what each site of each layer stores for the token (of an MoE with the experts,
    where they differ; keys and values are its own), of the logits less their mean, then the probabilities of
    the sampled token and of the likeliest ones.
    """
    sequence, position = worst
    taken = subject.sampled
    response = taken.responses[sequence, :position]
    tokens = jnp.concatenate([taken.prompts[sequence], response])[None]
    (train, experts), (infer, others) = (
        _states(subject, engine, tokens) for engine in (subject.pair.train, subject.pair.infer)
    )
    rows = [
        {
            "site": name + _describe_flips(experts.get(name), others.get(name)),
            "train": float(np.linalg.norm(expected)),
            "infer": float(np.linalg.norm(infer[name])),
            "relative_error": _relative_error(infer[name], expected),
        }
        for name, expected in train.items()
    ]
    sampled = int(taken.responses[sequence, position])
    pi, mu = (
        np.exp(np.asarray(token_logps(jnp.asarray(states["logits"], jnp.float32)[None], engine)[0], float))
        for engine, states in ((subject.pair.train, train), (subject.pair.infer, infer))
    )
    for token in dict.fromkeys((sampled, int(pi.argmax()), int(mu.argmax()))):
        rows.append(
            {
                "site": f"probability of {decode(np.array([token]))}",
                "train": float(pi[token]),
                "infer": float(mu[token]),
                "relative_error": float(abs(mu[token] / pi[token] - 1)),
            }
        )
    return rows


def _relative_error(value: np.ndarray, expected: np.ndarray) -> float:
    apart, size = np.linalg.norm(value - expected), np.linalg.norm(expected)
    return float(apart / size) if size else float(np.inf if apart else 0.0)


def _describe_flips(experts: list[int] | None, others: list[int] | None) -> str:
    return "" if experts == others else f", experts {experts} in training, {others} in inference"


def _states(
    subject: ExplainTarget, engine: Engine, tokens: Array
) -> tuple[dict[str, np.ndarray], dict[str, list[int]]]:
    """Return what each site stores for the last of `tokens [1, T]`, and the experts chosen, by site."""
    weights = prepare(subject.params, subject.model, engine)
    caches = empty_cache(subject.model, *tokens.shape)
    forward = extend(weights, subject.model, engine, caches, tokens, 0)
    seen = forward.intermediates
    named = {"embedding": seen.embedding}
    for number, layer in enumerate(seen.layers):
        named |= {f"layer {number} {site}": value for site, value in layer.items()}
    named |= {"last norm": seen.last_norm, "logits": read_logits(weights, engine, forward.hidden)}
    states = {site: np.asarray(value[0, -1], float).reshape(-1) for site, value in named.items()}
    states["logits"] -= states["logits"].mean()
    picked = [] if forward.routed_experts is None else np.asarray(forward.routed_experts)[0, -1]
    experts = {f"layer {n} experts": sorted(layer.tolist()) for n, layer in enumerate(picked)}
    return states, experts
