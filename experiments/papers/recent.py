"""Claims about corrections and losses from sources other than the papers of this project.

Experiments: `theory_corrections` computes the exact fraction of tokens that each trust region drops, for
three kinds of growing mismatch. `grpo_variants` trains GRPO with each of DAPO's changes, of which the
dual clip is verl's default. `routing_replay` scores the responses of MoE policies with and without R3.
`remedies` trains with trust regions of 2026 and with IcePop, `remedies_repeated` with three runs from each
initial policy.
"""

from math import log

from experiments.arms import acrl, chains, moe
from experiments.arms.settings import from_new_policies, on_chains, three_runs, with_moe_at_rest
from experiments.papers.shared import (
    CHANGES,
    FACTOR,
    GROWS,
    LOSS,
    QUARTER_MORE,
    TEN_POINTS,
    claim_makers,
    collapses,
    find_claims,
    loses,
    recovers,
    recovers_more,
    trial,
)
from experiments.regimes import CHAINS, MOE_AT_REST, NEW_CHAINS, REPEATED_CHAINS
from experiments.studies.stages import training_experiment
from simlab.studies import estimands as m
from simlab.studies.arms import Arm
from simlab.studies.contrasts import minus
from simlab.studies.records import EXACT_SUMS, Trial, manipulation, primary, secondary, stored_row

dynamics, measurement, _ = claim_makers("recent")

DROPPED_MARGIN = 0.01
"""One token in 100."""
NONE, BF16, DAPO = on_chains(chains.NONE), on_chains(chains.BF16), on_chains(acrl.DAPO)
DUAL_CLIP, CLIP_HIGHER = on_chains(chains.DUAL_CLIP), on_chains(chains.CLIPS[0.28])
TOKEN_MEAN, GROUP_FILTER = on_chains(chains.TOKEN_MEAN), on_chains(chains.GROUP_FILTER)
PARTS = DUAL_CLIP, CLIP_HIGHER, TOKEN_MEAN, GROUP_FILTER
NEW_NONE, NEW_BF16 = from_new_policies(chains.NONE), from_new_policies(chains.BF16)
NEW_TIS, ICEPOP = from_new_policies(chains.TIS), from_new_policies(chains.ICEPOP)
DPPO, IPO, KPOP = map(from_new_policies, (chains.DPPO, chains.IPO, chains.KPOP))
REPEATED_NONE, REPEATED_BF16 = three_runs(chains.NONE), three_runs(chains.BF16)
REPEATED_TIS, REPEATED_ICEPOP = three_runs(chains.TIS), three_runs(chains.ICEPOP)
REPEATED_IPO, REPEATED_KPOP = three_runs(chains.IPO), three_runs(chains.KPOP)
REST_BF16, REST_E4M3 = with_moe_at_rest(moe.REST_BF16), with_moe_at_rest(moe.REST_E4M3)
REST_TRUNCATED, REST_ROUTER = with_moe_at_rest(moe.REST_TRUNCATED), with_moe_at_rest(moe.REST_ROUTER)
LARGEST_NORM = m.Estimand(
    "log of the largest gradient norm, mean of 10 steps",
    lambda view: float(log(view.curve("grad_norm").max())),
    m.LOG,
)
LOG_KL = m.late_log("k3_kl", "KL divergence between the engines")


def _repeated_trial(remedy: Arm) -> Trial:
    """Return the trial of a remedy with three runs from each initial policy."""
    versus_tis = (
        recovers_more(remedy, REPEATED_TIS, REPEATED_NONE, REPEATED_BF16, reward=m.HELD_OUT_REWARD),
    )
    return trial(
        "remedies_repeated",
        recovers(remedy, REPEATED_NONE, REPEATED_BF16, role="primary", reward=m.HELD_OUT_REWARD),
        recovers(remedy, REPEATED_NONE, REPEATED_BF16),
        *(versus_tis if remedy != REPEATED_TIS else ()),
        loses(REPEATED_NONE, REPEATED_BF16, m.HELD_OUT_REWARD),
        regime=REPEATED_CHAINS,
        note="New runs with other seeds. The seeds of the initial policies are those of `remedies`, which "
        "suggested it. Repetitions from one policy differ, so three are averaged.",
    )


