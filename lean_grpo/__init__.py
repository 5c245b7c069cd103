"""TRL's GRPOTrainer with the same gradient for less work: `from lean_grpo import LeanGRPOTrainer`."""

from lean_grpo.trainer import LeanGRPOTrainer

__all__ = ["LeanGRPOTrainer"]
