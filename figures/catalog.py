"""One row per figure: the experiment that it reads, what it shows, and the kind that draws it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from matplotlib.figure import Figure

from figures import benchmarks, format_error, gpu_pairs, mismatch, real_engines, softmax, theory
from figures.kinds import Columns, Curves, Custom, Forest, Kind, Panel
from figures.series import best, fall, final, steps_to_gain
from simlab.core.results import Results


@dataclass(frozen=True)
class FigureSpec:
    """A figure of an experiment.

    Args:
        experiment: the experiment whose result tables the figure reads.
        title: what it shows.
        kind: how it is drawn.
        paper: the figure or table of a paper that it corresponds to, such as `hacking Fig. 2`.
    """

    experiment: str
    title: str
    kind: Kind
    paper: str = ""

    @property
    def caption(self) -> str:
        """The title, followed by the meaning of lines, bands, dots and bars."""
        return f"{self.title}. {self.kind.encoding}".rstrip(" .")

    def draw(self, results: Results) -> Figure:
        """Draw the figure from the results of its experiment."""
        return self.kind.draw(results)


REWARD = Panel("reward", "reward of the sampler", limits=(0, None))
MISMATCH = Panel("rms_log_rho", "mismatch: RMS log $\\rho$")
SPREAD = Panel("std_rho", "mismatch: std $\\rho$")
DISCREPANCY = Panel("discrepancy", "discrepancy d")
ENTROPY = Panel("entropy", "entropy in nats")
NORM = Panel("grad_norm", "gradient norm", log=True)
LPD = Panel("log_ppl_abs_diff", "log_ppl_abs_diff")
RATE = Panel("learning_rate_factor", "learning rate / first")
LENGTH = Panel("response_length", "response length in tokens")
CLIPPED = Panel("clip_fraction", "share of clipped tokens", log=True)
CORRELATION = Panel("pcc", "PCC of $\\pi_{train}$ and $\\pi_{infer}$")
LARGEST = Panel("max_rho", "largest $\\rho$ of 10 steps", log=True)
MONITOR = Panel("hacking_j", "J at delta = 2", reference=0)
JITTER = Panel("reward_jitter", "jitter of the reward")
SHADOW = Panel("discrepancy_fp8", "discrepancy d under FP8", limits=(0, None))
CLUSTERS = Panel("", "share with another's probability", limits=(0, 1))
DYNAMICS = (REWARD, ENTROPY, MISMATCH)
EXTENDED = (LPD, SPREAD, NORM)


def arms(task: str, *names: str) -> tuple[str, ...]:
    """Return the names of the arms `names` of a task."""
    return tuple(f"{task}: {name}" for name in names)


def minus(reference: str, others: Sequence[str]) -> dict[str, str]:
    """Pair each arm with the same reference arm."""
    return dict.fromkeys(others, reference)


NONE = "long: no correction"
BF16 = "long: BF16 control"
GSPO = "long: GSPO"
ACRL = "long: ACRL 0.35"
CORRECTED = (NONE, "long: token TIS", GSPO, BF16)
CLIPS = (NONE, "long: clip 0.28", GSPO)
DELTAS = (GSPO, *arms("long", "GSPO, delta 1.2", "GSPO, delta 2", "GSPO, delta 3"))
FP8 = (*arms("long", "FP8", "FP8, token TIS", "FP8, token MIS", "FP8, ACRL"), BF16)
RIVALS = arms("long", "no correction", "token TIS at 5", "sequence MIS", "ACRL 0.35")
MODELS = (NONE, "long, MoE: no correction", ACRL, "long, MoE: ACRL 0.35", BF16, "long, MoE: BF16 control")
CORRECTIONS = arms("long", "token TIS", "token MIS", "sequence TIS", "sequence MIS")
NARROW = arms("length", "no schedule", "triggered", "BF16", "triggered late")
BROAD = arms("length, wide", "no schedule", "triggered", "triggered late")
SPELLING = arms("two_spellings", "GSPO", "GRPO", "GRPO-fix", "DFPO without transform", "DFPO min")
TEMPLATE = arms("template", "GRPO", "GRPO-fix", "GSPO", "DFPO without transform", "DFPO min")
PARTS = arms("template", "GSPO", "DFPO min", "DFPO without transform", "DFPO min, no stop", "GSPO scaled")
SIZES = {2: ", G = 2", 4: ", G = 4", 8: ", G = 8", 16: ""}
SIZE_PAIRS = {f"template: DFPO min{size}": f"template: GSPO{size}" for size in SIZES.values()}
ACRL_PAIRS = {ACRL: NONE, "long: PPO, ACRL": "long: PPO", "long: DAPO, ACRL": "long: DAPO"}
VARIANTS = ("ACRL, squared", "ACRL, KL", "ACRL, moving X", "penalized discrepancy")
MINUS_GSPO = "reward, last quarter,\nless that of GSPO"

# A row takes at most four lines: name; experiment and paper; title; kind.
# fmt: off
FIGURES: dict[str, FigureSpec] = {
    "format_error": FigureSpec("formats",
        "Relative error of every number format against its unit roundoff",
        Custom(format_error.draw)),
    "softmax_levels": FigureSpec("softmax",
        "Sampled token probabilities in every format",
        Custom(softmax.draw_levels), "hacking Fig. 13"),
    "softmax_spread": FigureSpec("softmax",
        "Spread of the mismatch ratio against mantissa bits, with theory",
        Custom(softmax.draw_spread)),
    "softmax_placements": FigureSpec("softmax",
        "Which rounding placement gives the published table",
        Custom(softmax.draw_placements), "hacking Tab. 2"),
    "softmax_vocabulary": FigureSpec("softmax",
        "Spread of the mismatch ratio against vocabulary and temperature",
        Custom(softmax.draw_vocabulary)),
    "softmax_real": FigureSpec("softmax",
        "Real logits against Gaussian ones",
        Custom(softmax.draw_real)),
    "board_exact": FigureSpec("theory",
        "Residuals and tightness of the exact claims",
        Custom(theory.draw_residuals)),
    "theory_corrections": FigureSpec("theory_corrections",
        "Exact bias and variance of every correction at equal mismatch",
        Custom(theory.draw_corrections)),
    "theory_survival": FigureSpec("theory_survival",
        "Survival bias, exactly, by either policy's bins",
        Custom(theory.draw_survival_bias)),
    "flagship": FigureSpec("flagship",
        "Reward, mismatch and survival bias with and without corrections",
        Custom(mismatch.draw_flagship)),
    "flagship_sweep": FigureSpec("flagship_sweep",
        "The flagship in five minutes: four arms, two seeds",
        Custom(mismatch.draw_flagship)),
    "which_card": FigureSpec("which_card",
        "Mismatch between the tensor cores of all pairs of cards",
        Custom(gpu_pairs.draw_matrix)),
    "which_card_shares": FigureSpec("which_card",
        "Shares of format, adder and order in the mismatch of two cards",
        Custom(gpu_pairs.draw_causes)),
    "adder_drift": FigureSpec("adder_drift",
        "Long on-policy runs whose engines differ in their adders alone",
        Curves(None, (REWARD, replace(MISMATCH, log=True, limits=(1e-9, 1)), ENTROPY))),
    "length_growth": FigureSpec("length_growth",
        "Response length and reward grow together where length pays",
        Custom(mismatch.draw_length_growth)),
    "hacking_fig2": FigureSpec("hacking_dynamics",
        "Reward, entropy and mismatch with TIS and without",
        Curves(CORRECTED, DYNAMICS), "hacking Fig. 2"),
    "hacking_fig3": FigureSpec("hacking_dynamics",
        "Uncertain tokens that share their probability with another, by engine, without correction",
        Columns(NONE, {"shared_values": "$\\pi_{infer}$", "shared_values_train": "$\\pi_{train}$"}, CLUSTERS,
                "watched"), "hacking Fig. 3"),
    "hacking_fig4": FigureSpec("hacking_dynamics",
        "Reward, entropy and mismatch under token clips of two strengths and under sequence clips",
        Curves(CLIPS, DYNAMICS), "hacking Fig. 4"),
    "hacking_fig5": FigureSpec("hacking_dynamics",
        "Reward, entropy and mismatch as rare tokens weigh more",
        Curves(DELTAS, DYNAMICS), "hacking Fig. 5"),
    "hacking_fig6": FigureSpec("hacking_dynamics",
        "The monitor J where weights are distorted and where not",
        Curves(("long: GSPO, delta 2", GSPO), (MONITOR,), table="watched"), "hacking Fig. 6"),
    "hacking_fig7": FigureSpec("hacking_dynamics",
        "Mismatch by probability of the token, and its drift, without correction",
        Custom(mismatch.draw_by_probability), "hacking Fig. 7"),
    "hacking_fig8": FigureSpec("hacking_dynamics",
        "Runs forked halfway, with one arrow of the feedback loop cut",
        Curves((NONE, "fork, other data", "fork, mismatch cut", "fork, distortion cut"),
               (REWARD, MISMATCH, NORM)), "hacking Fig. 8"),
    "hacking_fig9": FigureSpec("hacking_dynamics",
        "Correlation of the engines' probabilities, and the largest rho",
        Curves(CORRECTED, (CORRELATION, LARGEST)), "hacking Fig. 9"),
    "hacking_fig10": FigureSpec("hacking_dynamics",
        "Reward, entropy and mismatch with rare tokens doubled and without weight",
        Curves((GSPO, "long: GSPO, delta 2", "long: GSPO, delta 0"), DYNAMICS), "hacking Fig. 10"),
    "hacking_fig12": FigureSpec("hacking_dynamics",
        "Reward, entropy and mismatch with noise of mean one on the weights",
        Curves((GSPO, "long: GSPO, weight noise"), DYNAMICS), "hacking Fig. 12"),
    "hacking_fig14": FigureSpec("hacking_dynamics",
        "What leaves its level first: change points of every run without correction",
        Custom(mismatch.draw_change_points), "hacking Fig. 14"),
    "hacking_fig15": FigureSpec("hacking_dynamics",
        "More measures of the arms of Fig. 2",
        Curves(CORRECTED, EXTENDED), "hacking Fig. 15"),
    "hacking_fig16": FigureSpec("hacking_dynamics",
        "More measures of the arms of Fig. 4",
        Curves(CLIPS, EXTENDED), "hacking Fig. 16"),
    "hacking_fig17": FigureSpec("hacking_dynamics",
        "More measures of the arms of Fig. 5",
        Curves(DELTAS, EXTENDED), "hacking Fig. 17"),
    "hacking_tab1": FigureSpec("hacking_dynamics",
        "Share of the tokens that the clip cuts off, along the run",
        Curves(CLIPS, (CLIPPED,), table="watched"), "hacking Tab. 1"),
    "lr_fig1": FigureSpec("lr_dynamics",
        "Reward and log_ppl_abs_diff without correction; dotted: where its reward is best",
        Curves((NONE, BF16), (REWARD, LPD), mark_best=NONE), "lr Fig. 1"),
    "lr_fig2": FigureSpec("lr_dynamics",
        "Corrections under one mismatch",
        Curves((NONE, *CORRECTIONS, BF16), (REWARD, LPD), height=2.6), "lr Fig. 2"),
    "lr_fig3": FigureSpec("lr_dynamics",
        "Gradient norm without correction; dotted: where its reward is best",
        Curves((NONE, BF16), (NORM,), mark_best=NONE), "lr Fig. 3"),
    "lr_fig4": FigureSpec("lr_dynamics",
        "The learning rate and a tenth of it",
        Curves((NONE, "long: rate / 10"), (REWARD, LPD)), "lr Fig. 4"),
    "lr_fig5": FigureSpec("lr_dynamics",
        "All prompts and a fortieth of them",
        Curves((NONE, "long: 2.5% of the prompts"), (REWARD, LPD)), "lr Fig. 5"),
    "lr_fig6": FigureSpec("length_dynamics",
        "Response length and reward where length pays, in models of two widths",
        Curves((NARROW[0], BROAD[0], NARROW[2]), (LENGTH, REWARD)), "lr Fig. 6"),
    "lr_fig7": FigureSpec("length_dynamics",
        "The schedule that length triggers, and none",
        Curves(NARROW[:3], (REWARD, LPD, ENTROPY, RATE)), "lr Fig. 7"),
    "lr_fig8": FigureSpec("length_dynamics",
        "The schedule that length triggers, and none, in a wider model",
        Curves(BROAD[:2], (REWARD, LPD, ENTROPY, RATE)), "lr Fig. 8"),
    "lr_fig9": FigureSpec("length_dynamics",
        "The triggered schedule with two periods",
        Curves((*NARROW[:2], NARROW[3]), (REWARD, LPD, RATE)), "lr Fig. 9"),
    "lr_fig10": FigureSpec("length_dynamics",
        "The triggered schedule with two periods in a wider model",
        Curves(BROAD, (REWARD, LPD, RATE)), "lr Fig. 10"),
    "lr_fig11": FigureSpec("lr_dynamics",
        "A rate halved at intervals, without correction and with token MIS",
        Curves((NONE, "long: no correction, halving", "long: token MIS", "long: token MIS, halving"),
               (REWARD, LPD, ENTROPY)), "lr Fig. 11"),
    "lr_fig12": FigureSpec("lr_dynamics",
        "A rate halved at intervals with token TIS",
        Curves((NONE, "long: token TIS", "long: token TIS, halving"), (REWARD, LPD, ENTROPY)), "lr Fig. 12"),
    "lr_fig13": FigureSpec("lr_dynamics",
        "FP16 in both engines",
        Curves(("long: FP16 twice", BF16, NONE), (REWARD, LPD, NORM)), "lr Fig. 13"),
    "vexact_doses": FigureSpec("vexact_dynamics",
        "Reward against three kinds of dose, and without mismatch",
        Custom(mismatch.draw_noise_kinds)),
    "vexact_survival": FigureSpec("vexact_dynamics",
        "Runs without collapse over steps, by kind and size of dose",
        Custom(mismatch.draw_survival)),
    "acrl_fig6": FigureSpec("acrl_dynamics",
        "Mean rho by probability of the token under FP8 rollouts",
        Custom(mismatch.draw_ratio_by_probability), "acrl Fig. 6"),
    "acrl_fig8": FigureSpec("acrl_dynamics",
        "Entropy under ACRL and its rivals",
        Curves((ACRL, *RIVALS[1:3], BF16), (ENTROPY,)), "acrl Fig. 8"),
    "acrl_fig9": FigureSpec("acrl_dynamics",
        "Discrepancy under nearest FP8",
        Curves(FP8, (DISCREPANCY,), height=2.6), "acrl Fig. 9"),
    "acrl_fig10": FigureSpec("acrl_dynamics",
        "Discrepancy, entropy, gradient norm and reward under nearest FP8",
        Curves(FP8, (DISCREPANCY, ENTROPY, NORM, REWARD)), "acrl Fig. 10"),
    "acrl_fig11": FigureSpec("acrl_dynamics",
        "Discrepancy, entropy and reward under the truncated dose",
        Curves((*RIVALS, BF16), (DISCREPANCY, ENTROPY, REWARD)), "acrl Fig. 11"),
    "acrl_tab1": FigureSpec("acrl_dynamics",
        "Best and last reward under nearest FP8 against the BF16 run",
        Forest(minus(BF16, (BF16, *FP8)), {
            "best reward of 50 steps, less BF16's": best("reward"),
            "reward, last quarter, less BF16's": final("reward")}, 1.9), "acrl Tab. 1"),
    "acrl_tab2": FigureSpec("acrl_dynamics",
        "Last reward under the truncated dose, and its fall, against the BF16 run",
        Forest(minus(BF16, (BF16, *RIVALS)), {
            "reward, last quarter, less BF16's": final("reward"),
            "reward, last quarter less best, less BF16's": fall("reward")}, 1.9), "acrl Tab. 2"),
    "acrl_tab4": FigureSpec("acrl_variants",
        "ACRL on other objectives and with other distances",
        Forest(ACRL_PAIRS | minus(NONE, VARIANTS), {
            "reward, last quarter, less that without it": final("reward"),
            "discrepancy, last quarter, less that without it": final("discrepancy")}, 2.4), "acrl Tab. 4"),
    "acrl_tab5": FigureSpec("moe_dynamics",
        "Dense and MoE policies under one dose",
        Curves(MODELS, (REWARD, MISMATCH), height=2.6), "acrl Tab. 5"),
    "acrl_tab6": FigureSpec("acrl_dynamics",
        "Reward on held-out prompts under FP8 and BF16 inference",
        Forest(minus(BF16, (BF16, *FP8[1:])), {
            "held-out reward under FP8, less BF16 training's": final("held_out_fp8", "watched"),
            "held-out reward under BF16, less BF16 training's": final("held_out_bf16", "watched")}, 1.7),
        "acrl Tab. 6"),
    "acrl_tab7": FigureSpec("acrl_dynamics",
        "ACRL with a reference that is off",
        Forest(minus(ACRL, ("long: ACRL, 0.75 X", ACRL, "long: ACRL, 1.25 X")), {
            "reward, last quarter, less that with X": final("reward"),
            "entropy, last quarter, less that with X": final("entropy")}, 1.5), "acrl Tab. 7"),
    "acrl_tab8": FigureSpec("acrl_dynamics",
        "Discrepancy of a BF16 run, were its rollouts in FP8",
        Curves((BF16,), (SHADOW,), table="watched"), "acrl Tab. 8"),
    "acrl_tab9": FigureSpec("acrl_dynamics",
        "Discrepancy, entropy and reward over the strength of ACRL",
        Curves((*arms("long", "ACRL 0.1", "ACRL 0.35", "ACRL 1.0", "ACRL 2.1"), NONE),
               (DISCREPANCY, ENTROPY, REWARD)), "acrl Tab. 9"),
    "levels_of_y": FigureSpec("acrl_dynamics",
        "ACRL with Y per sequence, group and batch",
        Curves((NONE, "long: ACRL per sequence", ACRL, "long: ACRL per batch", BF16),
               (DISCREPANCY, ENTROPY, REWARD))),
    "cancel_fig2": FigureSpec("cancel_dynamics",
        "Reward of DFPO, its parts and its rivals along the run",
        Curves(TEMPLATE, (replace(REWARD, limits=None), JITTER)), "cancel Fig. 2"),
    "cancel_tab1": FigureSpec("spelling_dynamics",
        "Reward of DFPO and its rivals against GSPO's where two spellings are right",
        Forest(minus(SPELLING[0], SPELLING), {MINUS_GSPO: final("reward")}, 1.9), "cancel Tab. 1"),
    "cancel_tab2": FigureSpec("spelling_dynamics",
        "Steps of DFPO and its rivals to a gain of .05, against GSPO's",
        Forest(minus(SPELLING[0], SPELLING), {
            "steps to a gain of 0.05 (all, if never),\nless those of GSPO": steps_to_gain(0.05)}, 2.0),
        "cancel Tab. 2"),
    "cancel_tab3": FigureSpec("cancel_dynamics",
        "Reward of DFPO without its parts, against GSPO's",
        Forest(minus(PARTS[0], PARTS), {MINUS_GSPO: final("reward")}, 1.9), "cancel Tab. 3"),
    "cancel_tab4": FigureSpec("cancel_dynamics",
        "Gain of DFPO over GSPO against the size of the group",
        Forest(SIZE_PAIRS, {"reward, last quarter,\nDFPO min less GSPO": final("reward")}, 1.7,
               [f"G = {size}" for size in SIZES]), "cancel Tab. 4"),
    "attribution_ladder": FigureSpec("attribution_ladder",
        "Exact shares of the engine's sites in its mismatch, and their ladder",
        Custom(mismatch.draw_attribution)),
    "leaderboard": FigureSpec("leaderboard",
        "Every remedy against one dose of mismatch, ranked",
        Custom(mismatch.draw_leaderboard)),
    "leaderboard_experts": FigureSpec("leaderboard_experts",
        "Remedies for experts, those of routing too, ranked",
        Custom(mismatch.draw_leaderboard)),
    "real_pairs": FigureSpec("real_pairs",
        "Measured mismatch of real engines, by pair and by probability",
        Custom(real_engines.draw_pairs)),
    "calibration": FigureSpec("real_pairs",
        "Log rho of emulated engines against measured ones, in quantiles",
        Custom(real_engines.draw_calibration)),
    "real_rl": FigureSpec("real_rl",
        "RL with rollouts of vLLM beside its emulated twin",
        Custom(real_engines.draw_rl)),
    "quantize_throughput": FigureSpec("bench_quantize",
        "Rounding against the memory limit and its peers",
        Custom(benchmarks.draw_quantize)),
    "step_speed": FigureSpec("bench_step",
        "Where the time of a training step goes, beside its matrix products and PyTorch",
        Custom(benchmarks.draw_step)),
    "sweep_cost": FigureSpec("bench_sweep",
        "Cost of a sweep against runs, width, response length and steps",
        Custom(benchmarks.draw_sweep_cost)),
    "device_speed": FigureSpec("bench_device",
        "Runs side by side on one device, and their share of its roofline",
        Custom(benchmarks.draw_device)),
    "tensor_core_throughput": FigureSpec("bench_tensor_cores",
        "Emulated tensor cores beside a float32 product",
        Custom(benchmarks.draw_tensor_cores)),
    "linear_throughput": FigureSpec("bench_linear",
        "Emulated products in units of a float32 product",
        Custom(benchmarks.draw_linear)),
}
# fmt: on
