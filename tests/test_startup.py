"""A command's start: help and a missing package are answered before libraries are imported."""

import io
import os
import queue
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from helpers_runs import ROOT

import train_grpo


def python(*words, directory=ROOT, **environment):
    environment = {**os.environ, **environment}
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, cwd=directory, env=environment)


def test_a_missing_package_is_one_line():
    """Run the script like a shell whose virtual environment is not active."""
    done = python("-S", "train_grpo.py", "--config", "demo")
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ") and "is not installed; activate the virtual environment" in line


def test_help_imports_no_library():
    done = python("-X", "importtime", "train_grpo.py", "--help")
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert done.returncode == 0 and "grpo.config.begin" in imported and not imported & {"torch", "transformers"}
    assert "learning_rate=5e-6" in done.stdout


# A script that is interrupted at the import of this module
INTERRUPTED = """\
import runpy, sys
class Interrupt:
    def find_spec(name, *rest):
        if name == "{module}":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt)
sys.argv = ["{script}", "--help"]
runpy.run_path("{script}", run_name="__main__")
"""


@pytest.mark.parametrize("script", ["train_grpo.py", "grpo/__main__.py"])
@pytest.mark.parametrize("module", ["grpo.core.versions", "grpo.core.errors", "grpo.core.out_of_memory"])
def test_ctrl_c_during_the_first_imports_is_one_line(script, module):
    done = python("-c", INTERRUPTED.format(script=script, module=module), PYTHONPATH=str(ROOT))
    assert (done.returncode, done.stderr) == (130, "Interrupted\n")


