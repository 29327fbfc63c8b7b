"""Differences between our figures and those of the papers, with reasons."""

COARSER = "fewer mantissa bits than E4M3"

DIFFERS = {
    "hacking Fig. 3": "token TIS, no correction and BF16 control, eight runs each; steps 20 and 200",
    "hacking Fig. 6": "RMS log rho in addition; J is recorded in the two GSPO arms alone",
    "hacking Fig. 8": "RMS log rho of the forks: at the end alone, under the engines of the base arm",
    "lr Fig. 5": "25% of the prompts is in `lr_rloo_rates`",
    "acrl Tab. 5": "MoE alone; dense policies are in `acrl_tab1`",
    "acrl Tab. 6": "held-out prompts of the training task; float32 instead of BF16 inference",
    "acrl Fig. 6": f"{COARSER}; the claim (A12) is decided on the runs of `acrl_nearest`",
    "acrl Tab. 7": COARSER,
    "acrl Tab. 8": COARSER,
    "acrl Tab. 9": f"{COARSER}; 0.65 in addition",
    "acrl Tab. 3": f"{COARSER}; held-out prompts of the training task by difficulty; without gamma 0.35",
    **dict.fromkeys(
        ("acrl Tab. 12", "acrl Tab. 13"),
        f"{COARSER}; held-out prompts by difficulty instead of domains; MIS in addition",
    ),
    "cancel Fig. 2": "differences from GSPO; GRPO is in `cancel_tab1`",
    "cancel Tab. 1": "addition after a template instead of the tasks of the paper",
    "cancel Tab. 2": "addition with two correct spellings; a gain of 0.15 instead of a reward of 0.70",
}
"""Differences of figures from those of the papers, apart from models, tasks and lengths."""

NOT_DRAWN = {
    "hacking Fig. 11": "a sketch; `hacking_fig5` and `hacking_fig12` measure what it distinguishes",
}
"""Figures and tables of the papers that have no counterpart."""
