"""grpo/tools/merge.py: a merged adapter answers as the adapter does, and nothing half-written looks like a model."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from helpers_commands import command
from helpers_runs import DEMO, ROOT
from safetensors.torch import load_file
from transformers import PreTrainedTokenizerFast, pipeline
from transformers.utils import logging

from grpo.__main__ import main
from grpo.runs import directory
from grpo.task.prompts import XML
from grpo.tools.merge import merge

QUESTION = "Ada has 12 pens. Ben gives Ada 7 more. How many pens does Ada have now?"


@pytest.fixture
def adapter_run(learned_adapter):
    """A LoRA run whose adapter matters, in `run`."""
    return learned_adapter.copy()


def greedy(directory):
    generate = pipeline("text-generation", model=str(directory), dtype=torch.float32)
    prompt = XML.prompt(QUESTION)
    return generate(prompt, max_new_tokens=24, do_sample=False, return_full_text=False)[0]["generated_text"]


def test_a_merged_adapter_answers_as_the_adapter_does(adapter_run, capfd):
    assert main(["merge", "run"]) == 0
    assert "Saved in run/merged" in capfd.readouterr().out
    merged = adapter_run / "merged"
    assert not (merged / "adapter_config.json").exists() and (adapter_run / "adapter_model.safetensors").exists()
    assert greedy(merged) == greedy(adapter_run) != greedy(DEMO / "model")
    weights, start = load_file(merged / "model.safetensors"), load_file(DEMO / "model" / "model.safetensors")
    changed = {name for name in start if not torch.equal(weights[name], start[name])}
    assert len(changed) == 4 * 7 and all("_proj" in name for name in changed)
    assert {weight.dtype for weight in weights.values()} == {torch.bfloat16}  # the base model's


@pytest.mark.slow
def test_a_merge_prints_one_line(adapter_run, monkeypatch):
    """No bar and no library's warning; pytest hides those of its own process."""
    monkeypatch.delenv("DS_ACCELERATOR")
    done = command("-m", ["grpo", "merge", "run"], PYTHONPATH=str(ROOT))
    assert (done.returncode, done.stdout, done.stderr) == (0, "Saved in run/merged\n", "")


def test_a_merged_model_has_its_prompt(adapter_run, capfd):
    logging.enable_progress_bar()
    assert main(["merge", "run"]) == 0
    assert capfd.readouterr() == ("Saved in run/merged\n", "")  # no progress bars
    record, merged = (json.loads(path.joinpath("run.json").read_text()) for path in (adapter_run, Path("run/merged")))
    assert (merged["prompt"], merged["shots"]) == (record["prompt"], record["shots"])
    assert merged.keys() == {"status", "prompt", "shots", "settings"} and len(merged["settings"]) == 4
    assert directory.newest_finished() is None  # it is not a run


def test_a_merged_model_without_a_prompt_says_so(adapter_run, capfd):
    """Of an adapter that no run of ours has trained."""
    (adapter_run / "run.json").unlink()
    assert main(["merge", "run", "--output", "elsewhere"]) == 0
    assert main(["ask", "elsewhere", QUESTION]) == 2
    assert "no file has the prompt of 'elsewhere'" in capfd.readouterr().err


def test_a_checkpoint_is_merged(adapter_run):
    assert main(["merge", "run/checkpoint-2", "--output", "elsewhere"]) == 0
    assert Path("elsewhere/run.json").exists()


def test_a_moved_run_serves_every_tool(adapter_run, tmp_path, monkeypatch, capfd):
    """Another directory, another working directory, and a base model that was named from the repository's."""
    adapter = json.loads((adapter_run / "adapter_config.json").read_text())
    assert Path(adapter["base_model_name_or_path"]) == DEMO / "model"
    relative = adapter | {"base_model_name_or_path": str((DEMO / "model").relative_to(ROOT))}
    (adapter_run / "adapter_config.json").write_text(json.dumps(relative))
    moved = tmp_path / "far" / "moved"
    shutil.copytree(adapter_run, moved.with_name("second"))
    shutil.move(adapter_run, moved)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for words in (
        ["ask", str(moved), QUESTION], ["report", str(moved)], ["xray", str(moved)], ["merge", str(moved)],
        ["compare", str(moved), "../far/second"], ["ask", str(moved / "merged"), QUESTION],
    ):  # fmt: skip
        assert main(words) == 0, capfd.readouterr().err
    assert list(Path.cwd().iterdir()) == []


def test_nothing_is_written_over(adapter_run, capfd):
    assert main(["merge", "run", "--output", "first"]) == 0
    assert sorted(path.name for path in Path.cwd().iterdir()) == ["first", "run"]
    assert main(["merge", "run", "--output", "first"]) == 2 and "'first' exists" in capfd.readouterr().err
    assert main(["merge", str(DEMO / "model")]) == 2 and "is not an adapter" in capfd.readouterr().err


def test_an_interrupted_merge_leaves_nothing_like_a_model(adapter_run, monkeypatch):
    def full(*args, **kwargs):
        raise OSError("No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(PreTrainedTokenizerFast, "save_pretrained", full)
        with pytest.raises(OSError, match="No space"):
            merge(adapter_run, adapter_run / "merged")
    assert not (adapter_run / "merged").exists()
    merge(adapter_run, adapter_run / "merged")
    assert (adapter_run / "merged").is_dir() and not (adapter_run / "merged.partial").exists()