def test_a_run_under_an_ascii_terminal_shows_escapes(tiny_run, monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    assert train_grpo.main(tiny_run(dry_run="true", eval_samples="4")) == 0
    sys.stdout.flush()
    assert rb"\xd7 2 generations" in written.getvalue() and written.getvalue().isascii()


def test_a_copied_script_without_its_packages_is_one_line():
    copied = shutil.copy(ROOT / "train_grpo.py", "mine.py")
    done = python(copied, directory=".")
    assert done.returncode == 2 and done.stdout == "" and [path.name for path in Path().iterdir()] == ["mine.py"]
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: grpo is neither installed nor beside this file; activate")
    assert "train_grpo.py " in python(copied, "--version", directory=".", PYTHONPATH=str(ROOT)).stdout


STARTS = {"the script": ("train_grpo.py", "--config", "demo"), "a tool": ("-m", "grpo", "report", "run")}


def own_folder():
    """The script and the rewards in a folder of one's own, which becomes the working directory's."""
    shutil.copy(ROOT / "train_grpo.py", "train_grpo.py")
    shutil.copy(ROOT / "rewards.py", "rewards.py")


PYTHONS = {
    name: f"hides Python's own {name}" for name in ("random", "typing", "ast", "dataclasses", "types", "queue", "re")
}
PACKAGES = {name: f"hides the package {name}" for name in ("datasets", "torch", "yaml", "numpy", "rich", "lean_grpo")}


@pytest.mark.parametrize(
    ("start", "module", "what"),
    [
        *(("the script", *item) for item in {**PYTHONS, **PACKAGES}.items()),
        *(("a tool", name, PYTHONS[name]) for name in ("random", "typing", "ast", "dataclasses")),
        ("a tool", "packaging", "hides the package packaging"),
    ],
)
@pytest.mark.parametrize("form", ["{}.py", pytest.param("{}/__init__.py", marks=pytest.mark.slow)])
def test_a_module_that_hides_another_is_one_line(module, what, form, start):
    """Found as a traceback from amid the libraries."""
    own_folder()
    path = Path(form.format(module))
    path.parent.mkdir(exist_ok=True)
    path.write_text("")
    done = python(*STARTS[start], directory=".", PYTHONPATH=str(ROOT))
    hiding = Path().absolute() / (module if path.name == "__init__.py" else path)
    assert done.returncode == 2
    assert done.stderr == f"error: {hiding} {what}: rename it, and what imports it\n"


def test_a_grpo_py_is_named_as_what_hides_grpo():
    own_folder()
    Path("grpo.py").touch()
    done = python("train_grpo.py", directory=".", PYTHONPATH=str(ROOT))
    assert done.returncode == 2
    assert done.stderr == f"error: grpo is hidden by {Path('grpo.py').absolute()}: rename that file\n"


@pytest.mark.slow
@pytest.mark.parametrize("form", ["{}.py", "{}/__init__.py"])
def test_modules_that_no_library_imports_are_no_mistake(form):
    own_folder()
    for name in ("utils", "test", "evaluate", "my_task", "turtle", "wave", "this", "cmd", "faiss"):
        path = Path(form.format(name))
        path.parent.mkdir(exist_ok=True)
        path.write_text("1 / 0\n")
    Path("datasets").mkdir()  # of files: a package elsewhere comes first
    Path("wandb").mkdir()
    done = python("train_grpo.py", "--no_such_flag", directory=".", PYTHONPATH=str(ROOT))
    assert done.returncode == 2 and done.stderr.startswith("error: --no_such_flag"), done.stderr


def test_what_only_the_users_own_code_imports_is_theirs():
    own_folder()
    Path("wave.py").write_text("SIZE = 3\n")
    Path("mine.py").write_text("import grpo.unhandled\nimport helper\nprint(helper.wave.SIZE)\n")
    Path("helper.py").write_text("import wave\n")
    assert python("mine.py", directory=".", PYTHONPATH=str(ROOT)).stdout == "3\n"


@pytest.mark.slow
@pytest.mark.parametrize("named", [".", "over"])
def test_what_a_user_has_named_in_pythonpath_hides_nothing(named):
    """An overlay by `pip install --target`, or the source of a library."""
    own_folder()
    Path(named).mkdir(exist_ok=True)
    (Path(named) / "queue.py").write_text(Path(queue.__file__).read_text())
    (Path(named) / "yaml").symlink_to(Path(yaml.__file__).parent)
    done = python("train_grpo.py", "--no_such_flag", directory=".", PYTHONPATH=os.pathsep.join([named, str(ROOT)]))
    assert done.returncode == 2 and done.stderr.startswith("error: --no_such_flag"), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("module", ["train_grpo", "grpo.core", "grpo.task", "grpo.hidden"])
def test_a_program_that_imports_this_keeps_its_excepthook(module):
    Path("mine.py").write_text(f"import sys\nimport {module}\nassert sys.excepthook is sys.__excepthook__\n1 / 0\n")
    done = python("mine.py", directory=".", PYTHONPATH=str(ROOT))
    assert done.returncode == 1 and done.stderr.endswith("ZeroDivisionError: division by zero\n"), done.stderr


def distribution(name, version):
    folder = Path("other") / f"{name}-{version}.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize(
    ("installed", "line"),
    [
        ({"trl": "0.14.0"}, "trl 0.14.0 is installed; trl>=1.16,<1.17 is needed"),
        ({"trl": "1.17.0.dev0"}, "trl 1.17.0.dev0 is installed; trl>=1.16,<1.17 is needed"),
        ({"transformers": "4.57.1"}, "transformers 4.57.1 is installed; transformers>=5.17,<6 is needed"),
        ({"torch": "2.5.0+cu124"}, "torch 2.5.0+cu124 is installed; torch>=2.11,<2.16 is needed"),
        ({"filelock": "3.20.0"}, "filelock 3.20.0 is installed; filelock>=3.20.3 is needed"),
        (
            {"trl": "1.0.0", "peft": "0.18.0"},
            "trl 1.0.0 and peft 0.18.0 are installed; trl>=1.16,<1.17 and peft>=0.20 are needed",
        ),
    ],
)
def test_another_version_than_needed_is_one_line_before_any_import(installed, line, start):
    """Found as `No module named 'mergekit'`, from an old TRL."""
    for name, version in installed.items():
        distribution(name, version)
    words = [str(ROOT / word) if word == "train_grpo.py" else word for word in STARTS[start]]
    done = python(*words, directory=".", PYTHONPATH=os.pathsep.join(["other", str(ROOT)]))
    requirements = shlex.quote(str(ROOT / "requirements.txt"))
    assert (done.returncode, done.stderr) == (2, f"error: {line}: pip install -r {requirements}\n")


@pytest.mark.parametrize("version", ["1.16.3", "1.16.0.post1"])
def test_versions_within_the_bounds_pass(version):
    distribution("trl", version)
    done = python("-m", "grpo", "report", "run", directory=".", PYTHONPATH=os.pathsep.join(["other", str(ROOT)]))
    assert "'run'" in done.stderr and "is needed" not in done.stderr


def test_a_mistake_in_a_scripts_own_lines_is_one_line():
    Path("mine.py").write_text("import grpo.unhandled\n\nrewards = [undefined_reward]\n")
    done = python("mine.py", directory=".", PYTHONPATH=str(ROOT))
    assert done.returncode == 2
    assert done.stderr == "error: NameError: name 'undefined_reward' is not defined (mine.py:3)\n"


def test_a_bug_keeps_its_traceback():
    Path("mine.py").write_text("import grpo.unhandled\nfrom grpo.core import text\n\ntext.counted(None, 'row')\n")
    done = python("mine.py", directory=".", PYTHONPATH=str(ROOT))
    assert done.returncode == 1 and done.stderr.startswith("Traceback") and "TypeError" in done.stderr
    assert "unhandled" not in done.stderr
