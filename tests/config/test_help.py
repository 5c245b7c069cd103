"""grpo/config/help.py: what is shown fits on two screens and is true, and the usual slips get the right flag."""

import contextlib
import dataclasses
import re

import pytest

import train_grpo
from grpo.__main__ import main as tool
from grpo.config import arguments, help
from grpo.core.settings import ScriptArguments


def shown(capsys, *argv):
    with pytest.raises(SystemExit) as left:
        arguments.read(train_grpo.HYPERPARAMETERS, list(argv))
    assert not left.value.code
    return capsys.readouterr().out


@pytest.mark.parametrize("columns", [80, 100, 160])
def test_help_fits_on_two_screens(columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = shown(capsys, "--help").splitlines()
    assert max(map(len, lines)) <= columns and len(lines) <= 76
    modes = lines[lines.index("Modes") + 1 : lines.index("Model") - 1]
    assert all(line[len("  ... --resume_from_checkpoint auto") :][:2] == "  " for line in modes)  # one column


def test_help_shows_settings_with_their_values(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    text = shown(capsys, "-h")
    keys = {key for settings in help.MAIN.values() for key in settings}
    assert len(keys) >= 30 and keys <= set(arguments.Parser().keys) and all(f"--{key} " in text for key in keys)
    for part in ("[Qwen/Qwen2.5-1.5B-Instruct]", "[5e-06]", "[786]", "--ask", "low_memory_24gb", "--help_all"):
        assert part in text


def test_help_all_has_every_setting_once_in_groups(capsys):
    text = shown(capsys, "--help_all")
    flags = re.findall(r"^  --([\w-]+)", text, re.MULTILINE)
    assert sorted(flags) == sorted([*arguments.Parser().keys, "config"])
    groups = ["Model:", "Data and prompt:", "The run:", "ModelConfig (TRL):", "GRPOConfig (TRL):"]
    places = [text.index(f"\n{title}") for title in groups]
    assert places == sorted(places) and places[2] < text.index("--stop_on_alarm") < places[3] < text.index("--lora_r ")
    ours = {field.name for field in dataclasses.fields(ScriptArguments)}
    assert ours <= set(flags[: flags.index("lora_r")])  # none is left over for the end


def test_version_names_the_libraries(capsys):
    assert train_grpo.main(["--version"]) == 0
    assert "trl 1." in capsys.readouterr().out


@pytest.mark.parametrize(("slip", "flag"), help.ALIASES.items())
def test_a_usual_slip_gets_the_right_flag(slip, flag, capsys):
    keys = arguments.Parser().keys
    assert slip not in keys and (flag in keys or flag == "config")
    with contextlib.suppress(SystemExit):
        assert train_grpo.main([f"--{slip}", "1"]) == 2
    assert capsys.readouterr().err == f"error: --{slip}: no such flag; use --{flag}\n"


SLIPS = {  # the whole error
    "--optim adam": "optim: 'adam' is unknown; did you mean adamw_torch?",
    "--lr_scheduler_type cosin": "lr_scheduler_type: 'cosin' is unknown; did you mean cosine?",
    "--seed abc": "seed: 'abc' is not a whole number",
    "--beta 0,1": "beta: '0,1' is not a number",
    "--no_bf16 --tf32 maybe": "tf32: 'maybe' is neither true nor false",
    "--ask": "ask: it needs a value",
    "--reward_funcs": "reward_funcs: it needs a value",
    "demo": "'demo' is a recipe; use --config demo",
    "--config dmeo": "config: cannot read 'dmeo' (No such file or directory); did you mean demo?",
    "--device cpu": "--device: no such flag; a GPU is found by itself, and --use_cpu true does without",
}


@pytest.mark.parametrize("words", SLIPS)
def test_a_slip_is_answered_with_what_was_meant(words, capsys):
    assert train_grpo.main(words.split()) == 2
    assert capsys.readouterr().err == f"error: {SLIPS[words]}\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("foo", "'foo' is not a tool; use report, xray, plan, check or compare"),
        ("rport x", "'rport' is not a tool; did you mean report?"),
        ("plan --sharding most", "sharding: 'most' is unknown; use none, zero2, zero3 or fsdp2; see python -m"),
        ("report", "RUN_DIR is missing; see python -m grpo report --help"),
        ("check --fast", "--fast: no such flag; see python -m grpo check --help"),
    ],
)
def test_a_slip_in_a_tools_name_or_flags_is_named(words, said, capsys):
    assert tool(words.split()) == 2
    assert capsys.readouterr().err.startswith(f"error: {said}")


def test_a_tool_knows_the_versions(capsys):
    assert tool(["plan", "--version"]) == 0 == tool(["--version"])
    assert capsys.readouterr().out.count("trl 1.") == 2


def test_several_gpus_are_a_launchers(capsys):
    assert train_grpo.main(["--gpus", "4"]) == 2
    assert "torchrun --nproc_per_node=N train_grpo.py" in capsys.readouterr().err


@pytest.mark.parametrize("argv", [["--config", "demo"], ["--config=demo"], ["recipes/demo.yaml"]])
def test_a_shipped_recipe_is_found_by_its_name_or_path(argv, monkeypatch):
    monkeypatch.chdir(help.ROOT)
    assert arguments.read(train_grpo.HYPERPARAMETERS, argv).settings["run_name"] == "demo"


def test_a_file_goes_before_a_shipped_recipe_of_its_name(tmp_path):
    (tmp_path / "demo").write_text("run_name: mine\n")
    assert arguments.read(train_grpo.HYPERPARAMETERS, ["--config", "demo"]).settings["run_name"] == "mine"


def test_what_defines_the_settings_is_read_without_imports(monkeypatch):
    assert set(help._defined_names()) == set(arguments.Parser().keys)
    monkeypatch.setattr(help, "SOURCES", (*help.SOURCES, ("trl", "trainer/moved.py")))
    assert not help.answer_at_once(["--anything", "1"])  # the parser itself will say


@pytest.mark.parametrize("words", ["--system_prompt|--- Rules ---", "--no_bf16", "--beta=0.1", "--max-steps|3", "--"])
def test_what_the_parser_reads_is_not_refused_before(words):
    assert not help.answer_at_once(words.split("|"))
