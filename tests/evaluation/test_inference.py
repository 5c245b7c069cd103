"""grpo/evaluation/inference.py: a saved run answers a question as it was trained to, and its adapter can be merged."""

import dataclasses
import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from helpers_runs import DEMO, LEARNS
from safetensors.torch import load_file
from transformers import AutoTokenizer, pipeline

import train_grpo
from grpo.config.resolve import resolve
from grpo.core.errors import UserError
from grpo.evaluation import inference

QUESTION = "Ada has 12 pens. Ben gives Ada 7 more. How many pens does Ada have now?"


def settings():
    return resolve(train_grpo.HYPERPARAMETERS, ["--merge_only", "run", "--dtype", "float32"])


@pytest.fixture
def adapter_run(learned_adapter):
    """A LoRA run whose adapter matters, in `run`."""
    return learned_adapter.copy()


@pytest.fixture
def thinking():
    """The record of a run on another prompt format, as plain text, with a worked example, beside the demo's model."""
    shutil.copytree(DEMO / "model", "run")
    style = dataclasses.replace(train_grpo.PROMPT_FORMATS["think"], chat=False)
    record = {"prompt": dataclasses.asdict(style), "shots": train_grpo.EXEMPLARS[:1]}
    Path("run/run.json").write_text(json.dumps(record))
    return style


def greedy(directory):
    generate = pipeline("text-generation", model=str(directory), dtype=torch.float32)
    prompt = train_grpo.PROMPT_FORMATS["xml"].prompt(QUESTION)
    return generate(prompt, max_new_tokens=24, do_sample=False, return_full_text=False)[0]["generated_text"]


def test_a_merged_adapter_answers_as_the_adapter_does(adapter_run):
    merged = adapter_run / "merged"
    assert not (merged / "adapter_config.json").exists() and (adapter_run / "adapter_model.safetensors").exists()
    assert greedy(merged) == greedy(adapter_run) != greedy(DEMO / "model")
    weights, start = load_file(merged / "model.safetensors"), load_file(DEMO / "model" / "model.safetensors")
    changed = {name for name in start if not torch.equal(weights[name], start[name].float())}
    assert len(changed) == 4 * 7 and all("_proj" in name for name in changed)


def test_merge_only_merges_or_names_what_is_missing(adapter_run, capfd):
    (adapter_run / "merged").rename("first")
    assert train_grpo.main(["--merge_only", "run"]) == 0  # in the run's dtype
    assert "Saved in run/merged" in capfd.readouterr().out
    first, second = load_file("first/model.safetensors"), load_file("run/merged/model.safetensors")
    assert first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
    Path("run/merged/old").touch()
    assert train_grpo.main(["--merge_only", "run"]) == 2 and "run/merged" in capfd.readouterr().err
    inference.merge(settings(), "run", replace=True)  # as a resumed run does
    assert not Path("run/merged/old").exists()
    with pytest.raises(UserError, match="is not an adapter"):
        inference.merge(settings(), str(DEMO / "model"))


