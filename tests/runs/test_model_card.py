"""The model card is TRL's with the verdict, the results, the rewards and no path of this machine."""

import json
import re
from pathlib import Path

import pytest
from helpers_report import write_run
from huggingface_hub import ModelCard
from trl.trainer.utils import generate_model_card

from grpo.runs import model_card
from grpo.task.prompts import PromptFormat

BASE = "Qwen/Qwen2.5-0.5B-Instruct"


@pytest.fixture
def complete(tmp_path):
    """Complete the card of a run with these settings, as TRL writes it, and read it."""

    def complete(base=BASE, stages=(), record=(), step=None, files=(), **settings):
        run = write_run(tmp_path / "run")
        for name, changed in dict(files).items():
            (run / name).write_text(json.dumps(json.loads((run / name).read_text()) | changed))
        record = json.loads((run / "run.json").read_text()) | dict(record)
        record["settings"] |= {"reward_funcs": ["int_reward_func", "own.brevity"], **settings}
        (run / "run.json").write_text(json.dumps(record | {"stages": stages}))
        nowhere = dict.fromkeys(("hub_model_id", "dataset_name", "wandb_url", "trackio_url"))
        stock = generate_model_card(base_model=base, model_name="run", tags=["trl"], trainer_name="GRPO", **nowhere)
        stock.save(run / "README.md")
        model_card.complete(run, step)
        return ModelCard.load(run / "README.md")

    return complete


def test_the_card_says_what_was_learned_and_from_what(complete):
    card = complete(reward_weights=[1.0, 0.25])
    assert card.data.base_model == BASE and card.data.datasets == ["openai/gsm8k"] and "trl" in card.data.tags
    text = card.text
    assert "Too small to tell: plain." in text and "it hardly moved plain; raise learning_rate." in text
    assert "| Accuracy, lenient | 50.0 (43.8 to 56.2) | 62.5 (56.2 to 68.8) | +12.5 (−25.0 to +43.8) |" in text
    assert "`int` × 1, `own.brevity` × 0.25" in text
    assert "    Respond so:\n    ```\n    plain" in text  # indented: its fence opens none
    assert "A perfect completion:\n\n    plain\n" in text
    assert text.index("## Results") < text.index("## Quick start") < text.index("## Citations")


def test_local_files_are_no_hub_ids_and_their_paths_stay_here(complete, tmp_path):
    rows = tmp_path / "rows.csv"
    rows.touch()
    for name, shown in ((str(rows), "rows.csv"), ("rows in memory", "rows in memory")):
        card = complete(None, dataset_name=name)
        assert card.data.base_model is None and card.data.datasets is None
        assert "a local model" in card.text and f"- Data: `{shown}`" in card.text
        assert str(tmp_path) not in card.content and "None" not in card.content
    assert complete(None, dataset_name="openai/gsm8k:main").data.datasets == ["openai/gsm8k"]


def test_an_adapter_is_loaded_by_peft(complete):
    assert complete().data.library_name == "transformers"
    Path("run/adapter_config.json").write_text("{}")
    assert complete().data.library_name == "peft"


def test_each_stage_has_its_rewards(complete):
    card = complete(stages=[{"name": "format", "reward_funcs": ["int_reward_func"], "reward_weights": [2.0]}])
    assert "- format: `int` × 2" in card.text


# --- The quick start


def asked(card):
    """What a card's block of code asks, and how."""
    calls = []

    def generator(*given, **options):
        calls.append((*given, options))
        return [{"generated_text": "42"}]

    (code,) = re.findall(r"(?s)```python\n(.*?)\n```", card.text)
    loading, code = code.split("\n", 1)
    assert loading == "from transformers import pipeline"
    exec(code, {"pipeline": lambda *_, **__: generator, "print": str})
    return calls[0]


SHOTS = [["1 + 1?", "easy\n", "2"], ["What stands for a question is {question}", "", "3"]]
LONG = "Answer, and say nothing else: " * 9


@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize("question", ["{question}", "<q>\n'{question}'\n```\n</q>\n", f"{LONG}\n{{question}}\n{LONG}"])
@pytest.mark.parametrize(("system", "shots"), [("", []), ("Write ```\nas here: {question}", SHOTS), (LONG, SHOTS)])
def test_the_quick_start_asks_as_the_run_does(complete, chat, question, system, shots):
    kept = PromptFormat(system, question, "{reasoning}<a>{answer}</a>", opening=system, chat=chat)
    prompt, options = asked(complete(record={"asked": kept.prompt("{question}", shots)}, max_completion_length=99))
    assert prompt == kept.prompt("question 0 plain", shots)  # a held-out one
    assert options == {"max_new_tokens": 99, "do_sample": False, "return_full_text": False}


def test_the_quick_start_passes_what_the_chat_template_got_and_no_question_of_private_data(complete, tmp_path):
    _, options = asked(complete(chat_template_kwargs={"enable_thinking": False}))
    assert options["tokenizer_encode_kwargs"] == {"enable_thinking": False}
    (tmp_path / "rows.csv").touch()
    for private in ({"dataset_name": str(tmp_path / "rows.csv")}, {"eval_dataset_name": str(tmp_path / "rows.csv")}):
        card = complete(**private)
        assert "your question" in asked(card)[0][-1]["content"] and "question 0" not in card.text


# --- What it says of an end


def test_the_card_of_an_early_end_says_its_step_and_no_earlier_result(complete):
    earlier = {name: {"step": 24} for name in ("eval_after.json", "comparison.json")}
    text = complete(record={"step": 16, "status": "ended early at step 16 of 24"}, files=earlier).text
    assert "- Optimizer steps: 16 (ended early at step 16 of 24)" in text
    assert "| Before |" in text and "After" not in text and "Too small to tell" not in text


def test_the_card_in_a_checkpoint_says_the_checkpoints_step(complete):
    """The last log may be older, and a later one may have been written."""
    assert "- Optimizer steps: 23 (running)" in complete(record={"status": "running"}, step=23).text


def test_each_reward_is_in_the_table_before_and_after(complete):
    changed = {"n": 8, "before": 0.25, "after": 1.0, "difference": 0.75, "difference_low": 0.5, "difference_high": 1.0}
    means = {f"eval_{when}.json": {"reward_int_reward_func": changed[when]} for when in ("before", "after")}
    text = complete(files=means | {"comparison.json": {"rewards": {"int_reward_func": changed}}}).text
    assert "| int | 0.25 | 1.00 | +0.75 (+0.50 to +1.00) |" in text
