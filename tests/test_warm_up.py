"""examples/warm_up.py: solutions of training questions alone, right by the run's judge; a model that a run takes."""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from helpers_runs import DEMO, ROOT, ROWS, TINY, examples, flags
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from transformers import AutoTokenizer

import train_grpo
from examples import warm_up
from grpo.config.configure import configure
from grpo.core.errors import UserError
from grpo.data.dataset import load_data
from grpo.policy.loading import load_tokenizer
from grpo.policy.templates import fit_to_template
from grpo.scoring.registry import make_task

BRACKETS = """
prompt_format: {system: "End in [[...]].", completion: "{reasoning}\\n[[{answer}]]\\n", pattern: "[[{answer}]]"}
"""
FORMATS = {  # flags of a format, and a solution of 2 + 2 in it
    "xml": ([], "<reasoning>\n2 + 2 = 4\n</reasoning>\n<answer>\n4\n</answer>\n"),
    "think": (["--prompt_format", "think"], "<think>\n2 + 2 = 4\n</think>\n<answer>4</answer>\n"),
    "boxed": (["--answer_pattern", "boxed"], "2 + 2 = 4\n\\boxed{4}\n"),
    "own": (["--config", "brackets.yaml"], "2 + 2 = 4\n[[4]]\n"),
    "text": (["--answer_pattern", "text"], "4"),
}
THINKS = (  # as the templates of models that always think
    "{% for m in messages %}<|im_start|>{{ m['role'] + '\n' + m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)


def of_run(data, **changes):
    """The flags of a run on the demo's model and these rows, of which none is held out."""
    own = {"model_name_or_path": str(DEMO / "model"), "dataset_name": data, "max_completion_length": "64"}
    return flags(**TINY | own | {"eval_samples": "0"} | changes)


def solved(argv):
    """What a warm-up with these flags trains on, the counts of the other rows, the tokenizer and the run's data."""
    config = configure(train_grpo.HYPERPARAMETERS, argv)
    task, tokenizer = fit_to_template(make_task(config), load_tokenizer(config), config.template_kwargs)
    data = load_data(config, task, tokenizer, ["the test"])
    return *warm_up.solutions(config, task, tokenizer, data), tokenizer, data


@pytest.mark.parametrize("name", FORMATS)
def test_a_solution_is_right_in_the_runs_format(name, rows_file):
    more, wanted = FORMATS[name]
    Path("brackets.yaml").write_text(BRACKETS)
    found, dropped, _, data = solved([*of_run(rows_file), *more])
    assert len(found) == len(data.train) == len(ROWS) and not dropped
    assert wanted in {sample.text for _, sample in found if sample.question == "What is 2 + 2?"}
    assert all(sample.verdict.strict and sample.format.strict is not False for _, sample in found)


def test_all_rows_of_the_demo_are_solved():
    found, dropped, _, data = solved(of_run(str(DEMO / "train.jsonl")))
    assert len(found) == len(data.train) == 2000 and not dropped


@pytest.mark.parametrize("template", [None, THINKS], ids=["demo", "that begins the completion"])
def test_a_solution_continues_the_runs_prompt_and_ends(template, rows_file, tmp_path):
    model = shutil.copytree(DEMO / "model", tmp_path / "model")
    if template:
        (model / "chat_template.jinja").write_text(template)
    found, dropped, tokenizer, data = solved(
        [*of_run(rows_file, model_name_or_path=str(model)), "--prompt_format", "think"]
    )
    assert len(found) == len(ROWS) and not dropped
    for (prompt, sample), row in zip(found, data.train, strict=True):
        asked = tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, tokenize=False)
        written = tokenizer.decode(sample.ids)
        assert tokenizer.decode(prompt) == asked and asked.endswith("<think>\n") == bool(template)
        assert written.startswith("<think>\n") != bool(template) and written.endswith(tokenizer.eos_token)
        assert sample.ids.count(tokenizer.eos_token_id) == 1


