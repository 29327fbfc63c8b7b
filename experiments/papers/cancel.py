"""The claims of *cancel*: tokens that right and wrong answers share should receive no push.

Experiments: `cancel_dynamics` runs a template task whose answers share most tokens; `spelling_dynamics` a
task with two right answers. Initial policies are trained on demonstrations with wrong digits, so that reward
can rise. The paper states no clip ranges; those of the GSPO recipe are used. Identities are in `theory`.
"""

from dataclasses import replace
from math import log, log2

import numpy as np

from experiments.arms import cancel
from experiments.arms.settings import in_two_spellings, on_template
from experiments.papers.shared import (
    CHANGES,
    QUARTER_MORE,
    REWARDS,
    TWO_POINTS,
    claim_makers,
    trial,
)
from experiments.regimes import SPELLINGS, TEMPLATE
from experiments.studies.stages import training_experiment
from simlab.studies import estimands as m
from simlab.studies.arms import Arm
from simlab.studies.contrasts import Contrast, mean_of, minus
from simlab.studies.records import Criterion, Direction, exact, manipulation, primary, secondary
from simlab.theory.checks import cancel_checks as checks
from simlab.theory.residual import SINGLE

dynamics, _, identity = claim_makers("cancel")

# Arms of cancel_dynamics.
COMPARED = (
    *(cancel.GRPO, cancel.FIX, cancel.GSPO, cancel.WIDE),
    *(cancel.UNCHANGED, cancel.MIN, cancel.ORTH),
)
"""The objectives of Table 1, and two controls of DFPO."""
GRPO, FIX, GSPO, WIDE, UNCHANGED, MIN, ORTH = map(on_template, COMPARED)
NO_STOP, SCALED = on_template(cancel.NO_STOP), on_template(cancel.SCALED)
SIZES = {
    log2(size): tuple(on_template(cancel.in_groups_of(size, arm)) for arm in (cancel.GSPO, cancel.MIN))
    for size in (2, 4, 8)
}
SIZES[4.0] = GSPO, MIN
"""GSPO and DFPO by the logarithm of the size of a group."""
VALIDATED = ("held-out prompts",)
DIAGNOSTICS = dict.fromkeys((GSPO, WIDE, UNCHANGED, MIN), ("last minibatch", "KL to base"))

# Arms of spelling_dynamics.
SPELLED_ARMS = tuple(map(in_two_spellings, COMPARED))
_, _, SPELLED_GSPO, SPELLED_WIDE, SPELLED_UNCHANGED, SPELLED_MIN, _ = SPELLED_ARMS

# Estimands, with the margins of C9 and their reasons.
ASYM = m.diagnostic_late_ratio("asym_before_clip", "asym_of_ones", "Asym before the clip, of that of ones")
ASYM_CLIPPED = m.diagnostic_late_ratio("asym", "asym_of_ones", "Asym after the clip, of that of ones")
ENERGY = m.diagnostic_late_ratio(
    "push_frequent", "push", "the share of gradient norms on the most frequent tokens"
)
SPREAD = m.diagnostic_late("weight_std", "std of the ratios of a group")
JITTER = m.Estimand(
    "log of the mean second difference of the reward",
    lambda view: float(np.log(view.curve("reward_jitter").mean())),
    m.LOG,
)
DRIFT = m.diagnostic_late_log("kl_to_base", "KL to the first policy")
BEYOND = m.diagnostic_late("beyond_clip", "share of tokens beyond the clip range")
HELD_OUT = m.diagnostic_late("held_out_avg_at_k", "held-out reward")
GAIN = 0.15
"""In an earlier run from other policies, every run that C10 compares gained it."""
PACE = m.steps_to_gain(GAIN)
SOONER = "half of the printed 9%"
TWO, TWENTIETH = 0.02, 0.05
HEADROOM = "0.05 of the largest reward: without learning there is nothing to compare"
NOT_ONE = "weights that differ by less than 10% leave little uncancelled"
APART = "weights that differ by less than 10% cannot move Asym by the margin of 20%"
ALONE = "The last two criteria compare DFPO with stop-gradient alone and GSPO with a wide clip."
OF_LAST = "Asym and energy at the ratios of the last minibatch of a step; Asym over that of weights of one."
CENSORED = f"Steps, in tens, until a gain of {GAIN}; a run that never gains it counts with all its steps."


def learns(arm: Arm) -> Criterion:
    """Return the premise that the untreated arm learns."""
    return manipulation(m.REWARD_CHANGE, mean_of(arm), "positive", REWARDS, because=HEADROOM)


def ranks(
    grpo: Arm, fix: Arm, gspo: Arm, wide: Arm, unchanged: Arm, smallest: Arm, orthogonal: Arm
) -> list[Criterion]:
    """Return the order of Table 1 in held-out reward; the headline is the gain of DFPO over GSPO."""
    pairs: list[tuple[Arm, Arm, Direction]] = [
        (smallest, gspo, "positive"),
        (smallest, fix, "positive"),
        (fix, gspo, "positive"),
        (gspo, grpo, "zero"),
        (orthogonal, smallest, "zero"),
        (smallest, unchanged, "positive"),
        (smallest, wide, "positive"),
    ]
    first, *others = (Criterion(HELD_OUT, minus(a, b), d, TWO, TWO_POINTS, "secondary") for a, b, d in pairs)
    return [replace(first, role="primary"), *others]


