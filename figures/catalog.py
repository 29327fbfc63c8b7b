"""One row per figure: the experiment that it reads, what it shows, and the kind that draws it."""

from collections.abc import Sequence
from dataclasses import replace

from figures import benchmarks, format_error, gpu_pairs, leaderboards, mismatch, real_engines, softmax, theory
from figures.figure_spec import FigureSpec
from figures.kinds import Bars, Curves, Custom, Forest, Leveled, Panel
from figures.series import measure
from simlab.studies import estimands as m

REWARD = Panel("reward", "reward", limits=(0, None))
MISMATCH = Panel("rms_log_rho", "RMS log $\\rho$ (nats)")
HIDDEN = Panel("rms_log_rho_copied", "hidden RMS log $\\rho$ (nats)")
BASE_MISMATCH = Panel("rms_log_rho", "RMS log $\\rho$ (nats),\nbase engines", log=True, table="diagnostics")
DISCREPANCY = Panel("discrepancy", "mean $|\\pi_{train} - \\pi_{infer}|$")
ENTROPY = Panel("entropy", "entropy (nats)")
NORM = Panel("grad_norm", "gradient norm", log=True)
LPD = Panel("abs_seq_log_ratio", "|sequence log $\\rho$| (nats)")
RATE = Panel("learning_rate_factor", "learning rate / configured")
LENGTH = Panel("response_length", "response length (tokens)")
CLIP_RATIO = Panel("clip_fraction", "fraction of tokens clipped", log=True)
CORRELATION = Panel("pcc", "correlation of $\\pi_{train}$, $\\pi_{infer}$")
LARGEST = Panel("max_rho", "largest $\\rho$ in 10 steps", log=True)
MONITOR = Panel("hacking_j", "monitor J at $\\delta$ = 2", reference=0, table="diagnostics")
JITTER = Panel("reward_jitter", "Jitter2 of the reward")
SHADOW = Panel(
    "discrepancy_fp8",
    "mean $|\\pi_{train} - \\pi_{infer}|$,\n2 and 1 bits",
    limits=(0, None),
    table="diagnostics",
)
SHARING = tuple(
    Panel(column, f"fraction sharing $\\pi_{{{engine}}}$", limits=(0, 1), table="diagnostics")
    for column, engine in {"shared_values": "infer", "shared_values_train": "train"}.items()
)
ASYM = Panel("asym_before_clip", "Asym before the clip", table="diagnostics")
ENERGY = Panel("energy_frequent", "Energy, frequent tokens", table="diagnostics")
DYNAMICS = (REWARD, ENTROPY, MISMATCH)
VALIDATION = Panel(
    "held_out_train",
    "held-out reward",
    limits=(0, None),
    table="diagnostics",
    averaged_with="held_out_infer",
)
LEARNED = replace(VALIDATION, label="held-out reward\n(training engine)", averaged_with="")
KL_TO_BASE = Panel("kl_to_base", "KL to the initial policy (nats)", log=True, table="diagnostics")
EXTENDED = (VALIDATION, MISMATCH, ENTROPY, CLIP_RATIO, KL_TO_BASE, NORM)
VALIDATED_LPD = (REWARD, VALIDATION, LPD)
SCHEDULED = (REWARD, LPD, RATE)
HALVED = (REWARD, LPD, ENTROPY)
CONTROLLED = (DISCREPANCY, ENTROPY, REWARD)
BEST_AND_FINAL = {
    "best held-out reward minus BF16": measure(m.PEAK_HELD_OUT),
    "final held-out reward minus BF16": measure(m.HELD_OUT_REWARD),
}


def arms(task: str, *names: str) -> tuple[str, ...]:
    """Return the names of the arms `names` of a task."""
    return tuple(f"{task}: {name}" for name in names)


def minus(reference: str, others: Sequence[str]) -> dict[str, str]:
    """Pair each arm with the same reference arm."""
    return dict.fromkeys(others, reference)


