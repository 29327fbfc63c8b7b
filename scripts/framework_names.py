"""Names and defaults of presets and modifiers of 2026 in the frameworks.

`scripts/readme.py` joins these rows with the defaults of the catalog into docs/objectives.md. "checked" names
the oracle of the tests: verl, TRL (goldens and live runs), prime-rl, AReaL, NeMo-RL (scalar oracles of their
public sources, `tests/objectives/public_sources.py`), formula (`tests/objectives/formulas.py`).
"""

PRESETS: dict[str, tuple[str, str]] = {
    "dppo_tv": (
        "verl: `loss_mode=dppo_tv`, bounds from `clip_ratio_low/high` (0.2), cap `clip_ratio_c` (3 in "
        "effect), anchor old. SkyRL: `dppo`, anchor rollout, no cap. Stable-RL: cap 10. prime-rl: default "
        "2026-04 to 2026-08",
        "verl, prime-rl, formula",
    ),
    "dppo_kl": (
        "verl: `loss_mode=dppo_kl` with the same settings, so 0.2 unless set. SkyRL recommends 0.05",
        "verl, formula",
    ),
    "ipo": (
        "prime-rl: `ipo`, its default since 2026-08-27 with `ipo_threshold` 0.1 and rollout KL, since "
        "2026-09-18 with 0.3 and without",
        "prime-rl, formula",
    ),
    "kpop": ("prime-rl: pull request 3283, with rollout KL", "formula"),
    "drpo": ("UniRL: `drpo`", "formula"),
    "vespo": ('TRL: `loss_type="vespo"`; anchor rollout is its `token_truncate`', "TRL, formula"),
    "luspo": (
        'TRL: `loss_type="luspo"` with `importance_sampling_level="sequence"`; GSPO with seq-mean-token-sum',
        "TRL, formula",
    ),
    "m2po": ("Trinity-RFT and ms-swift: M2PO. The authors' repository clips instead", "formula"),
    "gpg": ("verl: `loss_mode=gpg`, `adv_estimator=gpg`", "verl, formula"),
    "dro": ("verl: `loss_mode=dro`, `dro_beta` has no default", "verl, formula"),
    "clip_cov": (
        "verl: `loss_mode=clip_cov`; `clip_cov_ratio`, `clip_cov_lb`, `clip_cov_ub`",
        "verl (all candidates), formula",
    ),
    "kl_cov": ("verl: `loss_mode=kl_cov`; `kl_cov_ratio`, `ppo_kl_coef`", "verl, formula"),
}

MODIFIERS: dict[str, tuple[str, str]] = {
    "kpop": ("AReaL: `metric: binary_kl` (class 5, documentation 2)", "AReaL, formula"),
    "vaco": ("open-instruct: `rho_mask_tv_divergence` (bound above 1 only)", "formula"),
    "kpop_mask": ("verl: pull request 6800, `rollout_rs=binary_kl`", "formula"),
    "m2_mask": ("AReaL: `m2_threshold`, per micro-batch", "AReaL, formula"),
    "prob_diff": ("ROLL: diff filter at token level (off by default)", "formula"),
    "trm": ("verl: `rollout_rs=seq_max_k2` (no default)", "verl, formula"),
    "rollout_kl": (
        "prime-rl: `kl_tau` (1e-3, off since 2026-09-18); Kimi-K2.5; SkyRL pull request 1811",
        "prime-rl, formula",
    ),
    "score_centering": (
        "torchtitan: top-k, C = 2; prime-rl: option of `ipo`, exact over the top-p set; vime",
        "formula",
    ),
}
