"""What `train_grpo.py` stands on; each module does one thing."""


class UserError(Exception):
    """A mistake of the user's, in one readable sentence that names the value and the remedy (exit status 2)."""