def _gain_by_size() -> Contrast:
    """Return the slope over log2 G of the gain of DFPO over GSPO."""
    middle = sum(SIZES) / len(SIZES)
    scale = sum((x - middle) ** 2 for x in SIZES)
    weights: dict[Arm, float] = {}
    for x, (without, with_it) in SIZES.items():
        weights |= {with_it: (x - middle) / scale, without: -(x - middle) / scale}
    return Contrast(weights, "slope over log2 G of DFPO min minus GSPO, G = 2, 4, 8, 16")


# fmt: off
CLAIMS = (
    identity("C1", "Weights that factor over tokens cancel on a shared context and token when sum A = 0",
        "Eq. 9",
        exact("cancel Eq. 9", "token-factorized weights cancel on a shared token", checks.check_factorized,
            tolerance=SINGLE,
            because="relative leftover below 2e-6 (float32) on 20 random groups inside the clip range, "
            "equal lengths",
            slow=True)),
    identity("C2", "Sequence weights leave A rho (u2 - u1) / 2 on a shared token", "Eq. 13, 38",
        exact("cancel Eq. 13, 38, Cor. 3.3",
            "sequence weights leave A rho (u2 - u1) / 2, and cancel on a null set only", checks.check_coupled,
            because="both sides within 1e-12; no exact zero in 20000; P(|leftover| < e) linear in e",
            slow=True),
        exact("cancel App. A, Eq. 25-41", "the three answers to 10 + 10", checks.toy,
            because="advantages -2/3, 1/3, 1/3 and Eq. 38 within 1e-12",
            slow=True)),
    identity("C3", "The clip that depends on the sign of A breaks cancellation outside its range",
        "Eq. 75, 76",
        exact("cancel Eq. 75, 76", "the sign-dependent clip breaks cancellation outside the range",
            checks.check_clipped,
            tolerance=SINGLE,
            because="value and gradient sums equal the preset's within 2e-6; zero inside",
            slow=True)),
    identity("C4", "A clip that ignores the sign of A restores cancellation", "Eq. 82",
        exact("cancel Eq. 82", "a sign-free clip restores it", checks.sign_free,
            tolerance=SINGLE,
            because="relative leftover below 2e-6 at ratios exp(+-0.6); grpo's above it",
            slow=True)),
    identity("C5", "Uncancelled updates drift the policy by eta^2/2 g'Fg + O(eta^3)", "Eq. 3",
        exact("cancel Eq. 3", "uncancelled updates drift the policy by eta^2/2 g'Fg + O(eta^3)",
            checks.kl_drift,
            tolerance=0.1,
            because="order of the remainder within 0.1 of 3, KL positive")),
    identity("C6", "Equivalent answers drift apart in log-odds until the pair has no entropy left",
        "Cor. 3.2",
        exact("cancel Eq. 5, Cor. 3.2",
            "equivalent answers drift by eta c (kappa_a - kappa_b), until the pair's entropy is 0",
            checks.equivalent_answers,
            tolerance=0.05,
            because="holds when one constant is right within 5% and the entropy goes below 0.01 at a "
            "fixed kappa gap")),
    identity("C7", "Min-Replace never flips a sign, and the range of the weights bounds its bias",
        "Thm. C.1, K.1, Eq. 93, 96",
        exact("cancel Thm. C.1, K.1, Eq. 93, 96",
            "Min-Replace flips no sign; its bias is bounded by the spread of the weights", checks.min_replace,
            because="no flip and bias over bound at most 1 on 600 random groups",
            slow=True)),
    identity("C8", "Orth-Proj, the non-negative projection and truncate-and-rebalance satisfy sum A s = 0",
        "Eq. 18, 51-55",
        exact("cancel Eq. 18, 51-55", "the projections satisfy sum A s = 0", checks.projections,
            tolerance=SINGLE,
            because="relative residual below 2e-6 with weights >= 0 for the non-negative ones; printed beta "
            "fails",
            slow=True),
        exact("cancel App. D.3, Eq. 72, 73", "sum A s = 0 cancels shared tokens under length normalization",
            checks.lengths,
            because="holds when no group of 2 or 3 with lengths up to 3 breaks it",
            slow=True)),
    dynamics("C9", "DFPO lowers Asym, Energy on frequent tokens, and Jitter2", "Eq. 20, 23, 24",
        trial("cancel_dynamics",
            primary(ASYM, minus(MIN, GSPO), "negative", QUARTER_MORE, because=CHANGES),
            *(
                secondary(estimand, minus(MIN, other), "negative", QUARTER_MORE, because=CHANGES)
                for estimand, other in (
                    *((each, GSPO) for each in (ENERGY, JITTER, ASYM_CLIPPED)),
                    *((each, UNCHANGED) for each in (ASYM, ENERGY, JITTER)))
            ),
            learns(GSPO),
            manipulation(SPREAD, mean_of(GSPO), "positive", 0.1, because=APART),
            regime=TEMPLATE,
            note=OF_LAST)),
    dynamics("C10", "DFPO reaches a fixed reward with 0.91 of the compute of GSPO", "Tab. 2",
        trial("cancel_dynamics",
            primary(PACE, minus(MIN, GSPO), "negative", -log(0.955), because=SOONER),
            *(
                secondary(PACE, minus(MIN, other), "negative", -log(0.955), because=SOONER)
                for other in (UNCHANGED, WIDE)
            ),
            learns(GSPO),
            regime=TEMPLATE,
            note=CENSORED),
        trial("spelling_dynamics",
            primary(PACE, minus(SPELLED_MIN, SPELLED_GSPO), "negative", -log(0.955), because=SOONER),
            *(
                secondary(PACE, minus(SPELLED_MIN, other), "negative", -log(0.955), because=SOONER)
                for other in (SPELLED_UNCHANGED, SPELLED_WIDE)
            ),
            learns(SPELLED_GSPO),
            regime=SPELLINGS,
            note=CENSORED)),
    dynamics("C11",
        "At the end DFPO, by either transform, beats GRPO with the sign-free clip, which beats GSPO and GRPO",
        "Tab. 1",
        trial("cancel_dynamics", *ranks(GRPO, FIX, GSPO, WIDE, UNCHANGED, MIN, ORTH), learns(GSPO),
            regime=TEMPLATE, note=ALONE),
        trial("spelling_dynamics",
            *ranks(*SPELLED_ARMS),
            learns(SPELLED_GSPO),
            regime=SPELLINGS, note=ALONE)),
    dynamics("C12", "Without stop-gradient, or with plain scaling by 0.5, DFPO is worse than GSPO", "Tab. 3",
        trial("cancel_dynamics",
            primary(HELD_OUT, minus(NO_STOP, GSPO), "negative", TWO, because=TWO_POINTS),
            secondary(HELD_OUT, minus(SCALED, GSPO), "negative", TWO, because=TWO_POINTS),
            learns(GSPO),
            regime=TEMPLATE,
            note="Without stop-gradient the printed objective has no gradient: its weight is differentiated, "
            "as a factor of log pi. `DFPO, half weights` is DFPO without transform with half of them, as "
            "printed; Adam hides a constant factor.")),
    dynamics("C13", "The gain of DFPO grows with the size of the group, from 2 to 16", "Tab. 4",
        trial("cancel_dynamics",
            primary(m.REWARD, _gain_by_size(), "positive", TWO / 2, because="one answer in 100 per doubling"),
            learns(GSPO),
            regime=TEMPLATE)),
    identity("C14", "The projection does not zero the gradient", "Cor. 3.4, App. D",
        exact("cancel Cor. 3.4, App. D", "the projection does not zero the gradient", checks.not_zero,
            because="norm after over norm before above 0.1 on 200 random groups of 8 with generic scores",
            slow=True)),
    identity("C15", "Weights that correlate with the advantage drift common tokens in expectation",
        "Cor. G.1",
        exact("cancel Cor. G.1", "weights correlated with the advantage drift common tokens in expectation",
            checks.check_correlated,
            because="exact expectation equals the covariance within 1e-12 and is zero for token weights")),
    dynamics("C16",
        "The learning tax (uncancelled updates on shared tokens) shows as drift from the initial policy and "
        "more clipping",
        "App. E, K.4",
        trial("cancel_dynamics",
            primary(DRIFT, minus(GSPO, MIN), "positive", QUARTER_MORE, because=CHANGES),
            secondary(BEYOND, minus(GSPO, MIN), "positive", TWENTIETH, because="a twentieth of the tokens"),
            learns(GSPO),
            manipulation(SPREAD, mean_of(GSPO), "positive", 0.1, because=NOT_ONE),
            regime=TEMPLATE,
            note="At equal steps, where DFPO has more reward, which may hide a difference or make one. "
            "Tokens beyond the clip range count whether or not the objective lets them push, in the last "
            "minibatch of a step. The paper also names forgetting on held-out tasks and polluted Adam "
            "moments, which are not measured.")),
)
# fmt: on

CANCEL_DYNAMICS = training_experiment(
    "cancel_dynamics",
    "Does making shared tokens cancel help training, beyond what its stop-gradient does?",
    CLAIMS,
    minutes=30.0,
    baseline=UNCHANGED,
    smoke=(MIN,),
    diagnostics=DIAGNOSTICS,
    shared_diagnostics=VALIDATED,
)
SPELLING_DYNAMICS = training_experiment(
    "spelling_dynamics",
    "On a task with two right answers, does DFPO get there sooner, and further?",
    CLAIMS,
    minutes=8.0,
    baseline=SPELLED_UNCHANGED,
    smoke=(SPELLED_MIN,),
    shared_diagnostics=VALIDATED,
)