@given(st.sets(st.integers(2, 99), min_size=8, max_size=40), st.integers(1, 20))
@examples(15)
def test_held_out_questions_are_never_trained_on(tmp_path_factory, numbers, count):
    place = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    rows = [{"question": f"What is {n} + 1?", "answer": f"{n} + 1 = {n + 1}\n#### {n + 1}"} for n in sorted(numbers)]
    place.write_text("".join(json.dumps(row) + "\n" for row in [*rows, *rows[:3]]), encoding="utf-8")
    found, _, _, data = solved(of_run(str(place), eval_samples=str(count)))
    trained, held_out = {sample.question for _, sample in found}, set(data.held_out["question"])
    assert trained and held_out and not trained & held_out
    assert trained | held_out == {row["question"] for row in rows}


def test_rows_that_cannot_be_solved_are_counted(write_jsonl, monkeypatch):
    def no_nines(text, row):
        return "9" not in text

    monkeypatch.setitem(train_grpo.HYPERPARAMETERS, "judge", no_nines)
    rows = [
        {"question": "2 + 2?", "answer": "2 + 2 = 4\n#### 4"},
        {"question": "2 + 3?", "answer": "#### 5"},
        {"question": "2 + 4?", "answer": f"{'2 + 4 = 6 ' * 30}\n#### 6"},
        {"question": "4 + 5?", "answer": "4 + 5 = 9\n#### 9"},
    ]
    found, dropped, *_ = solved(of_run(write_jsonl(rows)))
    assert [sample.question for _, sample in found] == ["2 + 2?"] and set(dropped.values()) == {1}
    assert len(dropped) == 3
    found, dropped, *_ = solved([*of_run(write_jsonl(rows)), "--answer_pattern", "text"])  # without reasoning
    assert len(found) == 3 and len(dropped) == 1


# --- The model


def trained(capsys, *argv):
    """Warm up; return the model's directory and the words of the command that was printed."""
    assert warm_up.main(list(argv)) == 0, capsys.readouterr().err
    where, command = re.search(
        r"^Saved in (.*)\. The run: python (.*)$", capsys.readouterr().out, re.MULTILINE
    ).groups()
    return Path(where), shlex.split(command)


@pytest.mark.parametrize("lora", [{}, {"use_peft": "true", "lora_r": "4"}], ids=["all weights", "LoRA"])
def test_the_model_is_the_next_runs_and_follows_from_the_seed(lora, rows_file, capsys):
    argv = [*of_run(rows_file, **lora, output_dir=None), "--sft_steps", "2"]
    first, (script, *words) = trained(capsys, *argv)
    assert str(first) == "outputs/demo-warm-up-rows" and script.endswith("train_grpo.py")
    again, other = (trained(capsys, *argv, "--output_dir", f"m{n}", "--seed", n)[0] for n in ("42", "7"))
    name = "adapter_model.safetensors" if lora else "model.safetensors"
    assert (first / name).read_bytes() == (again / name).read_bytes() != (other / name).read_bytes()
    assert not list(first.glob("*.bin"))
    assert words[-2:] == ["--model_name_or_path", str(first)] and "--sft_steps" not in words
    assert train_grpo.main([*words, "--dry_run", "true"]) == 0
    weights = load_file(first / name)
    before = load_file(DEMO / "model" / name) if not lora else {}
    assert all(
        key.endswith("lora_A.weight") or not weight.equal(before.get(key, 0 * weight))
        for key, weight in weights.items()
    )


def test_only_the_solution_is_learned_at_the_runs_settings(rows_file, monkeypatch):
    def catch(model, args, collator, table, **options):
        seen.update(args=args, table=table)
        raise UserError("caught")

    seen = {}
    monkeypatch.setattr(warm_up, "SFTTrainer", catch)
    with pytest.raises(UserError, match="caught"):
        warm_up.run([*of_run(rows_file, learning_rate="1e-4", seed="5"), "--output_dir", "m", "--sft_steps", "9"])
    args, tokenizer = seen["args"], AutoTokenizer.from_pretrained(DEMO / "model")
    assert (args.learning_rate, args.max_steps, args.seed, args.max_length) == (pytest.approx(5e-4), 9, 5, None)
    assert args.per_device_train_batch_size == int(TINY["per_device_train_batch_size"]) and args.report_to == []
    for row in seen["table"]:
        learned = [label for label in row["labels"] if label != -100]
        assert row["input_ids"][-len(learned) :] == learned and learned[-1] == tokenizer.eos_token_id
        assert tokenizer.decode(learned).startswith("<reasoning>\n")


