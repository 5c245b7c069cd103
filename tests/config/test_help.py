"""grpo/config/help.py: what is shown is true, and the usual slips get the right flag."""

import re

import pytest

import train_grpo
from grpo.config import arguments, help


def shown(capsys, *argv):
    with pytest.raises(SystemExit) as left:
        arguments.read(train_grpo.HYPERPARAMETERS, list(argv))
    assert not left.value.code
    return capsys.readouterr().out


def test_help_shows_settings_with_their_values(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    text = shown(capsys, "-h")
    keys = {key for settings in help.MAIN.values() for key in settings}
    assert len(keys) >= 30 and keys <= set(arguments.Parser().keys) and all(f"--{key} " in text for key in keys)
    for part in ("[Qwen/Qwen2.5-1.5B-Instruct]", "[5e-06]", "[786]", "low_memory_24gb", "--help_all"):
        assert part in text


def test_help_all_has_every_setting_once(capsys):
    text = shown(capsys, "--help_all")
    flags = re.findall(r"^  --([\w-]+)", text, re.MULTILINE)
    assert sorted(flags) == sorted([*arguments.Parser().keys, "config"])


SLIPS = {  # words of the error
    "--optim adam": "did you mean adamw_torch?",
    "--seed abc": "seed: 'abc' is not a whole number",
    "--lerning_rate 1": "learning_rate",
    "--config dmeo": "did you mean demo?",
}


@pytest.mark.parametrize("words", SLIPS)
def test_a_slip_is_answered_with_what_was_meant(words, capsys):
    assert train_grpo.main(words.split()) == 2
    assert SLIPS[words] in capsys.readouterr().err


@pytest.mark.parametrize("argv", [["--config", "demo"], ["--config=recipes/demo.yaml"]])
def test_a_shipped_recipe_is_found_by_its_name_or_path(argv, monkeypatch):
    monkeypatch.chdir(help.ROOT)
    assert arguments.read(train_grpo.HYPERPARAMETERS, argv).settings["run_name"] == "demo"


def test_a_file_goes_before_a_shipped_recipe_of_its_name(tmp_path):
    (tmp_path / "demo").write_text("run_name: mine\n")
    assert arguments.read(train_grpo.HYPERPARAMETERS, ["--config", "demo"]).settings["run_name"] == "mine"
