"""grpo/config/configure.py: HYPERPARAMETERS < recipe < command line, and one readable line for every mistake."""

import contextlib
import dataclasses
import pickle
import re
from pathlib import Path

import datasets
import pytest
from helpers_runs import ROOT

import train_grpo
from grpo.config.configure import TASK_SETTINGS, configure, merge
from grpo.config.parsing import Parser
from grpo.core.errors import UserError
from grpo.core.settings import SETTINGS, UNSET, ScriptArguments
from grpo.data import dataset
from grpo.runs.record import started
from grpo.runs.run import choose_run
from grpo.scoring import registry
from grpo.scoring.functions import functions_to_names
from grpo.task.prompts import FORMATS, PromptFormat

INLINE = train_grpo.HYPERPARAMETERS
CPU = ["--use_cpu", "true", "--report_to", "none"]


def output_of(config):
    return Path(config.training.output_dir)


def recipe(tmp_path, text, name="recipe.yaml"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_inline_values_reach_trl():
    config = configure(INLINE, CPU)
    for key in ("learning_rate", "adam_beta2", "weight_decay", "warmup_steps", "max_grad_norm", "num_generations"):
        assert getattr(config.training, key) == INLINE[key]
    assert config.script.max_prompt_length == 256 and len(config.model.lora_target_modules) == 7
    assert config.model.lora_task_type == "CAUSAL_LM"


def test_recipe_overrides_inline_and_flags_override_the_recipe(tmp_path):
    path = recipe(tmp_path, "learning_rate: 1e-3\nbeta: 0.5\nmax_samples: 7\n")
    config = configure(INLINE, ["--config", path, "--beta", "0.25", "--max-samples=8", *CPU])
    # 1e-3 is a string in YAML 1.1, and still a number here
    assert (config.training.learning_rate, config.training.beta, config.script.max_samples) == (1e-3, 0.25, 8)
    assert config.training.weight_decay == 0.1


def test_null_unsets_and_lists_and_dictionaries_pass(tmp_path):
    path = recipe(
        tmp_path,
        "save_total_limit: null\nreward_funcs: [int_reward_func]\nreward_weights: [-1.0]\n"
        "lora_target_modules: [q_proj]\nchat_template_kwargs: {enable_thinking: false}\neval_strategy: no\n",
    )
    config = configure(INLINE, ["--config", path, *CPU])
    assert config.training.save_total_limit is None and config.script.reward_funcs == ["int_reward_func"]
    assert config.training.reward_weights == [-1.0] and config.model.lora_target_modules == ["q_proj"]
    assert config.training.chat_template_kwargs == {"enable_thinking": False}
    assert config.training.eval_strategy == "no"  # a bare `no` is false in YAML


OTHER_DATA = [  # flags: eval_dataset_name, dataset_config
    ("", "held_out.csv", None),
    ("--dataset_name mine.csv", None, None),
    ("--dataset_name recipe.csv", "held_out.csv", None),
    ("--dataset_name mine.csv --eval_dataset_name own.csv", "own.csv", None),
    ("--eval_dataset_name none", None, None),
    ("--eval_dataset_name=None --dataset_name me/hub --dataset_config small", None, "small"),
]


@pytest.mark.parametrize(("flags", "held_out", "configuration"), OTHER_DATA)
def test_own_data_never_meets_the_recipes_evaluation(flags, held_out, configuration, tmp_path):
    path = recipe(tmp_path, "dataset_name: recipe.csv\neval_dataset_name: held_out.csv\n")
    config = configure(INLINE, ["--config", path, *flags.split(), *CPU])
    assert (config.script.eval_dataset_name, config.script.dataset_config) == (held_out, configuration)


def test_the_inline_data_keeps_its_configuration(tmp_path):
    assert configure(INLINE, ["--dataset_name", INLINE["dataset_name"], *CPU]).script.dataset_config == "main"
    assert configure(INLINE, ["--dataset_name", "openai/other", *CPU]).script.dataset_config is None
    back = ["--config", "demo", "--dataset_name", INLINE["dataset_name"]]
    assert configure(INLINE, [*back, *CPU]).script.dataset_config == "main"
    path = recipe(tmp_path, "dataset_name: openai/gsm8k\n")
    assert configure(INLINE, ["--config", path, *CPU]).script.dataset_config == "main"


@pytest.mark.parametrize(
    ("edit", "expected"),
    [({"learning_rate": "abc"}, "learning_rate"), ({"lerning_rate": 1}, "did you mean learning_rate")],
)
def test_inline_edits_are_checked_like_flags(edit, expected):
    with pytest.raises(UserError, match=expected):
        configure({**INLINE, **edit}, CPU)


def test_each_setting_of_the_block_has_its_origin_in_the_blocks_order(tmp_path):
    path = recipe(tmp_path, "beta: 0.5\ntop_k: 3\neval_dataset_name: a.csv\n")
    edited = INLINE | {"learning_rate": 1e-4}
    origin = configure(edited, [f"--config={path}", *CPU, "--top_p", "0.9"]).origin
    assert list(origin)[: len(edited)] == list(edited) and set(list(origin)[len(edited) :]) == {
        "use_cpu",
        "top_k",
        "top_p",
    }
    expected = {"beta": "recipe", "top_k": "recipe", "top_p": "flag", "use_cpu": "flag", "learning_rate": "script"}
    expected |= {"dtype": "machine", "output_dir": "machine", "report_to": "flag", "eval_dataset_name": "recipe"}
    assert {key: origin[key] for key in expected} == expected
    dropped = configure(edited, [f"--config={path}", *CPU, "--dataset_name", "b.csv"])
    assert dropped.script.eval_dataset_name is None and dropped.origin["eval_dataset_name"] == "flag"


def mine(completions, **kwargs):
    return [0.0] * len(completions)


def test_the_block_repeats_this_projects_defaults():
    names, _ = functions_to_names(INLINE)
    defaults = Parser().defaults
    ours = {key for key, known in SETTINGS.items() if known.default is not UNSET}
    ours |= {field.name for field in dataclasses.fields(ScriptArguments)} - {
        "dataset_config",  # GSM8K's
        "prompt_format",  # written out
        "exemplars",
    }
    assert {key: defaults[key] for key in names if key in ours} == {key: names[key] for key in names if key in ours}
    assert names["prompt_format"] == FORMATS[defaults["prompt_format"]]


FIVE = "reward_funcs: [int_reward_func]\n"
OWN_WORDS = PromptFormat("\nMine,\nat length.")
REPLACED = [  # an edit of HYPERPARAMETERS, a recipe, flags, and what is said to be replaced by what
    ({"reward_funcs": [mine]}, FIVE, "", "recipe.yaml replaces the script's own: mine"),
    ({"reward_funcs": ["int_reward_func"]}, "reward_funcs: [judge_reward_func]\n", "", "own: int_reward_func"),
    ({"reward_funcs": [mine]}, FIVE, "--reward_funcs int_reward_func", "the flag replaces the script's own: mine"),
    ({"reward_funcs": [mine]}, "beta: 0.5\n", "", None),
    ({"reward_funcs": ["int_reward_func"]}, FIVE, "", None),
    ({}, FIVE, "", None),  # nothing was edited
    ({"judge": mine}, "judge: null\n", "", "own: mine"),
    ({"prepare": mine}, "beta: 0.5\n", "--prepare none", "the flag replaces the script's own: mine"),
    ({"dataset_name": "mine.csv"}, "dataset_name: other.csv\n", "", "own: mine.csv"),
    ({"dataset_name": [{"question": "1?", "answer": "1"}]}, "", "--dataset_name a.csv", "own: rows of the script"),
    ({}, "", "--dataset_name a.csv", None),
    ({"system_prompt": "Mine."}, "system_prompt: null\n", "", "own: Mine."),
    ({"prompt_format": "think"}, "", "--prompt_format xml", "the flag replaces the script's own: think"),
    ({"prompt_format": OWN_WORDS}, "", "--prompt_format xml", "the flag replaces the script's own: Mine, at length."),
    (
        {"prompt_format": OWN_WORDS},
        "prompt_format: {chat: false}\n",
        "",
        "recipe.yaml replaces the script's own: Mine, at length.",
    ),
    ({"prompt_format": OWN_WORDS}, "answer_pattern: boxed\n", "", None),
    ({}, "prompt_format: think\n", "--num_shots 1", None),
    (
        {},
        "num_shots: 1\nexemplars: [{question: One, reasoning: '1.', answer: 1}]\n",
        "",
        "own: What is the largest single-digit prime number?",
    ),
    ({}, "exemplars: [{question: One, reasoning: '1.', answer: 1}]\n", "", None),  # none is shown
    ({"answer_pattern": "hash"}, "answer_pattern: boxed\n", "", "own: hash"),
]


@pytest.mark.parametrize(("edit", "text", "flags", "said"), REPLACED)
def test_what_replaces_an_edit_of_the_block_is_said(edit, text, flags, said, tmp_path):
    path = recipe(tmp_path, text or "seed: 1\n")
    notes = configure(INLINE | edit, ["--config", path, *CPU, *flags.split()]).notes
    found = [note.finding for note in notes if note.name in TASK_SETTINGS]
    assert len(found) == (said is not None) and all(finding.endswith(said) for finding in found)


def test_a_format_may_bring_its_exemplars(tmp_path):
    fields = "prompt_format: {system: 'Mine.', exemplars: [{question: One, reasoning: '1.', answer: 1}]}\n"
    config = configure(INLINE, ["--config", recipe(tmp_path, f"num_shots: 1\n{fields}"), *CPU])
    assert config.script.exemplars == [("One", "1.", "1")] and config.origin["exemplars"] == "recipe"
    assert config.settings()["prompt_format"] == {"system": "Mine."}
    with pytest.raises(UserError, match=r"^exemplars: prompt_format has others, from the same place; drop one"):
        configure(INLINE, ["--config", recipe(tmp_path, f"exemplars: []\n{fields}"), *CPU])
    shot = '{"question": "2?", "reasoning": "2.", "answer": "2"}'
    assert configure(INLINE, ["--num_shots", "1", "--exemplars", shot, *CPU]).script.exemplars == [("2?", "2.", "2")]


def test_the_scripts_prompt_is_recorded_by_its_name_until_it_is_edited():
    assert configure(INLINE, CPU).settings()["prompt_format"] == "xml"
    edited = dataclasses.replace(INLINE["prompt_format"], system="Mine.")
    assert configure(INLINE | {"prompt_format": edited}, CPU).settings()["prompt_format"]["system"] == "Mine."


def test_a_number_in_python_stays_a_number(monkeypatch):
    asked = []
    monkeypatch.setattr(Parser, "_get_value", lambda self, action, text: asked.append(action.dest) or text)
    numbers = {"learning_rate": 3e-7, "max_steps": 7, "bf16": False, "warmup_steps": 2, "reward_weights": [1, 2.5]}
    settings = merge(INLINE | numbers, CPU).settings
    assert {key: settings[key] for key in numbers} == numbers and type(settings["warmup_steps"]) is float
    assert not {*numbers} & {*asked}


@pytest.mark.parametrize(
    "edit",
    [{"max_steps": 1.5}, {"max_steps": True}, {"learning_rate": True}, {"bf16": 3}, {"seed": "x"}, {"beta": 10**400}],
)
def test_a_value_of_another_type_is_one_line(edit):
    (key,) = edit
    with pytest.raises(UserError, match=f"^{key}: .*(invalid|Truthy|not a finite number)"):
        configure(INLINE | edit, CPU)


def test_the_directory_of_your_own_data_names_them(tmp_path):
    """A flag, HYPERPARAMETERS, a recipe or Python may give the data; two tasks of one model do not mix."""
    path = recipe(tmp_path, "dataset_name: conversions.csv\n")
    rows = datasets.Dataset.from_dict({"question": ["1 + 1?"], "answer": ["2"]})
    for found, name in [
        (configure(INLINE, CPU), "Qwen-1.5B-GRPO"),
        (configure(INLINE, [*CPU, "--dataset_name", "conversions.csv"]), "Qwen-1.5B-GRPO-conversions"),
        (configure({**INLINE, "dataset_name": "conversions.csv"}, CPU), "Qwen-1.5B-GRPO-conversions"),
        (configure(INLINE, ["--config", str(path), *CPU]), "Qwen-1.5B-GRPO-conversions"),
        (configure(INLINE, ["--config", "demo"], rows), "demo-GRPO-rows-in-memory"),
    ]:
        assert output_of(found) == Path("outputs") / name


@pytest.mark.parametrize("argv", [["--config", "demo"], ["--config=recipes/demo.yaml"]])
@pytest.mark.parametrize("directory", [ROOT, "."])  # anywhere, as a printed command is copied
def test_a_shipped_recipe_is_found_by_its_name_or_path(argv, directory, monkeypatch):
    monkeypatch.chdir(directory)
    assert merge(INLINE, argv).settings["run_name"] == "demo"


def test_paths_in_the_script_are_paths():
    model = ROOT / "assets" / "demo" / "model"
    Path("r.jsonl").write_text("{}\n")
    named = {key: Path("r.jsonl") for key in ("dataset_name", "eval_dataset_name")}
    config = configure(INLINE | named | {"model_name_or_path": model, "output_dir": Path("out")}, CPU)
    assert (config.script.dataset_name, config.script.eval_dataset_name) == ("r.jsonl", "r.jsonl")
    assert (config.model.model_name_or_path, output_of(config)) == (str(model), Path("out"))


def test_none_needs_a_meaning_and_a_missing_line_has_its_default():
    with pytest.raises(UserError, match=r"^num_shots: it needs a value"):
        configure(INLINE | {"num_shots": None}, CPU)
    with_flag = configure(INLINE | {"num_shots": None}, ["--num_shots", "1", *CPU])
    assert (with_flag.script.num_shots, with_flag.origin["num_shots"]) == (1, "flag")
    assert configure({key: INLINE[key] for key in INLINE if key != "num_shots"}, CPU).script.num_shots == 0


CHECKPOINTING = "gradient_checkpointing"


@pytest.mark.parametrize(
    ("inline", "text", "flags", "expected"),
    [
        ({}, "", [], (True, "machine")),  # on until preflight decides
        ({CHECKPOINTING: None}, "", [], (True, "machine")),
        ({CHECKPOINTING: True}, "", [], (True, "script")),
        ({CHECKPOINTING: False}, "", [], (False, "script")),
        ({}, "gradient_checkpointing: false", [], (False, "recipe")),
        ({}, "gradient_checkpointing: false", ["--gradient_checkpointing", "none"], (True, "machine")),
        ({CHECKPOINTING: False}, "gradient_checkpointing: null", [], (True, "machine")),
        ({}, "standalone: true", [], (True, "machine")),
        ({}, "", ["--gradient_checkpointing"], (True, "flag")),
        ({}, "", ["--gradient_checkpointing", "false"], (False, "flag")),
    ],
    ids=str,
)
def test_gradient_checkpointing_is_left_to_the_run_or_set(inline, text, flags, expected, tmp_path):
    """TRL gets true or false."""
    if text:
        flags = ["--config", recipe(tmp_path, f"{text}\nmodel_name_or_path: {ROOT}/assets/demo/model\n"), *flags]
    block = {key: value for key, value in INLINE.items() if key != CHECKPOINTING}
    config = configure(block | inline, [*flags, "--use_cpu", "true", "--report_to", "none"])
    assert (config.training.gradient_checkpointing, config.origin[CHECKPOINTING]) == expected
    assert config.checkpointing_is_open == (expected[1] == "machine")


def test_transformers_newer_name_decides_on_checkpointing_too():
    if "activation_checkpointing" not in Parser().settings:
        pytest.skip("transformers before 5.23")
    for asked in (True, False):
        config = configure(INLINE, [*CPU, "--activation_checkpointing", str(asked).lower()])
        assert config.training.gradient_checkpointing is asked and not config.checkpointing_is_open


SLIPS = {  # words of the error
    "--lr 1": "learning_rate?",
    "--batch_size 1": "per_device_train_batch_size?",
    "--num_generation 1": "num_generations?",  # no abbreviation is taken
    "--torch-dtype bfloat16": "dtype?",
    "--lora_rank 8": "lora_r?",
    "--max_response_length 9": "max_completion_length?",
    "--dataset_prompt_column problem": "question_column?",
    "--optim adam": "adamw_torch",
    "--chat_template_kwargs {bad": "chat_template_kwargs:",
    "--config dmeo": "a100_x2, all_weights_16gb, countdown",
    "--config demo --config math": "more than one recipe",
    "--config": "config:",
    "--seed": "seed:",
    "--report_to tensorboard wandb": "'wandb' follows no flag; write --report_to tensorboard,wandb",
    "--report_to none --report_to wandb trackio": "write --report_to wandb,trackio",
    "--system_prompt Be brief": "'brief' follows no flag; write settings as --flag value, a text",
    "--reward_funcs a_reward,another": "reward_funcs: separate its values by spaces: --reward_funcs a_reward another",
    "--reward_funcs [a_reward, another]": "by spaces: --reward_funcs a_reward another",
    "--reward_funcs=['a_reward','another']": "by spaces: --reward_funcs a_reward another",
    "--reward-weights 1,0.5": "by spaces: --reward_weights 1 0.5",
    "--lora_target_modules q_proj,v_proj": "by spaces: --lora_target_modules q_proj v_proj",
    "--debug [underflow_overflow,tpu_metrics_debug]": "by spaces: --debug underflow_overflow tpu_metrics_debug",
    "demo": "--config demo",
    "--wandb_api_key=aB3aB3": "--wandb_api_key: no such flag",
    "--hub_token aB3aB3": "hub_token:",
}


@pytest.mark.parametrize("words", SLIPS)
def test_a_slip_is_answered_with_what_was_meant(words, capsys):
    assert train_grpo.main(words.split()) == 2
    shown = "".join(capsys.readouterr())
    assert SLIPS[words] in shown and "aB3" not in shown


BROKEN = {  # a recipe: words of the error
    "beta: 0.1\n\tseed: 3\n": "config:",
    "learning_rate:": "learning_rate:",
    "bf16: perhaps": "bf16:",
    "max_steps: {a: 1}": "max_steps:",
    "hub_token: aB3aB3": "hub_token:",
    "reward_funcs: a, b": "reward_funcs: 'a, b' is one text; write a list: [a, b]",
    "reward_weights: '1 2'": "reward_weights: '1 2' is one text; write a list: [1, 2]",
    "lora_target_modules: [q_proj v_proj]": "lora_target_modules: 'q_proj v_proj' is one text",
    "seed: 1\nbeta: 0.1\nseed: 2": "config:",  # YAML itself takes the last one
    "model_init_kwargs: {dtype: auto, dtype: float32}": "config:",
}


@pytest.mark.parametrize("key", ["seed", "dtype", "prompt_format"])
def test_a_key_that_a_recipe_has_twice_is_named(key, tmp_path, capsys):
    nested = "model_init_kwargs:\n  dtype: auto\n  dtype: auto\n" if key == "dtype" else f"{key}: 1\n{key}: 1\n"
    assert train_grpo.main(["--config", recipe(tmp_path, nested)]) == 2
    assert f"it has {key!r} twice; drop one of them" in capsys.readouterr().err


def test_a_list_setting_takes_patterns(capsys):
    """Of `lora_target_modules` one value may be a regular expression, with commas and brackets."""
    for pattern in (r"model\.layers\.[0-9]+\.(q|v)_proj", r".*\.[0-9]{1,2}\.q_proj", "all-linear"):
        config = configure(INLINE, [*CPU, "--use_peft", "true", "--lora_target_modules", pattern])
        assert config.model.lora_target_modules in (pattern, [pattern])


@pytest.mark.parametrize("text", BROKEN)
def test_a_broken_recipe_names_the_key(text, tmp_path, capsys):
    assert train_grpo.main(["--config", recipe(tmp_path, text)]) == 2
    shown = "".join(capsys.readouterr())
    assert f"error: {BROKEN[text]}" in shown and "aB3" not in shown


def test_rows_in_memory_and_a_data_set_by_name_are_refused(capsys):
    assert train_grpo.main(["--dataset-name", "foo.csv"], dataset=[]) == 2
    assert "error: dataset_name:" in capsys.readouterr().err


def test_rows_that_the_script_made_are_the_data_unless_others_are_named(tmp_path):
    rows = datasets.Dataset.from_dict({"question": ["1 + 1?"], "answer": ["2"]})
    edited, path = INLINE | {"dataset_name": rows}, recipe(tmp_path, "dataset_name: recipe.csv\n")
    config = configure(edited, CPU)
    assert config.rows is rows and output_of(config) == Path("outputs/Qwen-1.5B-GRPO-rows-of-the-script")
    assert started(config)["launcher"] == "python"  # whose script makes them again
    for flags, name in ((["--config", path], "recipe.csv"), (["--dataset_name", "mine.csv"], "mine.csv")):
        config = configure(edited, [*flags, *CPU])
        assert config.rows is None and config.script.dataset_name == name
    passed = [{"question": "2 + 2?", "answer": "4"}]
    config = configure(edited, ["--config", path, *CPU], passed)
    assert config.rows is passed and started(config)["launcher"] is None  # no command passes them


def test_help_all_has_every_setting_once(capsys):
    with pytest.raises(SystemExit) as left:
        merge(INLINE, ["--help_all"])
    assert not left.value.code
    text = capsys.readouterr().out
    flags = re.findall(r"^  --(?!no_)(\w+)", text, re.MULTILINE)
    assert sorted(flags) == sorted([*Parser().settings, "config", "help_all"])
    assert "this project:\n" in text and "GRPOConfig (TRL):\n" in text


def test_held_out_rows_come_with_the_data_or_from_a_file():
    rows = datasets.Dataset.from_list([{"question": "?", "answer": "1"}])
    for table in (rows, rows.to_pandas()):
        with pytest.raises(UserError, match=r"^eval_dataset_name: a .* is not a name; .* DatasetDict"):
            merge({**INLINE, "eval_dataset_name": table}, CPU)
    both = datasets.DatasetDict({"train": rows, "test": rows})
    config = configure({**INLINE, "dataset_name": both}, CPU)
    splits = dataset.read_source(config)
    assert len(splits["train"]) == len(dataset.read_held_out(config, splits) or []) == 1


@pytest.mark.parametrize("end, run_end", [("", ""), ("-2", "-2"), ("-mine", ""), ("s", "")])
def test_only_a_number_of_the_default_directory_is_in_the_runs_name(end, run_end):
    usual = configure(INLINE, CPU)
    config = configure(INLINE, [*CPU, "--output_dir", f"{usual.default_dir}{end}"])
    task = registry.make_task(config)
    run = choose_run(config, task, registry.load_rewards(config, task))
    assert run.args.run_name == f"{usual.training.run_name}{run_end}"


def test_none_switches_off_what_a_recipe_names(tmp_path):
    path = recipe(tmp_path, "judge: mine.f\nprepare: mine.g\n")
    config = configure(INLINE, ["--config", path, "--judge", "none", "--prepare", "none", *CPU])
    assert config.script.judge is config.script.prepare is None


def test_no_run_changes_its_configuration(tiny_run, monkeypatch):
    """A new run, one in the next free directory, and a resumed one."""
    kept = []

    def configured(*given):
        config = configure(*given)
        kept.append((config, state(config)))
        return config

    def state(config):
        return pickle.dumps([config.settings(), config.origin, config.notes, config.argv])

    monkeypatch.setattr(train_grpo, "configure", configured)
    monkeypatch.setattr(train_grpo, "RunTrainer", lambda **_: pytest.fail("this far"))
    flags = tiny_run(output_dir=None, run_name=None, max_steps="1", eval_samples="2")
    Path("outputs/Tiny-60K-GRPO-rows").mkdir(parents=True)
    Path("outputs/Tiny-60K-GRPO-rows/run.json").write_text("{}")
    for more in ([], ["--eval_only", "true"], ["--resume_from_checkpoint", "auto"]):
        with contextlib.suppress(pytest.fail.Exception):
            train_grpo.main([*flags, *more])
    for config, before in kept:
        assert state(config) == before
    with pytest.raises(dataclasses.FrozenInstanceError):
        kept[0][0].notes = ()
