"""The findings of README.md, a line each, from stored results."""

from collections.abc import Mapping
from functools import cache
from math import exp, isfinite
from typing import Any

import numpy as np

from experiments.arms.chains import EXACT, ICEPOP, NEAREST_BITS, TIS
from experiments.arms.moe import R3
from experiments.arms.settings import on_chains, with_moe
from experiments.papers import cancel, vexact
from experiments.studies.leaderboard import RECENT
from scripts.tables import load_stored
from scripts.verdict_tables import find_criterion, find_row
from simlab.studies.arms import Arm
from simlab.studies.board import Row
from simlab.studies.contrasts import minus
from simlab.studies.estimands import HELD_OUT_REWARD, MISMATCH, Views
from simlab.studies.loading import load_claims
from simlab.studies.remedy_ranking import Leaderboard, Recovered, read_leaderboard
from simlab.studies.verdicts import CriterionEvidence

RHO_STD, LENGTH = 0.1, 8
MOE_BOARD = "leaderboard_experts"
PLACEMENT = "logits-probs"
"""The rounding placement that fits *hacking* Tab. 2."""
REMEDIES = {"N8": "IcePop", "N6": "IPO", "N7": "KPop"}
"""Claims of `remedies` and `remedies_repeated` that 24 initial policies have tested."""


def findings() -> str:
    """Return the findings of the first screen, a bullet each."""
    token, sequence = remaining_bias("token TIS"), remaining_bias("sequence TIS")
    fits = load_stored("softmax").table("fit")
    columns = fits[(fits["placement"] == PLACEMENT) & (fits["per_vector"] == 1)]["inside"]
    agreement = load_stored("real_rl").table("agreement")["agrees"]
    policies = min(each.policies for each in recovered_shares("leaderboard"))
    level = max(each.level for each in recovered_shares("leaderboard"))
    lines = (
        "**Removing the mismatch recovers most of the lost reward, token TIS a part.** "
        "Of the held-out reward that truncation costs, truncating identically in both engines recovers "
        f"{recovered_share(on_chains(EXACT))}, token TIS {recovered_share(on_chains(TIS))} "
        f"({policies} initial policies, {level:.1%} intervals, corrected for the remedies and the interim "
        f"analyses). {lead_over_tis()} {repeated_tis()} If the sums are exact as well, the engines are "
        f"bitwise identical: {identical_engines()}. For an MoE: "
        f"identical truncation {recovered_share(with_moe(EXACT), MOE_BOARD)}, "
        f"token TIS {recovered_share(with_moe(TIS), MOE_BOARD)}, "
        f"routing replay R3 {recovered_share(with_moe(R3), MOE_BOARD)}.",
        recent_remedies(),
        bypass(),
        larger_noise(),
        growing_mismatch(),
        half_precision(),
        group_transform(),
        "**A published table and a published error.** "
        f"BF16 softmax reproduces {columns.sum()} of {len(columns)} ratio columns of *hacking* Tab. 2; "
        "its Eq. 10 gives 1/T of the true objective gap for responses of T > 1 tokens.",
        "**The model of Hopper's tensor cores is bit-exact.** "
        f"It reproduces {gpu_products()} (64 to 4096 terms, `simlab run real_card`).",
        "Exploratory, not confirmed on fresh policies: in exact enumeration at "
        f"std(rho) = {RHO_STD} and {LENGTH} tokens, token TIS and MIS leave {token} of the gradient bias, "
        f"sequence TIS {sequence}.",
        f"Exploratory, one run per arm: {agreement.sum()} of {len(agreement)} quantities of RL on vLLM "
        "(BF16, FP8 cache, CPU) lie in the 95% prediction interval of the emulated runs.",
    )
    return "\n" + "\n".join(f"- {line}" for line in lines) + "\n"


def remaining_bias(correction: str) -> str:
    """Return the part of the gradient bias that `correction` leaves, in percent, and its range over seeds."""
    moments = load_stored("theory_corrections").table("moments")
    chosen = moments[(moments["length"] == LENGTH) & (moments["rho_std"] == RHO_STD)]
    bias = chosen.pivot(index="seed", columns="correction", values="bias")
    parts = bias[correction] / bias["none"]
    mean = bias[correction].mean() / bias["none"].mean()
    return f"{mean:.0%} ({parts.min():.0%} to {parts.max():.0%} over {len(parts)} policies)"


