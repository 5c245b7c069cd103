"""The settings that change the loss, and the values that random ones take: benchmarks/exactness.py draws them, too."""

from typing import Any

CHOICES: dict[str, list[Any]] = {
    "loss_type": ["grpo", "dapo", "dr_grpo", "bnpo", "cispo", "sapo", "luspo", "vespo"],
    "beta": [0.0, 0.0, 0.1],
    "use_bias_correction_kl": [False, True],
    "num_iterations": [1, 1, 2],
    "steps_per_generation": [None, 1, 2, 4],
    "gradient_accumulation_steps": [1, 2, 4],
    "per_device_train_batch_size": [4, 8],
    "num_generations": [2, 4],
    "importance_sampling_level": ["token", "token", "sequence"],
    "epsilon": [0.2, 0.01],
    "epsilon_high": [None, 0.3],
    "delta": [None, 1.5],
    "scale_rewards": ["group", "batch", "none"],
    "multi_objective_aggregation": ["sum_then_normalize", "normalize_then_sum"],
    "mask_truncated_completions": [False, True],
    "off_policy_mask_threshold": [None, None, 0.01],
    "top_entropy_quantile": [1.0, 1.0, 1.0, 0.5],
    "entropy_coef": [0.0, 0.0, 0.0, 0.01],
    "temperature": [1.0, 0.7],
    "gradient_checkpointing": [False, True],
    "disable_dropout": [False, True],
}
