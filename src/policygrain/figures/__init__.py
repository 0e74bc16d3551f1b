"""Figures and tables, drawn from records alone: nothing here knows the trainer. Each name is a module of this room."""

FIGURES = (
    "benchmarks",
    "dynamics",
    "clip_ratio",
    "entropy_regularisation",
    "importance_sampling",
    "convergence",
    "block_size",
    "future_weight",
    "ratio_variance",
    "pass_at_k",
    "stress",
    "grain",
)
TABLES = ("results", "ablation", "claims")