HACKING = "hacking_dynamics"
LENGTHS, WIDE_LENGTHS, LENGTH_CORRECTIONS = "length_dynamics", "length_wide_dynamics", "length_corrections"
LR, LR_RLOO = "lr_dynamics", "lr_on_policy"
VEXACT, ACRL_RUNS = "vexact_dynamics", "acrl_dynamics"
E4M3_RUNS, E4M3_MOE_RUNS = "e4m3_dynamics", "e4m3_moe_dynamics"
CANCEL, SPELLINGS = "cancel_dynamics", "spelling_dynamics"
NONE, BF16 = mismatch.NONE, mismatch.CONTROL
GSPO, TIS = "chain: GSPO", "chain: token TIS"
DELTAS = (GSPO, *arms("chain", "GSPO, delta 1.2", "GSPO, delta 2", "GSPO, delta 3"))
ACRL = "chain: ACRL 0.35"
GRPO_ARMS = (NONE, *arms("chain", "dual clip 3", "DAPO"), BF16)
NEW, REST = "chain, new policies", "chain, MoE at rest"
NEW_NONE, NEW_BF16 = arms(NEW, "no correction", "BF16 control")
AT_REST = ("router in E4M3", "BF16", "E4M3", "truncation")
NEAREST = "acrl_nearest"
NEAREST_GAMMAS = arms(
    "chain", *(f"2 and 1 bits, ACRL {gamma}" for gamma in (0.1, 0.5, 0.65, 0.9, 1.3, 1.7, 2.1, 2.5))
)
E4M3_MIS, E4M3_BF16, E4M3_MOE_BF16 = (
    "chain: E4M3, sequence MIS at 3",
    "chain: E4M3, BF16 control",
    "chain, MoE at 0.0004: E4M3, BF16 control",
)
AGREEING = (NEW_NONE, *arms(NEW, "bypass mode", "identical engines"), NEW_BF16)
NOISY_PANELS, TRUNCATION = (replace(MISMATCH, log=True), LEARNED), "truncation, no correction"
MODELS = {
    f"{prefix} at 0.0004: {name}": f"{model}: {name}"
    for name in ("no correction", "ACRL 0.35", "fixed weight noise", "BF16 control")
    for prefix, model in (("chain", "dense"), ("chain, MoE", "MoE"))
}
RLOO, RLOO_BF16 = "chain: RLOO", "chain: RLOO, BF16"
RATES = ("", ", halving", ", mean rate of halving")
RLOO_HALVINGS = (RLOO, f"{RLOO}, halving", f"{RLOO}, token TIS, halving", f"{RLOO}, token MIS, halving")
ENDS = ("", ", triggered")
SCHEDULES = ("no schedule", "triggered", "BF16", "triggered late")
NARROW, BROAD = (arms(prefix, *SCHEDULES) for prefix in ("length", "length, wide"))
CORRECTED = arms("length", *(f"token MIS{end}" for end in ENDS), "BF16", *(f"token TIS{end}" for end in ENDS))
BROAD_NAMES = dict(zip(BROAD, SCHEDULES, strict=True))
GSPOS, DFPO = ("GSPO", "GSPO, wide clip"), ("DFPO without transform", "DFPO min")
SPELLING = arms("two_spellings", *GSPOS, "GRPO", "GRPO-fix", *DFPO, "DFPO orth")
PARTS = arms("template", *GSPOS, *DFPO, "DFPO min, no stop", "DFPO, half weights")
SIZES = {2: ", G = 2", 4: ", G = 4", 8: ", G = 8", 16: ""}
SIZE_PAIRS = {f"template: DFPO min{size}": f"template: GSPO{size}" for size in SIZES.values()}
ACRL_PAIRS = {ACRL: NONE, "chain: PPO, ACRL": "chain: PPO", "chain: DAPO, ACRL": "chain: DAPO"}
ALGORITHMS = {
    f"chain: {algorithm}{treatment}": f"chain: {algorithm}, BF16 control"
    for algorithm in ("DAPO", "PPO")
    for treatment in ("", ", token TIS at 5", ", ACRL")
}
VARIANTS = (
    *("ACRL, squared", "ACRL, KL", "ACRL, moving X"),
    *(f"discrepancy penalty {size}" for size in ("0.3", "1", "3")),
)
HALVINGS = (NONE, f"{NONE}, halving", *arms("chain", *(f"token MIS{rate}" for rate in RATES)), BF16)
LEVELS = (NONE, "chain: ACRL per sequence", ACRL, "chain: ACRL per batch", BF16)
MARKS = "Lines and marks: mean over initial policies; dots: initial policies; bars: family-wise CI."
RECOVERY = Leveled(
    leaderboards.draw_recovery,
    "Dots on the left: initial policies; ticks: means; bars: family-wise CI; gray: margin. Dots at the "
    "right: pairs whose difference is not 0 (Holm, 5%); V6 asks for a lead above the margin.",
)
STEPS = "log of the steps to a gain of 0.15, minus GSPO"
HELD_OUT_MINUS_GSPO = "held-out reward minus GSPO"
PROMPTS = {"hardest quarter": "_hardest", "easiest quarter": "_easiest", "all prompts": ""}
UNDER_FP8, UNDER_BF16 = (
    {name: measure(m.diagnostic_late(f"held_out_{engine}{part}", name)) for name, part in PROMPTS.items()}
    for engine in ("fp8", "bf16")
)
VALIDATED, HELD_OUT_E4M3, HELD_OUT_F32 = (
    measure(m.diagnostic_late(column, "held-out reward"))
    for column in ("held_out_avg_at_k", "held_out_infer", "held_out_train")
)
FINAL_REWARD, FINAL_DISCREPANCY, FINAL_ENTROPY = (
    measure(m.late(column, column)) for column in ("reward", "discrepancy", "entropy")
)

