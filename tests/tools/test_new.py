"""`python -m grpo new`: the files are those that the demo needs, nothing is overwritten, nothing half-written."""

import os
import shutil
from pathlib import Path

import pytest
from helpers_runs import ROOT

from grpo.__main__ import main
from grpo.config.configure import configure
from grpo.tools import new

WRITTEN = ["assets", "launch", "recipes", "rewards.py", "train_grpo.py"]


def test_the_demo_runs_on_its_own_copies_of_the_files(capsys):
    assert main(["new", "my experiment"]) == 0
    directory = Path("my experiment")
    assert sorted(os.listdir(directory)) == WRITTEN and not os.access(directory / "train_grpo.py", os.X_OK)
    assert "cd 'my experiment'\n  python train_grpo.py --config demo " in capsys.readouterr().out
    recipe = directory / "recipes" / "demo.yaml"
    recipe.write_text(recipe.read_text() + "seed: 7\n")
    script = str(directory / "train_grpo.py")
    config = configure({}, ["--config", "demo"], script_file=script)  # from another directory
    assert (config.training.seed, config.recipe) == (7, recipe.resolve())
    for name in (config.model.model_name_or_path, config.script.dataset_name, config.script.eval_dataset_name):
        assert Path(name).exists() and Path(name).is_relative_to(directory.resolve())
    assert config.default_dir == "outputs/demo-GRPO"
    other = configure({}, ["--config", "countdown"], script_file=script)
    assert Path(other.model.model_name_or_path) == ROOT / "assets" / "countdown" / "model"


def test_the_files_fit_beside_others(capsys):
    Path("recipes").mkdir()
    Path("recipes/mine.yaml").touch()
    assert main(["new", "."]) == 0
    assert sorted(os.listdir()) == WRITTEN and len(os.listdir("recipes")) == 2
    assert "cd " not in capsys.readouterr().out


@pytest.mark.parametrize("existing", ["rewards.py", "assets/demo/model/config.json"])
def test_nothing_is_overwritten(existing, capsys):
    path = Path("mine", existing)
    path.parent.mkdir(parents=True)
    path.write_text("my own")
    assert main(["new", "mine"]) == 2
    assert capsys.readouterr().err == f"error: new: 'mine' already holds {existing}; use another directory\n"
    assert [file for file in Path("mine").rglob("*") if file.is_file()] == [path] and path.read_text() == "my own"


@pytest.mark.parametrize("name", ["file", "file/below"])
def test_a_file_is_not_a_directory(name, capsys):
    Path("file").touch()
    assert main(["new", name]) == 2
    assert capsys.readouterr().err == "error: new: 'file' is not a directory; use another name\n"


@pytest.mark.parametrize("name", ["recipes", "assets/demo"])
def test_a_file_in_the_place_of_a_folder_leaves_nothing(name, capsys):
    path = Path("mine", name)
    path.parent.mkdir(parents=True)
    path.touch()
    assert main(["new", "mine"]) == 2
    assert capsys.readouterr().err == f"error: new: '{path}' is not a directory; use another name\n"
    assert [file for file in Path("mine").rglob("*") if file.is_file()] == [path]


def test_broken_links_are_not_replaced(capsys):
    Path("mine").mkdir()
    for link in ("mine/rewards.py", "broken"):
        Path(link).symlink_to("nowhere")
    assert main(["new", "mine"]) == main(["new", "broken"]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert "already holds rewards.py" in first and "'broken' is not a directory" in second
    assert os.listdir("mine") == ["rewards.py"]


@pytest.mark.parametrize("existed", [True, False])
def test_a_full_disk_leaves_nothing(existed, monkeypatch, capsys):
    def full(source, target):
        if "model" in str(target):
            raise OSError(28, "No space left on device")
        return copyfile(source, target)

    copyfile = shutil.copyfile
    monkeypatch.setattr(new.shutil, "copyfile", full)
    if existed:
        Path("mine").mkdir()
    assert main(["new", "mine"]) == 2 and "No space left" in capsys.readouterr().err
    assert (os.listdir("mine") == []) if existed else not Path("mine").exists()
