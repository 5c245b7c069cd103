"""The model card is TRL's with the verdict, the results, the rewards and no path of this machine."""

import json
from pathlib import Path

import pytest
from helpers_report import write_run
from huggingface_hub import ModelCard
from trl.trainer.utils import generate_model_card

from grpo.runs import model_card

BASE = "Qwen/Qwen2.5-0.5B-Instruct"


@pytest.fixture
def complete(tmp_path):
    """Complete the card of a run with these settings, as TRL writes it, and read it."""

    def complete(base=BASE, stages=(), **settings):
        run = write_run(tmp_path / "run")
        record = json.loads((run / "run.json").read_text())
        record["settings"] |= {"reward_funcs": ["int_reward_func", "own.brevity"], **settings}
        (run / "run.json").write_text(json.dumps(record | {"stages": stages}))
        nowhere = dict.fromkeys(("hub_model_id", "dataset_name", "wandb_url", "trackio_url"))
        stock = generate_model_card(base_model=base, model_name="run", tags=["trl"], trainer_name="GRPO", **nowhere)
        stock.save(run / "README.md")
        model_card.complete(run)
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
    assert text.index("## Results") < text.index("## Quick start") < text.index("## Citations")


def test_local_files_are_no_hub_ids_and_their_paths_stay_here(complete, tmp_path):
    rows = tmp_path / "rows.csv"
    rows.touch()
    card = complete(None, dataset_name=[str(rows), "rows in memory", "openai/gsm8k:main"])
    assert card.data.base_model is None and card.data.datasets == ["openai/gsm8k"]
    assert "a local model" in card.text and "- Data: `rows.csv`" in card.text and "openai/gsm8k:main" in card.text
    assert str(tmp_path) not in card.content and "None" not in card.content


def test_an_adapter_is_loaded_by_peft(complete):
    assert complete().data.library_name == "transformers"
    Path("run/adapter_config.json").write_text("{}")
    assert complete().data.library_name == "peft"


def test_each_stage_has_its_rewards(complete):
    card = complete(stages=[{"name": "format", "reward_funcs": ["int_reward_func"], "reward_weights": [2.0]}])
    assert "- format: `int` × 2" in card.text