# fmt: off
CLAIMS = (
    measurement("N1", "IcePop drops fewer tokens while the gap between the engines widens",
        "KPop, Ring blog of 2026-05-26",
        trial("theory_corrections",
            stored_row("dropped", "fraction of tokens dropped at the largest KL minus that at the smallest",
                "negative", DROPPED_MARGIN, because="one token in 100"),
            regime=EXACT_SUMS,
            note="The policy sharpens and the noise grows with it.",
            is_exploratory=True)),
    dynamics("N2", "GRPO collapses under mismatch with verl's dual clip as well",
        "verl core_algos.compute_policy_loss_vanilla, clip_ratio_c = 3",
        trial("grpo_variants",
            collapses(DUAL_CLIP, BF16, role="primary"),
            secondary(m.GROWTH, minus(DUAL_CLIP, BF16), "positive", FACTOR, because=GROWS),
            *(
                secondary(reward, minus(DUAL_CLIP, NONE), "zero", LOSS, because=TEN_POINTS)
                for reward in (m.REWARD, m.HELD_OUT_REWARD)
            ),
            manipulation(LARGEST_NORM, minus(DUAL_CLIP, NONE), "negative", FACTOR,
                because="the clip acts: the largest gradients shrink by a factor of 1.5"),
            regime=CHAINS,
            note="The other studies train GRPO without the dual clip, as the papers print it.")),
    dynamics("N3", "DAPO without correction keeps reward that GRPO loses under mismatch",
        "DAPO, arXiv 2503.14476",
        trial("grpo_variants",
            recovers(DAPO, NONE, BF16, role="primary"),
            *(recovers(part, NONE, BF16) for part in PARTS),
            recovers(DAPO, NONE, BF16, reward=m.HELD_OUT_REWARD),
            loses(NONE, BF16),
            regime=CHAINS,
            note="The secondary criteria are its four changes, each alone: dual clip 3, clip 0.28, token "
            "mean, group filter. The filter drops groups of equal rewards from the loss and samples no "
            "others.")),
    dynamics("N4", "Routing replay R3 lowers the KL divergence between the engines of an MoE",
        "R3, arXiv 2510.11370",
        trial("routing_replay",
            *(
                criterion(LOG_KL, minus(moe.with_r3(arm), arm), "negative", QUARTER_MORE, because=CHANGES)
                for criterion, arm in (
                    (primary, REST_BF16), (secondary, REST_E4M3), (secondary, REST_TRUNCATED))
            ),
            manipulation(LOG_KL, minus(moe.with_r3(REST_ROUTER), REST_ROUTER), "negative", QUARTER_MORE,
                because="positive control: R3 removes what the router alone causes; " + CHANGES),
            regime=MOE_AT_REST,
            note="The same responses are scored twice. A pilot from four other policies suggested the "
            "formats.")),
    *(
        dynamics(id, f"{name} keeps held-out reward that GRPO loses under mismatch", reference,
            trial("remedies",
                recovers(arm, NEW_NONE, NEW_BF16, role="primary", reward=m.HELD_OUT_REWARD),
                recovers_more(arm, NEW_TIS, NEW_NONE, NEW_BF16, reward=m.HELD_OUT_REWARD),
                loses(NEW_NONE, NEW_BF16, m.HELD_OUT_REWARD),
                regime=NEW_CHAINS,
                note=note),
            *repeated)
        for id, name, arm, reference, note, *repeated in (
            ("N5", "DPPO", DPPO, "arXiv 2602.04879", "TV distance, bounds of 0.2."),
            ("N6", "IPO", IPO, "prime-rl trainer/rl/loss.py, 2026-09", "Bound of 0.3, no KL term.",
                _repeated_trial(REPEATED_IPO)),
            ("N7", "KPop", KPOP, "Ring blog of 2026-05-26", "Bound of 0.1, as a loss.",
                _repeated_trial(REPEATED_KPOP)),
            ("N8", "IcePop", ICEPOP, "verl decoupled_token_icepop", "Band of 0.5 to 5, on top of GRPO.",
                _repeated_trial(REPEATED_ICEPOP)))
    ),
    dynamics("N9", "Token TIS keeps held-out reward that GRPO loses under mismatch",
        "Yao et al., TIS blog of 2025-08-05", _repeated_trial(REPEATED_TIS)),
)
# fmt: on
(N1,) = find_claims(CLAIMS, "N1")

GRPO_VARIANTS = training_experiment(
    "grpo_variants",
    "Does GRPO collapse with verl's dual clip too, and which of DAPO's changes help under mismatch?",
    CLAIMS,
    minutes=60.0,
    baseline=NONE,
    smoke=(DUAL_CLIP,),
    shared_diagnostics=("both engines",),
)
ROUTING_REPLAY = training_experiment(
    "routing_replay",
    "How much of the mismatch of an MoE does routing carry, and R3 remove, at which noise level?",
    CLAIMS,
    minutes=8.0,
    baseline=REST_BF16,
    shared_diagnostics=(),
)
REMEDIES = training_experiment(
    "remedies",
    "Which corrections and trust regions keep reward on held-out prompts, from new policies?",
    CLAIMS,
    minutes=60.0,
    baseline=NEW_NONE,
    smoke=(KPOP,),
)
REMEDIES_REPEATED = training_experiment(
    "remedies_repeated",
    "Which corrections keep reward on held-out prompts, with three runs from each initial policy?",
    CLAIMS,
    minutes=75.0,
    baseline=REPEATED_NONE,
    smoke=(REPEATED_KPOP,),
)
