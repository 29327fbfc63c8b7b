"""The figures: one file each, drawn from result tables alone."""

from dataclasses import dataclass


@dataclass(frozen=True)
class FigureSource:
    """Which experiment a figure reads, which module draws it (`draw(results)`), and what it shows."""

    experiment: str
    module: str
    caption: str


FIGURES: dict[str, FigureSource] = {
    "format_error": FigureSource(
        "formats", "figures.format_error", "Relative error of every number format against its unit roundoff"
    ),
    "softmax_levels": FigureSource(
        "softmax", "figures.softmax_levels", "Sampled token probabilities in every format"
    ),
    "softmax_spread": FigureSource(
        "softmax", "figures.softmax_spread", "Spread of the mismatch ratio against mantissa bits, with theory"
    ),
    "softmax_placements": FigureSource(
        "softmax", "figures.softmax_placements", "Which rounding placement gives the published table"
    ),
    "softmax_vocabulary": FigureSource(
        "softmax",
        "figures.softmax_vocabulary",
        "Spread of the mismatch ratio against vocabulary and temperature",
    ),
    "softmax_real": FigureSource("softmax", "figures.softmax_real", "Real logits against Gaussian ones"),
    "board_exact": FigureSource(
        "theory", "figures.board_exact", "Residuals and tightness of the exact claims"
    ),
    "theory_corrections": FigureSource(
        "theory_corrections",
        "figures.theory_corrections",
        "Exact bias and variance of every correction at equal mismatch",
    ),
    "theory_survival": FigureSource(
        "theory_survival", "figures.theory_survival", "Survival bias, exactly, by either policy's bins"
    ),
    "flagship": FigureSource(
        "flagship", "figures.flagship", "Reward, mismatch and survival bias with and without corrections"
    ),
    "flagship_sweep": FigureSource(
        "flagship_sweep", "figures.flagship", "The flagship in five minutes: four arms, two seeds"
    ),
    "which_card": FigureSource(
        "which_card", "figures.which_card", "Mismatch between the tensor cores of all pairs of cards"
    ),
    "which_card_shares": FigureSource(
        "which_card",
        "figures.which_card_shares",
        "Shares of format, adder and order in the mismatch of two cards",
    ),
    "adder_drift": FigureSource(
        "adder_drift", "figures.adder_drift", "Long on-policy runs whose engines differ in their adders alone"
    ),
    "length_growth": FigureSource(
        "length_growth", "figures.length_growth", "Response length and reward grow together where length pays"
    ),
    "hacking_fig2": FigureSource(
        "hacking_dynamics", "figures.hacking_fig2", "Reward, entropy and mismatch with TIS and without"
    ),
    "hacking_fig3": FigureSource(
        "hacking_dynamics",
        "figures.hacking_fig3",
        "Uncertain tokens that share their probability with another, by engine, without correction",
    ),
    "hacking_fig4": FigureSource(
        "hacking_dynamics",
        "figures.hacking_fig4",
        "Reward, entropy and mismatch under token clips of two strengths and under sequence clips",
    ),
    "hacking_fig5": FigureSource(
        "hacking_dynamics", "figures.hacking_fig5", "Reward, entropy and mismatch as rare tokens weigh more"
    ),
    "hacking_fig6": FigureSource(
        "hacking_dynamics", "figures.hacking_fig6", "The monitor J where weights are distorted and where not"
    ),
    "hacking_fig7": FigureSource(
        "hacking_dynamics",
        "figures.hacking_fig7",
        "Mismatch by probability of the token, and its drift, without correction",
    ),
    "hacking_fig8": FigureSource(
        "hacking_dynamics",
        "figures.hacking_fig8",
        "Runs forked halfway, with one arrow of the feedback loop cut",
    ),
    "hacking_fig9": FigureSource(
        "hacking_dynamics",
        "figures.hacking_fig9",
        "Correlation of the engines' probabilities, and the largest rho",
    ),
    "hacking_fig10": FigureSource(
        "hacking_dynamics",
        "figures.hacking_fig10",
        "Reward, entropy and mismatch with rare tokens doubled and without weight",
    ),
    "hacking_fig12": FigureSource(
        "hacking_dynamics",
        "figures.hacking_fig12",
        "Reward, entropy and mismatch with noise of mean one on the weights",
    ),
    "hacking_fig14": FigureSource(
        "hacking_dynamics",
        "figures.hacking_fig14",
        "What leaves its level first: change points of every run without correction",
    ),
    "hacking_fig15": FigureSource(
        "hacking_dynamics", "figures.hacking_fig15", "More measures of the arms of Fig. 2"
    ),
    "hacking_fig16": FigureSource(
        "hacking_dynamics", "figures.hacking_fig16", "More measures of the arms of Fig. 4"
    ),
    "hacking_fig17": FigureSource(
        "hacking_dynamics", "figures.hacking_fig17", "More measures of the arms of Fig. 5"
    ),
    "hacking_tab1": FigureSource(
        "hacking_dynamics",
        "figures.hacking_tab1",
        "Share of the tokens that the clip cuts off, along the run",
    ),
    "lr_fig1": FigureSource(
        "lr_dynamics",
        "figures.lr_fig1",
        "Reward and log_ppl_abs_diff without correction; dotted: where its reward is best",
    ),
    "lr_fig2": FigureSource("lr_dynamics", "figures.lr_fig2", "Corrections under one mismatch"),
    "lr_fig3": FigureSource(
        "lr_dynamics", "figures.lr_fig3", "Gradient norm without correction; dotted: where its reward is best"
    ),
    "lr_fig4": FigureSource("lr_dynamics", "figures.lr_fig4", "The learning rate and a tenth of it"),
    "lr_fig5": FigureSource("lr_dynamics", "figures.lr_fig5", "All prompts and a fortieth of them"),
    "lr_fig6": FigureSource(
        "length_dynamics",
        "figures.lr_fig6",
        "Response length and reward where length pays, in models of two widths",
    ),
    "lr_fig7": FigureSource(
        "length_dynamics", "figures.lr_fig7", "The schedule that length triggers, and none"
    ),
    "lr_fig8": FigureSource(
        "length_dynamics", "figures.lr_fig8", "The schedule that length triggers, and none, in a wider model"
    ),
    "lr_fig9": FigureSource("length_dynamics", "figures.lr_fig9", "The triggered schedule with two periods"),
    "lr_fig10": FigureSource(
        "length_dynamics", "figures.lr_fig10", "The triggered schedule with two periods in a wider model"
    ),
    "lr_fig11": FigureSource(
        "lr_dynamics", "figures.lr_fig11", "A rate halved at intervals, without correction and with token MIS"
    ),
    "lr_fig12": FigureSource("lr_dynamics", "figures.lr_fig12", "A rate halved at intervals with token TIS"),
    "lr_fig13": FigureSource("lr_dynamics", "figures.lr_fig13", "FP16 in both engines"),
    "vexact_doses": FigureSource(
        "vexact_dynamics", "figures.vexact_doses", "Reward against three kinds of dose, and without mismatch"
    ),
    "vexact_survival": FigureSource(
        "vexact_dynamics",
        "figures.vexact_survival",
        "Runs without collapse over steps, by kind and size of dose",
    ),
    "acrl_fig6": FigureSource(
        "acrl_dynamics", "figures.acrl_fig6", "Mean rho by probability of the token under FP8 rollouts"
    ),
    "acrl_fig8": FigureSource("acrl_dynamics", "figures.acrl_fig8", "Entropy under ACRL and its rivals"),
    "acrl_fig9": FigureSource("acrl_dynamics", "figures.acrl_fig9", "Discrepancy under nearest FP8"),
    "acrl_fig10": FigureSource(
        "acrl_dynamics",
        "figures.acrl_fig10",
        "Discrepancy, entropy, gradient norm and reward under nearest FP8",
    ),
    "acrl_fig11": FigureSource(
        "acrl_dynamics", "figures.acrl_fig11", "Discrepancy, entropy and reward under the truncated dose"
    ),
    "acrl_tab1": FigureSource(
        "acrl_dynamics", "figures.acrl_tab1", "Best and last reward under nearest FP8 against the BF16 run"
    ),
    "acrl_tab2": FigureSource(
        "acrl_dynamics",
        "figures.acrl_tab2",
        "Last reward under the truncated dose, and its fall, against the BF16 run",
    ),
    "acrl_tab4": FigureSource(
        "acrl_variants", "figures.acrl_tab4", "ACRL on other objectives and with other distances"
    ),
    "acrl_tab5": FigureSource("moe_dynamics", "figures.acrl_tab5", "Dense and MoE policies under one dose"),
    "acrl_tab6": FigureSource(
        "acrl_dynamics", "figures.acrl_tab6", "Reward on held-out prompts under FP8 and BF16 inference"
    ),
    "acrl_tab7": FigureSource("acrl_dynamics", "figures.acrl_tab7", "ACRL with a reference that is off"),
    "acrl_tab8": FigureSource(
        "acrl_dynamics", "figures.acrl_tab8", "Discrepancy of a BF16 run, were its rollouts in FP8"
    ),
    "acrl_tab9": FigureSource(
        "acrl_dynamics", "figures.acrl_tab9", "Discrepancy, entropy and reward over the strength of ACRL"
    ),
    "levels_of_y": FigureSource(
        "acrl_dynamics", "figures.levels_of_y", "ACRL with Y per sequence, group and batch"
    ),
    "cancel_fig2": FigureSource(
        "cancel_dynamics", "figures.cancel_fig2", "Reward of DFPO, its parts and its rivals along the run"
    ),
    "cancel_tab1": FigureSource(
        "spelling_dynamics",
        "figures.cancel_tab1",
        "Reward of DFPO and its rivals against GSPO's where two spellings are right",
    ),
    "cancel_tab2": FigureSource(
        "spelling_dynamics",
        "figures.cancel_tab2",
        "Steps of DFPO and its rivals to a gain of .05, against GSPO's",
    ),
    "cancel_tab3": FigureSource(
        "cancel_dynamics", "figures.cancel_tab3", "Reward of DFPO without its parts, against GSPO's"
    ),
    "cancel_tab4": FigureSource(
        "cancel_dynamics", "figures.cancel_tab4", "Gain of DFPO over GSPO against the size of the group"
    ),
    "attribution_ladder": FigureSource(
        "attribution_ladder",
        "figures.attribution_ladder",
        "Exact shares of the engine's sites in its mismatch, and their ladder",
    ),
    "leaderboard": FigureSource(
        "leaderboard", "figures.leaderboard", "Every remedy against one dose of mismatch, ranked"
    ),
    "leaderboard_experts": FigureSource(
        "leaderboard_experts", "figures.leaderboard", "Remedies for experts, those of routing too, ranked"
    ),
    "real_pairs": FigureSource(
        "real_pairs", "figures.real_pairs", "Measured mismatch of real engines, by pair and by probability"
    ),
    "calibration": FigureSource(
        "real_pairs", "figures.calibration", "Log rho of emulated engines against measured ones, in quantiles"
    ),
    "real_rl": FigureSource(
        "real_rl", "figures.real_rl", "RL with rollouts of vLLM beside its emulated twin"
    ),
    "quantize_throughput": FigureSource(
        "bench_quantize", "figures.quantize_throughput", "Rounding against the memory limit and its peers"
    ),
    "step_speed": FigureSource(
        "bench_step",
        "figures.step_speed",
        "Where the time of a training step goes, beside its matrix products and PyTorch",
    ),
    "sweep_cost": FigureSource(
        "bench_sweep", "figures.sweep_cost", "Cost of a sweep against runs, width, response length and steps"
    ),
    "device_speed": FigureSource(
        "bench_device",
        "figures.device_speed",
        "Runs side by side on one device, and their share of its roofline",
    ),
    "tensor_core_throughput": FigureSource(
        "bench_tensor_cores",
        "figures.tensor_core_throughput",
        "Emulated tensor cores beside a float32 product",
    ),
    "linear_throughput": FigureSource(
        "bench_linear", "figures.linear_throughput", "Emulated products in units of a float32 product"
    ),
}
