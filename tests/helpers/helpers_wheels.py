"""Environments with a wheel of this repository."""

import subprocess
import sys
import venv


def install(place, wheel, with_libraries=False):
    """Install a wheel in a new environment, empty or with this one's libraries: its Python and its site-packages."""
    venv.create(place, with_pip=False)
    python, site = place / "bin" / "python", next(place.glob("lib/python*/site-packages"))
    if with_libraries:
        (site / "libraries.pth").write_text("\n".join(folder for folder in sys.path if folder.endswith("-packages")))
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, wheel], check=True)
    return python, site
