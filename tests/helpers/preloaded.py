"""Imported by the server of `helpers_commands`, which forks what it has imported."""

import gc

from helpers_commands import preload

preload()
gc.freeze()  # so that collecting garbage copies none of it
