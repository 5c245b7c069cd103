"""What `train_grpo.py` stands on; each module does one thing."""


class UserError(Exception):
    """A mistake of the user's, in one readable line that names the value and the remedy (exit status 2)."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(line.strip() for line in message.splitlines()))  # libraries' reasons have many lines
