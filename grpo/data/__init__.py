"""Turn rows of any source into prompts and gold answers."""
