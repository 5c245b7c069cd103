"""Errors, processes and settings. All other folders use it; it imports none of them."""

import logging
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]  # grpo/


def shipped_in(package: Path) -> Path:
    """Return the folder of the script, rewards.py, recipes/, …: the clone, or one in a wheel (pyproject.toml)."""
    in_wheel = package / "files"
    return in_wheel if in_wheel.is_dir() else package.parent


ROOT = shipped_in(PACKAGE)
INSTALLED = ROOT.is_relative_to(PACKAGE)  # by a wheel
if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))  # at the end: a rewards.py beside the script or in the working directory comes first
# Where torchao is installed, transformers imports it: it warns of kernels that the build of torch cannot load, and
# torch 2.13 of two of its names
for _name in ("torchao", "torch.utils._pytree"):
    logging.getLogger(_name).setLevel(logging.ERROR)


def folder_of(name: str, *beside: Path) -> Path | None:
    """Return the folder that has a file or directory of this name: the working directory, one of these, or ROOT."""
    return next((folder for folder in (Path.cwd(), *beside, ROOT) if (folder / name).exists()), None)