# A row: name, experiment, title, kind, and the figure or table of a paper that it corresponds to.
# fmt: off
FIGURES: dict[str, FigureSpec] = {
    "format_error": FigureSpec("formats", "Relative error of every number format against its unit roundoff",
        Custom(format_error.draw,
            "Left: maximum relative error by magnitude. Right: maximum and RMS error; bars: unit roundoff.")),
    "softmax_spread": FigureSpec("softmax",
        "Std of the probability ratio against mantissa bits, measured and predicted",
        Custom(softmax.draw_spread,
            "Marks: measured; bars: 95% CI; lines: first-order theory; stars: named formats.")),
    "softmax_real": FigureSpec("softmax",
        "Distortion of the probabilities of a real model and of Gaussian logits by rounding",
        Custom(softmax.draw_real, "Marks: measured; lines: first-order theory.")),
    "board_exact": FigureSpec("theory", "Residuals of identities and tightness of bounds",
        Custom(theory.draw_residuals, "One row per check; residuals below 1e-17 stand at the left edge.")),
    "theory_corrections": FigureSpec("theory_corrections",
        "Exact bias, std and MSE of every correction at equal mismatch", Custom(theory.draw_corrections),
        claims=("V4",)),
    "recent_corrections": FigureSpec("theory_corrections",
        "Exact bias, std and MSE with the corrections of 2026, and the tokens that trust regions drop",
        Custom(theory.draw_recent_corrections), claims=("N1",)),
    "all_corrections": FigureSpec("group_corrections",
        "Exact bias, std and MSE of every correction, sorted by MSE",
        Custom(theory.draw_all_corrections,
            "Four binary tokens, groups of four, RLOO. Marks: mean over 8 policies; bold: of 2026.")),
    "theory_survival": FigureSpec("theory_survival",
        "Exact survival bias: mean IS ratio by token probability",
        Custom(theory.draw_survival_bias, "Filled: bins of pi_train; open: bins of pi_infer."),
        claims=("H4",)),
    "flagship_sweep": FigureSpec("flagship_sweep",
        "Reward, RMS log rho and mean IS ratio of rare tokens, one initial policy",
        Leveled(mismatch.draw_flagship, Curves.encoding)),
    "gpu_pairs": FigureSpec("gpu_pairs", "RMS log rho between the tensor cores of all pairs of GPUs",
        Custom(gpu_pairs.draw_matrix, "Colors and numbers: mean over seeds; 0: bitwise identical."),
        claims=("T4",)),
    "gpu_pair_shares": FigureSpec("gpu_pairs",
        "Shapley shares of format, accumulator and summation order in the mismatch of two GPUs",
        Custom(gpu_pairs.draw_causes, "Bars: 95% CI."), claims=("T2", "T3")),
    "accumulator_drift": FigureSpec("accumulator_drift",
        "Long on-policy runs; in the first three arms the engines differ only in their accumulators",
        Curves((REWARD, VALIDATION, replace(MISMATCH, log=True), ENTROPY), arms=None), claims=("T5",)),
    "hacking_fig2": FigureSpec(HACKING, "Reward, entropy and RMS log rho with and without TIS",
        Curves(DYNAMICS), "hacking Fig. 2", ("H7",)),
    "hacking_fig3": FigureSpec("token_probabilities",
        "Probabilities of sampled tokens under both engines, early and late in training",
        Custom(mismatch.draw_token_probabilities, "Dots: tokens; line: equal probabilities."),
        "hacking Fig. 3", ("H8", "H18"), decided_by=HACKING),
    "shared_probabilities": FigureSpec(HACKING,
        "Fraction of uncertain tokens that share their probability with another token, by engine",
        Curves(SHARING), claims=("H18",)),
    "hacking_fig4": FigureSpec(HACKING,
        "Reward, entropy and RMS log rho under token clips of three strengths and sequence clips",
        Curves(DYNAMICS), "hacking Fig. 4", ("H9",)),
    "hacking_fig5": FigureSpec(HACKING, "Reward, entropy and RMS log rho as rare tokens get larger weights",
        Curves(DYNAMICS, extra=(NONE, BF16)), "hacking Fig. 5", ("H10",)),
    "hacking_fig6": FigureSpec(HACKING, "Monitor J and RMS log rho with and without distorted token weights",
        Curves((MONITOR, MISMATCH), extra=(NONE, BF16)), "hacking Fig. 6", ("H13",)),
    "hacking_fig7": FigureSpec(HACKING,
        "RMS log rho by token probability, and drift of the mean IS ratio, without correction and under BF16",
        Leveled(mismatch.draw_by_probability, MARKS, (NONE, BF16)), "hacking Fig. 7", ("H4",)),
    "hacking_fig8": FigureSpec(HACKING, "Runs forked halfway with one link of the feedback loop removed",
        Curves((REWARD, BASE_MISMATCH, NORM)), "hacking Fig. 8", ("H20",)),
    "hacking_fig9": FigureSpec(HACKING, "Correlation of pi_train and pi_infer, and the largest IS ratio",
        Curves((CORRELATION, LARGEST), extra=(TIS,)), "hacking Fig. 9", ("H8",)),
    "hacking_fig10": FigureSpec(HACKING,
        "Reward, entropy and RMS log rho with rare-token weights doubled and set to zero",
        Curves(DYNAMICS, extra=(DELTAS[2], NONE, BF16)),
        "hacking Fig. 10", ("H11",)),
    "rare_weights": FigureSpec("rare_weights",
        "Reward, entropy and RMS log rho under GSPO, with and without tokens below a probability of 0.003",
        Curves(DYNAMICS), claims=("H11",)),
    "hacking_fig12": FigureSpec(HACKING,
        "Reward, entropy and RMS log rho with noise of mean one on the token weights",
        Curves(DYNAMICS, extra=(NONE, BF16)), "hacking Fig. 12", ("H12",)),
    "softmax_levels": FigureSpec("softmax", "Sampled token probabilities in every number format",
        Custom(softmax.draw_levels,
            "Height: tokens per bin; dark: range over seeds; levels: distinct values."),
        "hacking Fig. 13", ("H2",)),
    "hacking_fig14": FigureSpec(HACKING, "Change points of five metrics with and without distorted weights",
        Leveled(mismatch.draw_change_points,
            "Dots: runs; hollow: p > 0.05; bars: CI of the mean, within the run.",
            mismatch.DISTORTED), "hacking Fig. 14", ("H15",)),
    "hacking_fig15": FigureSpec(HACKING,
        "Validation, mismatch, entropy, clipping, KL divergence and gradient norm with and without TIS",
        Curves(EXTENDED, height=4.4, rows=2), "hacking Fig. 15", ("H7",)),
    "hacking_fig16": FigureSpec(HACKING,
        "Validation, mismatch, entropy, clipping, KL divergence and gradient norm under clips",
        Curves(EXTENDED, height=4.4, rows=2), "hacking Fig. 16", ("H9",)),
    "hacking_fig17": FigureSpec(HACKING,
        "Validation, mismatch, entropy, clipping, KL divergence and gradient norm as rare tokens weigh more",
        Curves(EXTENDED, extra=(NONE, BF16), height=4.4, rows=2), "hacking Fig. 17", ("H10",)),
    "hacking_tab1": FigureSpec(HACKING, "Fraction of tokens clipped",
        Curves((CLIP_RATIO,)), "hacking Tab. 1", ("H9",)),
    "softmax_placements": FigureSpec("softmax", "Rounding placements that reproduce the published table",
        Custom(softmax.draw_placements,
            "Dots: mean of five seeds; bars: 95% prediction interval; lines: the paper."),
        "hacking Tab. 2", ("H1",)),
    "lr_fig1": FigureSpec(LR, "Reward, held-out reward and sequence log ratio without correction",
        Curves(VALIDATED_LPD, mark_best=NONE), "lr Fig. 1", ("L1",)),
    "lr_fig2": FigureSpec(LR,
        "Reward, held-out reward and sequence log ratio under four corrections at one noise level",
        Curves(VALIDATED_LPD, height=2.6), "lr Fig. 2", ("L3",)),
    "lr_fig3": FigureSpec(LR, "Gradient norm without correction",
        Curves((NORM,), mark_best=NONE), "lr Fig. 3", ("L1",)),
    "lr_fig4": FigureSpec(LR,
        "Reward, held-out reward and sequence log ratio at the learning rate and at a tenth of it",
        Curves(VALIDATED_LPD), "lr Fig. 4", ("L2",)),
    "lr_fig5": FigureSpec(LR,
        "Reward, held-out reward and sequence log ratio with all prompts and with 2.5% of the prompts",
        Curves(VALIDATED_LPD), "lr Fig. 5", ("L4",)),
    "lr_fig6": FigureSpec(LENGTHS,
        "Response length and reward where a longer right response gets more reward",
        Curves((LENGTH, REWARD), (NARROW[0], NARROW[2])), "lr Fig. 6", ("L5",)),
    "lr_fig7": FigureSpec(LENGTHS, "Length-triggered schedule against a constant learning rate",
        Curves((REWARD, LPD, ENTROPY, RATE), NARROW[:3]), "lr Fig. 7", ("L5",)),
    "lr_fig8": FigureSpec(WIDE_LENGTHS, "Length-triggered schedule against a constant rate, wider model",
        Curves((REWARD, LPD, ENTROPY, RATE), BROAD[:3], labels=BROAD_NAMES), "lr Fig. 8", ("L13", "L5")),
    "lr_fig9": FigureSpec(LENGTHS, "Length-triggered schedule with two periods",
        Curves(SCHEDULED), "lr Fig. 9", ("L5",)),
    "lr_fig10": FigureSpec(WIDE_LENGTHS, "Length-triggered schedule with two periods, wider model",
        Curves(SCHEDULED, labels=BROAD_NAMES), "lr Fig. 10", ("L13", "L5")),
    "lr_fig11": FigureSpec(LENGTH_CORRECTIONS, "Length-triggered schedule with token MIS",
        Curves((VALIDATION, LPD, RATE), CORRECTED[:3]), "lr Fig. 11", ("L6",)),
    "lr_fig12": FigureSpec(LENGTH_CORRECTIONS, "Length-triggered schedule with token TIS",
        Curves((VALIDATION, LPD, RATE), CORRECTED[2:]), "lr Fig. 12", ("L6",)),
    "lr_halving_mis": FigureSpec(LR,
        "Learning rate halved at intervals, without correction and with token MIS",
        Curves(HALVED, HALVINGS), claims=("L6",)),
    "lr_halving_tis": FigureSpec(LR, "Learning rate halved at intervals with token TIS",
        Curves(HALVED[:2], (NONE, TIS, f"{TIS}, halving", BF16)), claims=("L6",)),
    "lr_fig13": FigureSpec(LR,
        "FP16 in both engines, with and without halving, against BF16 and no correction",
        Curves((REWARD, LPD, NORM), extra=(NONE,)), "lr Fig. 13", ("L7",)),
    "lr_rloo_corrections": FigureSpec(LR_RLOO,
        "Reward, held-out reward and sequence log ratio under four corrections, on-policy RLOO",
        Curves(VALIDATED_LPD, height=2.6), claims=("L3", "L1")),
    "lr_rloo_rates": FigureSpec(LR_RLOO,
        "A tenth of the learning rate, and 25% of the prompts, on-policy RLOO",
        Curves(VALIDATED_LPD, height=2.6), claims=("L2", "L4")),
    "lr_rloo_halving": FigureSpec(LR_RLOO, "Learning rate halved at intervals, on-policy RLOO",
        Curves((VALIDATION, LPD, ENTROPY), (*RLOO_HALVINGS, RLOO_BF16), height=2.6),
        claims=("L6", "L11")),
    "lr_rloo_fp16": FigureSpec(LR_RLOO, "FP16 in both engines, on-policy RLOO, with and without halving",
        Curves((VALIDATION, LPD, NORM), extra=(RLOO,)), claims=("L7",)),
    "vexact_doses": FigureSpec(VEXACT,
        "Final reward by kind and level of noise, and without mismatch, minus the BF16 control",
        Leveled(mismatch.draw_noise_kinds,
            "Final: last quarter. Marks: means; dots: initial policies; bars: family-wise CI."),
        claims=("V3", "V1", "V7")),
    "vexact_kinds": FigureSpec("noise_dynamics",
        "Mismatch and reward under weights in one mantissa bit, by rounding, and under logit noise",
        Curves((MISMATCH, REWARD)), claims=("V3",)),
    "vexact_matched": FigureSpec("matched_noise",
        "Mismatch and held-out reward under truncation, and under logit noise as large at each step",
        Curves(NOISY_PANELS, labels={NONE: TRUNCATION}), claims=("V3",)),
    "vexact_larger": FigureSpec("larger_noise",
        "Mismatch and held-out reward under truncation, and under logit noise 1.5 times as large",
        Curves(NOISY_PANELS, labels={NEW_NONE: TRUNCATION}), claims=("V3",)),
    "vexact_weights": FigureSpec("weight_noise",
        "Mismatch and held-out reward under truncation, and under fixed and fresh weight noise",
        Curves(NOISY_PANELS, labels={NEW_NONE: TRUNCATION}), claims=("V3",)),
    "vexact_identical": FigureSpec("identical_engines",
        "Held-out reward, mismatch, and the mismatch that bypass mode hides by copying log-probs",
        Curves((VALIDATION, MISMATCH, HIDDEN), AGREEING), claims=("V1", "V7", "V6")),
    "vexact_survival": FigureSpec(VEXACT,
        "Initial policies with at least half of the control's held-out reward, by kind and level of noise",
        Leveled(mismatch.draw_survival,
            "Reward: training engine. Gray: last quarter; bars: family-wise CI (exact binomial). The "
            "control is BF16, that of on-policy is on-policy with BF16."), claims=("V3", "V1", "V2")),
    "acrl_fig6": FigureSpec(ACRL_RUNS, "Mean IS ratio by token probability with rollouts in few bits",
        Leveled(mismatch.draw_ratio_by_probability, MARKS, tuple(mismatch.ROUNDED)), "acrl Fig. 6",
        ("A12",), NEAREST),
    "acrl_fig8": FigureSpec(E4M3_RUNS, "Entropy under ACRL, two other corrections and none, E4M3 rollouts",
        Curves((ENTROPY,), extra=(E4M3_MIS,)), "acrl Fig. 8", ("A4",)),
    "acrl_fig9": FigureSpec(E4M3_RUNS, "Discrepancy over 2000 steps with E4M3 rollouts",
        Curves((DISCREPANCY,), extra=(E4M3_MIS,), height=2.6), "acrl Fig. 9", ("A1", "A3")),
    "acrl_fig10": FigureSpec(E4M3_RUNS,
        "Discrepancy, entropy, gradient norm and reward over 2000 steps with E4M3 rollouts",
        Curves((DISCREPANCY, ENTROPY, NORM, REWARD)), "acrl Fig. 10",
        ("A1", "A4", "A13", "A3")),
    "acrl_fig11": FigureSpec(ACRL_RUNS, "Discrepancy, entropy and reward under truncation to 2 mantissa bits",
        Curves(CONTROLLED), "acrl Fig. 11", ("A2", "A3")),
    "acrl_tab1": FigureSpec(E4M3_RUNS,
        "Best and final held-out reward with E4M3 rollouts, minus the BF16 control",
        Forest(E4M3_BF16, BEST_AND_FINAL, 1.9), "acrl Tab. 1", ("A13",)),
    "acrl_tab2": FigureSpec(ACRL_RUNS,
        "Final reward and discrepancy under truncation to 2 mantissa bits, minus the BF16 control",
        Forest(BF16, {"final reward minus BF16": FINAL_REWARD,
            "final mean $|\\pi_{train} - \\pi_{infer}|$ minus BF16": FINAL_DISCREPANCY}, 1.9),
        "acrl Tab. 2", ("A2",)),
    "acrl_tab3": FigureSpec("acrl_difficulty",
        "Held-out reward on the hardest prompts, rollouts with 2 and 1 bits to nearest, minus BF16 rollouts",
        Forest(BF16, {"inference with 2 and 1 bits": UNDER_FP8["hardest quarter"],
            "BF16 inference": UNDER_BF16["hardest quarter"]}, 1.9), "acrl Tab. 3", ("A13",)),
    "acrl_tab4": FigureSpec("acrl_algorithms",
        "Final reward and discrepancy of DAPO and PPO under truncation, minus the same with BF16",
        Forest(ALGORITHMS, {"held-out reward minus BF16": measure(m.HELD_OUT_REWARD),
            "final mean $|\\pi_{train} - \\pi_{infer}|$ minus BF16": FINAL_DISCREPANCY}, 2.2),
        "acrl Tab. 4", ("A9",)),
    "acrl_distances": FigureSpec("acrl_variants",
        "ACRL on other objectives and with other distances, minus the objective alone",
        Forest(ACRL_PAIRS | minus(NONE, VARIANTS), {"final reward minus objective alone": FINAL_REWARD,
            "final mean $|\\pi_{train} - \\pi_{infer}|$ minus objective alone": FINAL_DISCREPANCY}, 2.4),
            claims=("A9", "A14", "A16")),
    "acrl_tab5": FigureSpec(E4M3_MOE_RUNS,
        "Best and final held-out reward of MoE with E4M3 rollouts, minus the BF16 control",
        Forest(E4M3_MOE_BF16, BEST_AND_FINAL, 1.9),
        "acrl Tab. 5", ("A13", "A10")),
    "moe_and_dense": FigureSpec("moe_dynamics", "Dense and MoE policies at one noise level",
        Curves((REWARD, MISMATCH), height=2.6, labels=MODELS), claims=("H16", "A10")),
    "moe_noise": FigureSpec("moe_noise",
        "Mismatch and held-out reward of dense and MoE policies that begin with the same mismatch",
        Curves(NOISY_PANELS, height=2.6, labels=MODELS), claims=("H16",)),
    "acrl_tab6": FigureSpec(E4M3_RUNS,
        "Held-out reward with E4M3 and float32 inference after E4M3 rollouts, minus the BF16 control",
        Forest(E4M3_BF16, {"held-out reward (E4M3 inference) minus BF16": HELD_OUT_E4M3,
            "held-out reward (float32 inference) minus BF16": HELD_OUT_F32}, 1.9), "acrl Tab. 6", ("A13",)),
    "acrl_tab12": FigureSpec("acrl_difficulty",
        "Held-out reward by difficulty, inference and rollouts with 2 and 1 bits, minus BF16 rollouts",
        Forest(BF16, UNDER_FP8, 1.9), "acrl Tab. 12", ("A13",)),
    "acrl_tab13": FigureSpec("acrl_difficulty",
        "Held-out reward by difficulty, BF16 inference, rollouts with 2 and 1 bits, minus BF16 rollouts",
        Forest(BF16, UNDER_BF16, 1.9), "acrl Tab. 13", ("A13",)),
    "acrl_tab7": FigureSpec(NEAREST,
        "ACRL with a reference X that is 25% off, 2 and 1 bits to nearest, minus ACRL with the correct X",
        Forest(NEAREST_GAMMAS[2], {"final reward minus correct X": FINAL_REWARD,
            "final entropy (nats) minus correct X": FINAL_ENTROPY}, 1.9), "acrl Tab. 7", ("A6",)),
    "acrl_truncated_x": FigureSpec(ACRL_RUNS,
        "ACRL with a reference X that is 25% off under truncation, minus ACRL with the correct X",
        Forest(ACRL, {"final reward minus correct X": FINAL_REWARD,
            "final entropy (nats) minus correct X": FINAL_ENTROPY}, 1.9), claims=("A6",)),
    "acrl_tab8": FigureSpec(ACRL_RUNS, "Discrepancy of a BF16 run, measured with 2 and 1 mantissa bits",
        Curves((SHADOW,)), "acrl Tab. 8", ("A7",)),
    "acrl_tab9": FigureSpec(NEAREST,
        "ACRL by gamma, 2 and 1 bits to nearest, minus the BF16 control",
        Forest(minus(BF16, (*NEAREST_GAMMAS, mismatch.TWO_BITS)), {"final reward minus BF16": FINAL_REWARD,
            "final entropy (nats) minus BF16": FINAL_ENTROPY}, 2.8), "acrl Tab. 9", ("A5",)),
    "acrl_truncated_gammas": FigureSpec(ACRL_RUNS,
        "Discrepancy, entropy and reward under truncation for four strengths of ACRL",
        Curves(CONTROLLED, extra=(ACRL, NONE)), claims=("A5",)),
    "e4m3_moe_curves": FigureSpec(E4M3_MOE_RUNS,
        "Discrepancy, entropy and reward of MoE over 2000 steps under E4M3, round to nearest",
        Curves((DISCREPANCY, ENTROPY, REWARD)), claims=("A1", "A4", "A13")),
    "acrl_nearest_curves": FigureSpec(NEAREST,
        "Discrepancy, entropy and reward, 2 and 1 bits to nearest, with the clip of the paper",
        Curves(CONTROLLED), claims=("A13", "A3", "A4")),
    "acrl_nearest_tokens": FigureSpec(NEAREST,
        "Unlikely tokens with the larger $\\pi_{train}$, by the engine that defines unlikely, minus BF16",
        Forest(BF16, {
            f"fraction with larger $\\pi_{{train}}$ at $\\pi_{{{engine}}}$ < 0.01,\nminus BF16":
            measure(m.share_higher("rare", engine)) for engine in ("train", "infer")}, 1.2), claims=("A12",)),
    "grpo_variants_curves": FigureSpec("grpo_variants",
        "Reward, mismatch and gradient norm of GRPO, with verl's dual clip, and of DAPO",
        Curves((REWARD, MISMATCH, NORM), GRPO_ARMS), claims=("N2", "N3")),
    "grpo_variants_rewards": FigureSpec("grpo_variants",
        "Final reward and growth of the mismatch of GRPO with each of DAPO's changes, minus GRPO",
        Forest(NONE, {"final reward minus GRPO": FINAL_REWARD,
            "log growth of RMS log $\\rho$ minus GRPO": measure(m.GROWTH)}, 2.0), claims=("N3", "N2")),
    "remedies_curves": FigureSpec("remedies",
        "Held-out reward and mismatch under IcePop, IPO, token TIS and KPop",
        Curves((VALIDATION, MISMATCH)), claims=("N8", "N6", "N7")),
    "remedies_rewards": FigureSpec("remedies",
        "Final held-out reward by remedy, minus the BF16 control",
        Forest(NEW_BF16, {"held-out reward, mean of both engines, minus BF16":
            measure(m.HELD_OUT_REWARD)}, 2.8), claims=("N8", "N6", "N7", "N5")),
    "remedies_repeated": FigureSpec("remedies_repeated",
        "Final held-out reward by remedy, three runs per policy, minus the BF16 control",
        Forest(f"{NEW}, three runs: BF16 control", {"held-out reward, mean of both engines, minus BF16":
            measure(m.HELD_OUT_REWARD)}, 2.4), claims=("N9", "N6", "N7", "N8")),
    "routing_replay": FigureSpec("routing_replay",
        "KL divergence and mismatch of MoE policies under routing replay R3, minus without",
        Forest({f"{REST}: {name}, R3": f"{REST}: {name}" for name in AT_REST}, {
            "log KL (k3) minus without R3": measure(m.late_log("k3_kl", "KL")),
            "log RMS log $\\rho$ minus without R3": measure(m.late_log("rms_log_rho", "RMS log rho"))},
            1.9, AT_REST), claims=("N4",)),
    "levels_of_y": FigureSpec(ACRL_RUNS, "ACRL with the discrepancy Y averaged per sequence, group and batch",
        Curves(CONTROLLED, LEVELS), claims=("A3",)),
    "cancel_fig2": FigureSpec(CANCEL,
        "Reward, Jitter2, Asym and Energy of DFPO, and of GSPO with a wide clip, minus GSPO",
        Curves((REWARD, JITTER, ASYM, ENERGY),
            arms("template", "DFPO min", "GSPO, wide clip", "GSPO", "DFPO without transform"),
            minus="template: GSPO"), "cancel Fig. 2", ("C9", "C11")),
    "cancel_tab1": FigureSpec(CANCEL, "Held-out reward of DFPO and other objectives minus GSPO",
        Forest("template: GSPO", {HELD_OUT_MINUS_GSPO: VALIDATED}, 2.1),
        "cancel Tab. 1", ("C11",)),
    "cancel_tab2": FigureSpec(SPELLINGS,
        "Steps to a gain of 0.15 and held-out reward, minus GSPO",
        Forest(minus(SPELLING[0], SPELLING), {STEPS: measure(m.steps_to_gain(0.15)),
            HELD_OUT_MINUS_GSPO: VALIDATED}, 2.1), "cancel Tab. 2", ("C10",)),
    "cancel_tab3": FigureSpec(CANCEL, "Held-out reward of DFPO without its components, minus GSPO",
        Forest(minus(PARTS[0], PARTS), {HELD_OUT_MINUS_GSPO: VALIDATED}, 1.9), "cancel Tab. 3", ("C12",)),
    "cancel_tab4": FigureSpec(CANCEL, "Final reward of DFPO minus GSPO, by group size",
        Forest(SIZE_PAIRS, {"final reward, DFPO min minus GSPO": FINAL_REWARD}, 1.7,
            [f"G = {size}" for size in SIZES]), "cancel Tab. 4", ("C13",)),
    "attribution_ladder": FigureSpec("attribution_ladder",
        "Shapley shares of rounding sites in the mismatch, and RMS log rho site by site",
        Custom(mismatch.draw_attribution, "Marks: exact shares; bars: 95% CI; hollow: the site alone.")),
    "leaderboard": FigureSpec("leaderboard",
        "Held-out reward by remedy, fraction of the loss that each recovers, and differences of pairs",
        RECOVERY, claims=("V6",)),
    "leaderboard_experts": FigureSpec("leaderboard_experts",
        "MoE: held-out reward by remedy, fraction of the loss that each recovers, and differences of pairs",
        RECOVERY, claims=("V6",)),
    "real_pairs": FigureSpec("real_pairs",
        "Measured mismatch of real engines, by engine pair and token probability",
        Custom(real_engines.draw_pairs,
            "Above: marks are scoring engines; below: lines are sampling engines, scored in float32.")),
    "calibration": FigureSpec("real_pairs", "Predicted against measured log rho of real engines",
        Custom(real_engines.draw_calibration,
            "Dots: quantiles from 1% to 99%; numbers: distance; line: perfect prediction.")),
    "real_rl": FigureSpec("real_rl", "RL with rollouts from vLLM and from the emulated engine",
        Custom(real_engines.draw_rl,
            "Lines: vLLM, thin: not smoothed; band: range over seeds of the emulated engine, smoothed.")),
    "quantize_throughput": FigureSpec("bench_quantize",
        "Throughput of rounding; x + 1 in place (add_one, donated) is the limit of memory bandwidth",
        Bars("throughput", "gel_per_s", ("method", "format", "variant"), "billion float32 numbers/s")),
    "step_speed": FigureSpec("bench_step",
        "Time of a training step, of its matrix products alone (floor), and of other implementations",
        Bars("stages", "ms", ("implementation",), "time (ms)", "stage", log=False)),
    "engine_steps": FigureSpec("bench_step",
        "Time of a training step in a batch of eight, relative to float32 inference",
        Bars("engines", "ratio", ("engine",), "time (float32 steps)", first="runs_per_batch", log=False)),
    "speedup": FigureSpec("bench_speedup",
        "CPU time of compilation and of a step of 16 runs, at commit 7c42aac and now",
        Bars("speed", "cpu_seconds", ("engines",), "CPU time (s)", "version", "quantity", log=False)),
    "forecasts": FigureSpec("bench_compile",
        "Error of the forecast of a sweep, by state of the compilation cache",
        Bars("sweeps", "off_by", ("sweep",), "forecast against time (factor; 1: exact)", "cache", log=False)),
    "sweep_cost": FigureSpec("bench_sweep",
        "Cost of a sweep against runs, runs per batch, response length and steps",
        Custom(benchmarks.draw_sweep_cost, "Dots: measured; lines: fitted power.")),
    "device_speed": FigureSpec("bench_device",
        "Run-steps per second and fraction of the roofline against runs per batch",
        Custom(benchmarks.draw_device)),
    "gpu_speed": FigureSpec("bench_gpu",
        "Run-steps per second and fraction of the roofline against runs per batch, on a GPU",
        Custom(benchmarks.draw_device)),
    "gpu_products": FigureSpec("real_card", "GPU outputs that the tensor-core models reproduce bit for bit",
        Custom(gpu_pairs.draw_agreement, "Models that agree most, in each format.")),
    "tensor_core_throughput": FigureSpec("bench_tensor_cores",
        "Time of emulated tensor cores relative to a float32 product",
        Bars("throughput", "ratio", ("name",), "time (float32 products)", "variant", "shape")),
    "linear_throughput": FigureSpec("bench_linear", "Time of emulated products relative to a float32 product",
        Bars("linear", "ratio", ("name",), "time (float32 products)", "variant", "kind", "shape")),
}
# fmt: on

NAMES = {row.paper: name for name, row in FIGURES.items() if row.paper}
"""Maps a paper's figure, such as `hacking Fig. 2`, to our name of it."""


def figures_about(claim: str) -> list[str]:
    """Return the names of the figures about a claim, such as `H7`."""
    return [name for name, row in FIGURES.items() if claim in row.claims]
