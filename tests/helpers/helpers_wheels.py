"""Environments with wheels of this repository."""

import subprocess
import sys
import venv


def install(place, *wheels, with_libraries=False):
    """Install wheels in a new environment, empty or with this one's libraries: its Python and its site-packages."""
    venv.create(place, with_pip=False)
    python, site = place / "bin" / "python", next(place.glob("lib/python*/site-packages"))
    if with_libraries:
        (site / "libraries.pth").write_text("\n".join(folder for folder in sys.path if folder.endswith("-packages")))
    pip(python, "install", "--no-deps", "--no-index", *wheels)
    return python, site


def pip(python, *arguments):
    """Run this environment's pip on another one."""
    subprocess.run([sys.executable, "-m", "pip", "--python", python, "--quiet", *arguments], check=True)