def test_an_interrupted_merge_leaves_nothing_like_a_model(adapter_run, monkeypatch):
    from transformers import PreTrainedTokenizerFast

    (adapter_run / "merged").rename("first")

    def full(*args, **kwargs):
        raise OSError("No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(PreTrainedTokenizerFast, "save_pretrained", full)
        with pytest.raises(OSError, match="No space"):
            inference.merge(settings(), "run")
    assert not (adapter_run / "merged").exists()
    assert inference.merge(settings(), "run").is_dir() and not (adapter_run / "merged.partial").exists()


def test_a_question_is_asked_and_its_answer_read(capfd):
    assert train_grpo.main(["--ask", QUESTION, "--model_name_or_path", str(DEMO / "model")]) == 0
    shown = capfd.readouterr().out
    assert shown.startswith(f"{DEMO / 'model'} answers:") and "<reasoning>" in shown and "Answer: 19" in shown
    assert list(Path.cwd().iterdir()) == []


def test_ask_without_a_model_takes_the_newest_finished_run():
    for name, status in (("old", "finished"), ("new", "finished"), ("evaluation", "evaluated"), ("killed", "running")):
        directory = Path("outputs", name)
        shutil.copytree(DEMO / "model", directory)
        (directory / "run.json").write_text(json.dumps({"status": status}))
    os.utime("outputs/old/run.json", (1, 1))
    assert resolve(train_grpo.HYPERPARAMETERS, ["--ask", QUESTION]).model_name == "outputs/new"


def test_a_question_goes_with_the_flags_of_any_run():
    flags = ["--num_generations", "3", "--save_strategy", "no", "--save_steps", "3", "--use_vllm", "true"]
    flags += ["--optim", "adamw_8bit", "--resume_from_checkpoint", "auto", "--adaptive_rewards", "none_such"]
    config = resolve(train_grpo.HYPERPARAMETERS, ["--ask", QUESTION, "--model_name_or_path", "run", *flags])
    assert config.model_name == "run" and not config.training.use_vllm
    config = resolve(train_grpo.HYPERPARAMETERS, ["--ask", QUESTION, "--output_dir", "mine", *flags])
    assert config.model_name == "mine"
    with pytest.raises(UserError, match="num_generations: 1 is out of range"):
        resolve(train_grpo.HYPERPARAMETERS, ["--ask", QUESTION, "--num_generations", "1"])


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("<answer>\n7\n</answer>\n", "Answer: 7"),
        ("<answer></answer>", "Answer: empty"),
    ],
)
def test_an_answer_is_what_stands_in_its_tag(text, read, monkeypatch):
    tokenizer = AutoTokenizer.from_pretrained(DEMO / "model")
    ids = tokenizer.encode(text)
    monkeypatch.setattr(inference.sampling, "answer", lambda *_, **__: [(ids, False)])
    config = resolve(train_grpo.HYPERPARAMETERS, ["--ask", QUESTION, "--model_name_or_path", "run"])
    model = SimpleNamespace(device=torch.device("cpu"))
    shown = inference.answer(config, model, tokenizer, train_grpo.PROMPT_FORMATS["xml"], [])
    assert shown.endswith(f"\n\n{read}") and shown.startswith(text.strip())


def test_a_saved_run_is_asked_in_its_own_format(thinking, monkeypatch):
    asked = []
    tokenize = inference.tokenize
    monkeypatch.setattr(
        inference, "tokenize", lambda prompts, *args: asked.extend(prompts) or tokenize(prompts, *args)
    )
    assert train_grpo.main(["--ask", QUESTION, "--model_name_or_path", "run"]) == 0
    assert asked[0].startswith("<problem>\nWhat is the largest single-digit prime") and asked[0].count("<think>") == 1
    assert asked[0].endswith(f"<problem>\n{QUESTION}\n</problem>\n")


def test_what_belongs_to_a_run_has_the_runs_prompts(thinking, learned_adapter, tmp_path):
    for place in ("run", "run/merged", "run/checkpoint-2"):
        assert inference.prompting(place) == (thinking, [train_grpo.EXEMPLARS[0]])
    assert inference.prompting(str(learned_adapter.path)) == (train_grpo.PROMPT_FORMATS["xml"], [])
    assert inference.prompting(str(tmp_path)) is None and inference.prompting("some/model") is None


def test_an_evaluation_on_other_prompts_is_warned_of(thinking, tiny_run, capfd):
    again = {**LEARNS, "model_name_or_path": "run", "output_dir": "eval", "eval_only": "true", "eval_samples": "2"}
    assert train_grpo.main(tiny_run(**again)) == 0
    shown = " ".join(capfd.readouterr().out.split())
    assert "run was trained on other prompts: '<problem>" in shown and "its own prompt_format" in shown
    asked = {"prompt_format": "think", "use_chat_template": "false", "num_shots": "1", "output_dir": "other"}
    assert train_grpo.main(tiny_run(**{**again, **asked})) == 0
    assert "other prompts" not in capfd.readouterr().out


def test_a_record_that_cannot_be_read_is_a_mistake(tmp_path):
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(UserError, match=r"run\.json' is not a run's record"):
        inference.prompting(str(tmp_path))


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["--ask", "2 + 2?", "--model_name_or_path", "./nowhere"], "./nowhere"),
        (["--ask", "2 + 2?"], "ask: no finished run in outputs/"),
        (["--ask", "2 + 2?", "--merge_only", "run"], "ask and merge_only each"),
    ],
)
def test_what_cannot_be_done_is_one_line(argv, named, capfd):
    assert train_grpo.main(argv) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("error: ") and named in line