def recovered_share(arm: Arm, board: str = "leaderboard") -> str:
    """Return the share of the loss that an arm of a leaderboard recovers, with its interval and verdict."""
    (row,) = (each for each in recovered_shares(board) if each.arm == arm.id)
    ends = f"{row.ci_low:.0%}, {row.ci_high:.0%}" if isfinite(row.ci_high) else f"at least {row.ci_low:.0%}"
    return f"{row.share:.0%} [{ends}]" + (" (inconclusive)" if row.verdict == "inconclusive" else "")


@cache
def recovered_shares(board: str) -> list[Recovered]:
    """Return the share of the loss that each remedy of a leaderboard recovers."""
    return read_leaderboard(load_stored(board), load_claims()["V6"].trial(board)).recovered


def recent_remedies() -> str:
    """Return what corrections and trust regions of 2026 recover of the loss, and that TIS ends above them."""
    board = read_leaderboard(load_stored(MOE_BOARD), load_claims()["V6"].trial(MOE_BOARD))
    verdicts = {row.arm: row.verdict for row in board.recovered}
    tis, recent = with_moe(TIS).id, {arm: with_moe(arm).id for arm in RECENT}
    shown = [arm for arm, id in recent.items() if verdicts[id] == "supported"]
    if shown != [ICEPOP] or not all(is_above(board, tis, id) for id in recent.values()):
        raise ValueError(f"{MOE_BOARD} shows that {shown} recover a part, or that TIS is not above all four")
    experts, dense = (
        ", ".join(f"{arm} {recovered_share(place(arm), where)}" for arm in RECENT)
        for place, where in ((with_moe, MOE_BOARD), (on_chains, "leaderboard"))
    )
    return (
        "**For an MoE, IcePop recovers a part of the loss; DPPO, IPO and KPop are inconclusive.** "
        f"In the same runs, with the bounds of their frameworks: {experts}. Token TIS ends above each of the "
        f"four (exploratory: sign flips, Holm over {len(board.pairs)} pairs). Dense models: {dense}. Dense "
        f"models, 24 other initial policies: {other_policies(REMEDIES)} (family-wise; all inconclusive)."
    )


def lead_over_tis() -> str:
    """Return by how much identical truncation leads over token TIS, and what is inconclusive."""
    row = decided_row("V6", "leaderboard", "inconclusive")
    lead = row.criteria[0]
    if not lead.ci_low > 0:
        raise ValueError("V6: identical truncation does not lead over token TIS. Rewrite the finding.")
    return (
        f"Identical truncation leads by {lead.estimate:.0%} [{lead.ci_low:.0%}, {lead.ci_high:.0%}] of the "
        "loss; whether by more than a fifth is inconclusive (V6)."
    )


def repeated_tis() -> str:
    """Return what token TIS and others recover of the loss with three runs from each policy."""
    share = decided_row("N9", "remedies_repeated", "reproduced").criteria[0]
    return (
        f"From {share.num_policies} other initial policies, three runs each, token TIS recovers "
        f"{share.estimate:.0%} [{share.ci_low:.0%}, {share.ci_high:.0%}] (N9); "
        f"{other_policies(REMEDIES, 'remedies_repeated')} (N6 to N8, inconclusive; all family-wise)."
    )


def other_policies(claims: Mapping[str, str], experiment: str = "remedies") -> str:
    """Return what remedies recover of the loss from the initial policies of `remedies`, by claim."""
    rows = [decided_row(claim, experiment, "inconclusive").criteria[0] for claim in claims]
    return ", ".join(
        f"{name} {row.estimate:.0%} [{row.ci_low:.0%}, {row.ci_high:.0%}]"
        for name, row in zip(claims.values(), rows, strict=True)
    )


def is_above(board: Leaderboard, arm: str, other: str) -> bool:
    """Return whether the first arm ends above the other one, corrected for all pairs of the leaderboard."""
    pairs = board.pairs[board.pairs["significant"]]
    one, swapped = (
        pairs[(pairs["arm"] == first) & (pairs["other"] == second)]["difference"]
        for first, second in ((arm, other), (other, arm))
    )
    return bool((one > 0).any() or (swapped < 0).any())


def identical_engines() -> str:
    """Return the share of the lost held-out reward that bitwise identical engines recover, and from where."""
    share = decided_row("V1", "identical_engines", "reproduced").criteria[0]
    row = find_row("V1", "vexact_dynamics")
    first = row.criteria[0]
    return (
        f"from {share.num_policies} other initial policies this recovers "
        f"{share.estimate:.0%} [{share.ci_low:.0%}, {share.ci_high:.0%}] (V1; of the reward on training "
        f"prompts, from the first {first.num_policies}: {first.estimate:.0%} "
        f"[{first.ci_low:.0%}, {first.ci_high:.0%}], {row.verdict})"
    )


