"""The causes of a mismatch: description, check, fix and signatures of each."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Cause:
    """A cause.

    - `title`: one line for tables.
    - `check`: an experiment that confirms or excludes it.
    - `fix`: what to change.
    - `signs`: names of `signatures`, the most telling first.
    """

    title: str
    check: str
    fix: str
    signs: tuple[str, ...]


CAUSES: dict[str, Cause] = {
    "rounding": Cause(
        "number formats and kernels: no fault",
        "run both engines in float32 on one batch: the mismatch must fall to about 1e-5 nats",
        "none needed; to reduce the mismatch: FP16 or an FP32 head in both engines, finer FP8 scales",
        ("level", "tail", "bias", "id_offset"),
    ),
    "weight_sync": Cause(
        "broken weight sync: the inference engine holds other weights",
        "compare a checksum of each tensor in both engines right after a sync; score a prompt in both. With "
        "4- or 8-bit weights, compare with the mismatch before the first update",
        "reload the inference engine; list the tensors that the sync skips (tied head, experts, norms)",
        ("level", "id_offset", "id_range", "growth", "step_fit", "neighbor_size", "bias"),
    ),
    "one_worker": Cause(
        "one inference worker has other weights or kernels",
        "log the worker of each sequence and compare their mean abs(log rho); compare checksums per worker",
        "restart the worker; make the sync wait for all of them",
        ("row_worker", "row_stride", "row_block", "row_class_effect", "row_two_kinds"),
    ),
    "staleness": Cause(
        "staleness: sequences were sampled some updates ago",
        "log the weight version of each sequence; the mismatch must grow with its age",
        "fewer updates per rollout, a lower bound on the age, or old log-probs from the sampling weights",
        ("age_z", "age_growth", "row_spread", "row_two_kinds"),
    ),
    "temperature": Cause(
        "the engines use different temperatures",
        "plot logit(pi_train) over logit(pi_infer): the slope is the ratio of the temperatures",
        "divide the training logits by the temperature, or report raw log-probs (vLLM logprobs_mode)",
        ("temperature", "temperature_spread", "tilt", "bias_above_0.5"),
    ),
    "support": Cause(
        "log-probs of a filtered distribution: top-p, top-k or min-p",
        "sample one batch at top_p=1, top_k=-1, min_p=0: the mean of rho must return to 1",
        "report raw log-probs (vLLM logprobs_mode=raw_logprobs), sample unfiltered, or replay the filter",
        ("certain", "mean_rho", "skew", "negative", "rms_above_0.9"),
    ),
    "log_base": Cause(
        "log-probs to another base than e",
        "divide one list by the other: the ratio is 0.693 or 1.443 (base 2), 0.434 or 2.303 (base 10)",
        "multiply the base-2 list by ln 2, the base-10 list by ln 10",
        ("log_factor", "log_factor_spread", "base_2", "base_10"),
    ),
    "token_shift": Cause(
        "the lists are shifted against each other by a token",
        "compare the two lists after moving one by 1 to 3 tokens",
        "align log-probs with their tokens: logits at position t score token t + 1",
        ("shift_gain", "shift"),
    ),
    "position": Cause(
        "positions: the mismatch jumps or grows with the token's index",
        "score one long response unpacked, with position ids from 0, and without prefix cache or chunks",
        "equal position ids, rope scaling and packing masks in both engines",
        ("index_jump", "index_trend", "index_block", "index_alternate", "second_half"),
    ),
    "start_of_response": Cause(
        "the begin of the response: the engines read different prompts",
        "compare the prompt's ids of both engines: BOS token, chat template, left padding",
        "pass token ids instead of text; apply the chat template once",
        ("first_token", "first_8", "first_32", "first_token_sign"),
    ),
    "end_of_sequence": Cause(
        "the end-of-sequence token: its probability differs",
        "compare both log-probs of the last token; list stop strings, min_tokens and end ids of both engines",
        "one end token in both engines; leave tokens that a stop string cut out of the loss",
        ("last_token", "last_token_sign", "last_is_0", "before_last", "last_8"),
    ),
    "retokenization": Cause(
        "retokenization: the trainer scores other ids than were sampled",
        "decode and encode the sampled ids: every sequence that changes is affected",
        "pass the sampled ids to the trainer, never text",
        ("outliers_negative", "outliers_together_1", "infer_sure_train_not", "shifted_tails", "outliers"),
    ),
    "dropout": Cause(
        "dropout is active in the trainer",
        "score one batch twice in the trainer: the log-probs must be equal",
        "model.eval() for old log-probs, and dropout 0 in the config (also of LoRA adapters)",
        ("level", "mean_rho_excess", "skew", "tail", "bias"),
    ),
    "micro_batch": Cause(
        "micro-batches: the trainer disagrees with itself",
        "score one batch with two micro-batch sizes: log r before the first update must be 0",
        "batch-invariant kernels, or the same micro-batches and padding for old log-probs and update",
        ("ratio_before_update",),
    ),
    "routing": Cause(
        "router: some tokens go to other experts",
        "log the routed experts of both engines; compare the mismatch of tokens with equal experts",
        "routing replay (verl router_replay.mode=R3), or the router in float32",
        ("flips_share", "flips_ratio", "flips", "tail", "outliers"),
    ),
    "identical_samples": Cause(
        "identical samples: responses of a group repeat each other",
        "count different responses per prompt; compare with the probability of the response",
        "a different seed per sample; no cached or greedy responses",
        ("repeats", "repeats_excess"),
    ),
    "frozen_old": Cause(
        "the old log-probs are recomputed: the PPO ratio is always 1",
        "the PPO ratio must leave 1 after the first update of a rollout",
        "keep the log-probs of theta_old over all updates of a rollout",
        ("ratio_one_after_update", "ratio_copies_age"),
    ),
    "double_ratio": Cause(
        "the IS ratio counts twice: bypass mode and an IS weight together",
        "with bypass mode the PPO ratio is the IS ratio already: the weight must be 1",
        "switch the IS weight off in bypass mode, or compute old log-probs in the trainer",
        ("weight_twice", "copied"),
    ),
    "confident_disagreement": Cause(
        "a few tokens at which both engines are confident and disagree",
        "score these tokens again, alone and without cache: wrong cache pages or races vanish",
        "disable prefix caching, CUDA graphs or the overlapping sync in turn; update the engine",
        ("infer_sure_train_not", "outliers_nats", "outliers", "outliers_together_1", "outliers_together_8"),
    ),
    "sub_ulp_updates": Cause(
        "updates smaller than half a unit in the last place: weights do not move",
        "compare the weights before and after a step in the format that the engine holds",
        "float32 master weights, stochastic rounding, or a higher learning rate",
        (),
    ),
    "unknown": Cause(
        "none of these: the log is unlike all simulated ones",
        "read the figure (--figure): which panel differs from a healthy run?",
        "check that both columns are log-probabilities, in nats, of the same tokens under the same prompt",
        ("level", "bias", "negative", "tail", "copied"),
    ),
}

# Signature -> words, and how its value is shown: exp and 10** turn logs into factors.
WORDS: dict[str, tuple[str, str]] = {
    "level": ("RMS log rho at probability 0.1 to 0.9, nats", "power"),
    "tail": ("width of the 2-98% range of log rho over that of 25-75%", "exp"),
    "bias": ("mean log rho over its RMS", ""),
    "skew": ("asymmetry of the 2% and 98% quantiles of log rho", ""),
    "negative": ("fraction of log rho below 0", ""),
    "copied": ("fraction of tokens with equal log-probs", ""),
    "mean_rho": ("(mean rho - 1) over the std of rho", ""),
    "mean_rho_excess": ("mean rho - 1", ""),
    "tilt": ("correlation of log rho and logp_infer", ""),
    "neighbor_size": ("correlation of the mismatch with that of the next token", ""),
    "certain": ("fraction of tokens with pi_infer = 1 exactly and pi_train below 0.98", "power"),
    "bias_above_0.5": ("mean log rho over its RMS at probability 0.5 to 0.9", ""),
    "rms_above_0.9": ("RMS log rho at probability 0.9 to 0.99 over that at 0.1 to 0.9", "power"),
    "outliers": ("fraction of tokens above six times the typical mismatch", "power"),
    "outliers_negative": ("fraction of these outliers that the trainer finds less probable", ""),
    "outliers_nats": ("median size of the outliers, nats", "power"),
    "outliers_together_1": ("outliers next to an outlier, over chance", "exp"),
    "outliers_together_8": ("outliers 8 tokens from an outlier, over chance", "exp"),
    "infer_sure_train_not": ("fraction of tokens with pi_infer above 0.9 and pi_train below 0.3", "power"),
    "temperature": ("slope of logit(pi_train) over logit(pi_infer)", ""),
    "temperature_spread": ("interquartile range of that slope", ""),
    "log_factor": ("median of logp_infer / logp_train", "exp"),
    "log_factor_spread": ("interquartile range of its log", ""),
    "base_2": ("fraction of tokens whose ratio fits base 2 within 5%", ""),
    "base_10": ("fraction of tokens whose ratio fits base 10 within 5%", ""),
    "first_token": ("mismatch of the first token over that of the others", "exp"),
    "first_8": ("mismatch of the first 8 tokens over that of the others", "exp"),
    "first_32": ("mismatch of the first 32 tokens over that of the others", "exp"),
    "first_token_sign": ("mean signed mismatch of the first token, typical sizes", ""),
    "last_token": ("mismatch of the last token over that of the others", "exp"),
    "before_last": ("mismatch of the 3 tokens before the last over that of the others", "exp"),
    "last_is_0": ("fraction of last tokens with logp_infer = 0 exactly", ""),
    "last_8": ("mismatch of the last 8 tokens over that of the others", "exp"),
    "last_token_sign": ("mean signed mismatch of the last token, typical sizes", ""),
    "second_half": ("mismatch of the second half over that of the first", "exp"),
    "index_jump": ("largest factor between the tokens after an index and those before", "exp"),
    "index_trend": ("trend of the log mismatch over the index", ""),
    "index_block": ("mismatch at the first token of a block over that of the others", "exp"),
    "shift_gain": ("mean abs(log rho) over that after the best shift", "exp"),
    "shift": ("best shift, tokens", ""),
    "shifted_tails": ("fraction of sequences whose second half agrees better when shifted", ""),
    "id_offset": ("correlation of the mean log rho per token id between two halves of the log", ""),
    "id_range": ("mismatch of the worst sixteenth of the ids over that of the others", "exp"),
    "row_worker": ("t statistic of the worst worker", "expm1"),
    "row_stride": ("t statistic of the worst every-k-th-row class", "expm1"),
    "row_block": ("t statistic of the worst block of rows", "expm1"),
    "row_class_effect": ("mismatch of that class over that of the other rows", "exp"),
    "row_two_kinds": ("variance of the sequences' mismatch that two kinds explain", ""),
    "row_spread": ("spread of the sequences' mismatch over chance", "exp"),
    "repeats": ("fraction of sequences that repeat another of their group", ""),
    "repeats_excess": ("repeats over those expected from their probability", "power"),
    "index_alternate": ("mismatch of every second chunk over that of the others, absolute log", ""),
    "step_fit": ("variance of the sequences' mismatch that the step explains", ""),
    "growth": ("mismatch of the last third of the steps over that of the first", "exp"),
    "age_z": ("rank correlation of age and mismatch, z", "signed_expm1"),
    "age_growth": ("mismatch of the oldest sequences over that of the freshest", "exp"),
    "ratio_before_update": ("RMS log r before the first update, nats", "power"),
    "ratio_one_after_update": ("fraction of tokens with r = 1 after an update", ""),
    "ratio_copies_age": ("fraction of tokens with r = 1 although the weights are newer", ""),
    "weight_twice": ("IS weight equals the PPO ratio (1: yes)", ""),
    "flips": ("fraction of tokens with other experts", "power"),
    "flips_share": ("fraction of the mean squared log rho from tokens with other experts", ""),
    "flips_ratio": ("RMS log rho of tokens with other experts over that of the others", "exp"),
}
PERCENTAGES = frozenset(name for name, (words, _) in WORDS.items() if words.startswith("fraction"))
