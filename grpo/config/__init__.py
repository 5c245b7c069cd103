"""Turn HYPERPARAMETERS, recipes and flags into one checked configuration."""