def growing_mismatch() -> str:
    """Return by how much the correlation of the engines falls during training, and where rho is low."""
    falls = decided_row("H8", "hacking_dynamics", "reproduced").criteria[0]
    rare = decided_row("H4", "hacking_dynamics", "reproduced").criteria[0]
    fresh = decided_row("H8", "identical_engines", "reproduced").criteria[0]
    dense, experts = (
        decided_row("H8", name, "partly reproduced").criteria[0]
        for name in ("e4m3_dynamics", "e4m3_moe_dynamics")
    )
    rare_dense = decided_row("H4", "e4m3_dynamics", "inconclusive").criteria[0]
    rare_experts = decided_row("H4", "e4m3_moe_dynamics", "reproduced").criteria[0]
    return (
        "**The engines agree less and less during training.** Under truncation the correlation of "
        f"pi_train and pi_infer falls by {_fall(falls)} more than under BF16, from "
        f"{fresh.num_policies} other initial policies by {_fall(fresh)}. The mean IS ratio rho of tokens "
        f"with pi_train below 0.01 falls by {_fall(rare)} more. With E4M3, rounded to nearest, the "
        f"correlation falls by {_fall(dense)} more within 2000 steps, in an MoE by {_fall(experts)} "
        f"({falls.num_policies} initial policies each, family-wise intervals); whether the largest rho "
        "rises is inconclusive in both. The mean rho of rare tokens falls by "
        f"{_fall(rare_experts)} more in the MoE; for dense policies that is inconclusive "
        f"({_fall(rare_dense)}). The tests on other policies and on E4M3 are exploratory (claims H8, H4)."
    )


def _fall(change: CriterionEvidence) -> str:
    return f"{-(change.estimate or 0.0):.2f} [{-change.ci_high:.2f}, {-change.ci_low:.2f}]"


def bypass() -> str:
    """Return the held-out reward with copied log-probs, with engines that agree, and without either."""
    before = decided_row("V7", "vexact_dynamics", "contradicted").criteria[0]
    share = decided_row("V7", "identical_engines", "contradicted").criteria[0]
    stored = Views(load_stored("identical_engines")).arms
    copied, agreeing, none = (
        f"{np.mean([HELD_OUT_REWARD(view) for view in stored[arm.id].values()]):.2f}"
        for arm in (vexact.NEW_BYPASS, vexact.NEW_IDENTICAL, vexact.NEW_NONE)
    )
    return (
        "**Bypass mode is not a substitute for identical engines.** Under the same truncation and without a "
        f"correction, held-out reward ends at {copied} in bypass mode (rollout log-probs as old log-probs), "
        f"at {agreeing} with bitwise identical engines and at {none} with neither ({share.num_policies} "
        f"initial policies; claims V7, V1; runs from {before.num_policies} other policies agree)."
    )


def larger_noise() -> str:
    """Return the held-out reward under truncation and under larger logit noise, from `larger_noise`."""
    stored = Views(load_stored("larger_noise")).arms
    arms = (vexact.NEW_NONE, vexact.NEW_BF16)
    arms += (vexact.LARGER_FRESH, vexact.LARGER_RECENT, vexact.LARGER_FIXED)
    means = (np.mean([vexact.LEARNED(view) for view in stored[arm.id].values()]) for arm in arms)
    truncated, control, fresh, recent, fixed = (f"{mean:.2f}" for mean in means)
    row = decided_row("V3", "larger_noise", "contradicted")
    higher = row.criteria[0]
    larger = [each for each in row.criteria if each.criterion.estimand == MISMATCH]
    factor = min(exp(each.estimate or 0.0) for each in larger)
    slope = find_row("V3", "vexact_dynamics").criteria[1]
    removed = float(np.ptp(list(NEAREST_BITS)))
    costs = [-removed * end for end in (slope.estimate or 0.0, slope.ci_high, slope.ci_low)]
    return (
        "**The size of the mismatch alone does not determine the harm.** Gaussian noise on the logits of the "
        f"inference engine makes RMS log rho {factor:.1f} times as large as truncation does. Yet held-out "
        f"reward under the training engine ends at {fresh} with the noise and at {truncated} with truncation "
        f"(BF16: {control}). The difference is {higher.estimate:.2f} "
        f"[{higher.ci_low:.2f}, {higher.ci_high:.2f}]. "
        f"If the noise is a function of the last two tokens, reward ends at {recent}; if it is a function of "
        f"all earlier tokens, at {fixed} ({higher.num_policies} initial policies, family-wise interval; "
        "claim V3, whose other four rows are inconclusive). Within one kind it can matter: rounding to "
        "nearest with 2 (activations) and 1 (weights) mantissa bits instead of 3 costs "
        "{:.2f} [{:.2f}, {:.2f}] (secondary, 95%).".format(*costs)
    )