def test_a_dry_run_shows_a_solution_and_writes_nothing(rows_file, capsys):
    assert warm_up.main([*of_run(rows_file, output_dir=None), "--dry_run", "true"]) == 0
    shown = capsys.readouterr().out
    assert "40 solutions in 40 training rows; 0 questions held out" in shown and "</answer>" in shown
    assert not Path("outputs").exists()


def test_a_script_of_ones_own_is_warmed_up(rows_file, capsys):
    text = (ROOT / "train_grpo.py").read_text(encoding="utf-8")
    Path("my_words.py").write_text(text.replace("Respond in the following", "Reply in this"), encoding="utf-8")
    argv = ["--script", "my_words.py", *of_run(rows_file, output_dir=None), "--dry_run", "true"]
    assert warm_up.main(argv) == 0
    assert "Reply in this" in capsys.readouterr().out


MISTAKES = {  # flags: what the line says
    "--sft_steps 0": "sft_steps 0, sft_learning_rate 0.005: both must be above 0",
    "--sft_steps x": "--sft_steps: invalid int value: 'x'",
    "--sft_learning_rate -1": "sft_learning_rate -1: both",
    "--sft_step 3": "sft_step",
    "--learning_rate x": "learning_rate",
    "--script nope.py": "script: 'nope.py' does not exist",
    "--eval_only true --eval_samples 9": "no eval_only",
    "--resume_from_checkpoint auto": "no resume",
    "--output_dir mine": "output_dir: 'mine' is not a run's directory",
    "--output_dir run": "output_dir: 'run' is not empty; use another name, or delete it",
    "--dataset_name plain.jsonl": "answer_column: 'answer' has 0 solutions in 40 training rows; 40 have no worked sol",
    "--max_completion_length 4": "40 are longer than max_completion_length; name a column",
    "--answer_column nope": "answer_column: training data",
    "--model_name_or_path ./nope": "model_name_or_path: the directory './nope' does not exist",
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_and_status_2(mistake, rows_file, write_jsonl, learned, capfd):
    write_jsonl([{**row, "answer": row["answer"].rpartition(" ")[2]} for row in ROWS], "plain.jsonl")
    shutil.copytree(learned.path, "run")
    Path("mine").mkdir()
    Path("mine/thesis.tex").touch()
    before = sorted(Path().rglob("*"))
    assert warm_up.main([*of_run(rows_file, output_dir="new"), *mistake.split()]) == 2
    error = capfd.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1 and MISTAKES[mistake] in error, error
    assert sorted(Path().rglob("*")) == before


def test_a_recipes_directory_stays_the_runs(rows_file, capfd):
    Path("own.yaml").write_text("output_dir: mine\n")
    Path("mine-warm-up").mkdir()
    Path("mine-warm-up/thesis.tex").touch()
    assert warm_up.main(["--config", "own.yaml", *of_run(rows_file, output_dir=None)]) == 2
    assert "output_dir: 'mine-warm-up' is not a run's directory" in capfd.readouterr().err


@pytest.mark.slow
def test_a_model_that_never_writes_the_format_learns_it(capsys):
    argv = [
        "--config",
        "demo",
        "--answer_pattern",
        "hash",
        "--eval_samples",
        "50",
        "--per_device_train_batch_size",
        "16",
    ]
    model, _ = trained(capsys, *argv, "--sft_learning_rate", "1e-3")
    shares = []
    for name in (str(DEMO / "model"), str(model)):
        out = f"eval-{len(shares)}"
        assert train_grpo.main([*argv, "--eval_only", "true", "--model_name_or_path", name, "--output_dir", out]) == 0
        shares.append(json.loads(Path(out, "eval_only.json").read_text())["format_strict"])
    assert shares[0] == 0 and shares[1] > 0.5
