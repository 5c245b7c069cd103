"""Chat templates that begin the completion: what the model writes is scored, evaluated and shown after it."""

import json
import shutil
from pathlib import Path

import pytest
from helpers_runs import DEMO
from transformers import AutoTokenizer

import train_grpo
from grpo.__main__ import main as tool
from grpo.task import prompts
from grpo.task.prompts import THINK, XML
from rewards import has_soft_format, has_strict_format

MESSAGES = "{% for m in messages %}<|im_start|>{{ m['role'] + '\n' + m['content'] }}<|im_end|>\n{% endfor %}"
# As R1's distills end, and Qwen3, which closes an empty thought where it is not to think
R1 = MESSAGES + "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
QWEN3 = (
    MESSAGES + "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)


@pytest.fixture
def model(tmp_path):
    """The demo's model with another chat template; its directory."""

    def with_template(template):
        place = tmp_path / "model"
        shutil.copytree(DEMO / "model", place, dirs_exist_ok=True)
        (place / "chat_template.jinja").write_text(template)
        return str(place)

    return with_template


@pytest.mark.parametrize(
    ("template", "kwargs", "prefill"),
    [
        (R1, {}, "<think>\n"),
        (QWEN3, {}, ""),
        (QWEN3, {"enable_thinking": False}, "<think>\n\n</think>\n\n"),
    ],
)
def test_what_a_rendered_prompt_begins_is_found(model, template, kwargs, prefill):
    tokenizer = AutoTokenizer.from_pretrained(model(template))
    prompt = prompts.rendered(THINK.prompt("2 + 2?"), tokenizer, kwargs)
    assert prompts.prefilled(prompt, THINK.completion) == prefill
    if prefill:
        whole = prefill + "2 + 2 = 4\n</think>\n<answer>4</answer>\n" * ("</" not in prefill)
        assert has_strict_format(whole, THINK.completion) == ("</" not in prefill)
        assert has_soft_format(prefill + "<answer>4</answer>", THINK.completion) == ("</" in prefill)
    assert prompts.prefilled(prompt, XML.completion) == ""  # that format has no such tag


def argv(model, **flags):
    usual = {
        "config": "demo_think", "model_name_or_path": model, "max_steps": "2", "eval_samples": "16",
        "output_dir": "run", "report_to": "none", "warmup_steps": "0",
    }  # fmt: skip
    return [word for key, value in (usual | flags).items() for word in (f"--{key}", value)]


@pytest.mark.slow
def test_a_run_scores_evaluates_and_shows_whole_completions(model, capsys):
    flags = argv(model(R1), reward_funcs="soft_format_reward_func")
    assert train_grpo.main([*flags, "--dry_run", "true"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "with which completions are scored and shown" in shown
    assert train_grpo.main(flags) == 0
    records = [json.loads(line) for line in Path("run/completions_before.jsonl").read_text().splitlines()]
    assert all(record["completion"].startswith("<think>\n") for record in records)
    summary = json.loads(Path("run/eval_before.json").read_text())
    assert summary["format_strict"] > 0.2  # 0 if the tag that the template writes were missing
    logs = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    assert all(line["rewards/soft_format_reward_func/mean"] > 0.1 for line in logs if "reward" in line)
    assert json.loads(Path("run/run.json").read_text())["prompt"]["prefill"] == "<think>\n"
    capsys.readouterr()
    assert tool(["ask", "run", "What is 3 + 4?"]) == 0
    assert "answers:\n\n<think>\n" in capsys.readouterr().out