def half_precision() -> str:
    """Return how many runs collapse with FP16 in both engines, off-policy and on-policy."""
    rows = [decided_row("L7", name, "premise absent") for name in ("lr_dynamics", "lr_on_policy")]
    rates = [row.criteria[0] for row in rows]
    mismatch = max(float(row.mismatch) for row in rows)
    counts = [
        f"{round((each.estimate or 0.0) * each.num_policies)} of {each.num_policies} runs "
        f"[{each.ci_low:.0%}, {each.ci_high:.0%}]"
        for each in rates
    ]
    return (
        "**No run with FP16 in both engines collapsed, but the mismatch was close to zero.** In the paper "
        "*lr*, runs with FP16 collapse. That is not tested here (premise absent): the runs begin with RMS "
        f"log rho of {mismatch:.0e} nats. Of them, {counts[0]} with "
        f"off-policy GRPO and {counts[1]} with on-policy RLOO end below half of the reward of BF16 "
        "(same initial policies, family-wise intervals; claim L7)."
    )


def group_transform() -> str:
    """Return what DFPO gains from its group transform, and how fast it is compared with GSPO."""
    without = {
        "cancel_dynamics": (minus(cancel.MIN, cancel.UNCHANGED), minus(cancel.MIN, cancel.WIDE)),
        "spelling_dynamics": (
            minus(cancel.SPELLED_MIN, cancel.SPELLED_UNCHANGED),
            minus(cancel.SPELLED_MIN, cancel.SPELLED_WIDE),
        ),
    }
    rewards = []
    for experiment, contrasts in without.items():
        row = find_row("C11", experiment)
        others = [find_criterion(row, contrast) for contrast in contrasts]
        if any(each.verdict != "negligible" for each in others):
            raise ValueError(f"C11 in {experiment}: arms without the transform differ. Rewrite the finding.")
        rewards.append(" and ".join(f"{each.estimate or 0.0:.3f}" for each in others))
    faster = decided_row("C10", "spelling_dynamics", "partly reproduced").criteria[0]
    unclear = decided_row("C10", "cancel_dynamics", "inconclusive").criteria[0]
    spelled, template = (
        f"{exp(each.estimate or 0.0):.2f} [{exp(each.ci_low):.2f}, {exp(each.ci_high):.2f}]"
        for each in (faster, unclear)
    )
    spread = next(
        each.estimate or 0.0
        for each in find_row("C16", "cancel_dynamics").criteria
        if each.criterion.estimand == cancel.SPREAD
    )
    return (
        "**DFPO ends with the same reward without its group transform.** GSPO with a clip of 0.2 instead of "
        "3e-4 and 4e-4 reaches that held-out reward, too. DFPO minus either is "
        f"{rewards[0]} on addition after a template and {rewards[1]} on addition in two spellings (margin "
        f"0.02, {faster.num_policies} initial policies, secondary, 95%; claim C11). The PPO ratios within a "
        f"group differ by only {spread:.1%} (std, template), so the transform has little to change. In two "
        f"spellings DFPO gains 0.15 reward in {spelled} times the steps of GSPO (family-wise; claim C10). "
        f"After a template the factor is {template}, which is inconclusive (float32)."
    )


def gpu_products() -> str:
    """Return how many outputs of a GPU the model of its tensor cores gives bit by bit, from `real_card`."""
    stored = load_stored("real_card")
    table: Any = stored.table("agreement")
    own = table[table["candidate"] == "hopper " + table["format"]]
    outputs = own["rows"] * own["columns"]
    equal = f"{round((outputs * own['equal']).sum()):,} of {outputs.sum():,} outputs"
    formats = ", ".join(dict.fromkeys(own["format"]))
    return f"{equal} of matrix products in {formats} on an {stored.manifest['config']['card']}"


def decided_row(claim: str, experiment: str, verdict: str) -> Row:
    """Return a row of the board; its finding may be printed only as long as the verdict is `verdict`."""
    row = find_row(claim, experiment)
    if row.verdict != verdict:
        raise ValueError(f"{claim} in {experiment} is {row.verdict}, not {verdict}: rewrite its finding.")
    return row
