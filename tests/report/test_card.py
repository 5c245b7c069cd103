"""The model card is TRL's with the verdict, the results, the rewards, a link and no path of this machine."""

import json
from pathlib import Path

import pytest
from helpers_report import change, write_run
from huggingface_hub import ModelCard
from trl.trainer.utils import generate_model_card

from grpo.report import card as model_card

BASE = "Qwen/Qwen2.5-0.5B-Instruct"


@pytest.fixture
def complete(tmp_path):
    """Complete the card of a run with these settings, as TRL writes it, and read it."""

    def complete(record=(), step=24, files=(), **settings):
        run = write_run(tmp_path / "run")
        for name, values in dict(files).items():
            change(run, name, **values)
        kept = json.loads((run / "run.json").read_text())["settings"]
        settings = kept | {"reward_funcs": ["int_reward_func", "own.brevity"]} | settings
        change(run, **dict(record), settings=settings)
        named = dict(model_name="run", hub_model_id="your-name/run", dataset_name=None, trainer_name="GRPO")
        stock = generate_model_card(BASE, tags=["trl"], wandb_url=None, trackio_url=None, **named)
        stock.save(run / "README.md")
        model_card.complete(run, step)
        card = ModelCard.load(run / "README.md")
        begin, *_, end = stock.text.rstrip().split("## Training procedure")  # as TRL wrote them
        assert card.text.startswith(begin) and end in card.text
        return card, card.text.partition(end)[2]

    return complete


def test_the_card_says_what_was_learned_and_from_what(complete):
    card, section = complete(reward_weights=[1.0, 0.25])
    assert card.data.base_model == BASE and "trl" in card.data.tags
    assert "Too small to tell: plain." in section and "it hardly moved plain; raise learning_rate." in section
    assert "| Accuracy, lenient | 50.0 (43.8 to 56.2) | 62.5 (56.2 to 68.8) | +12.5 (−25.0 to +43.8) |" in section
    assert "`int` × 1, `own.brevity` × 0.25" in section
    assert "Prompt:\n\n    Respond so:\n    ```\n    plain\n" in section and "completion:\n\n    plain\n" in section
    assert section.endswith("the rewards: [report.html](report.html).") and "| max_steps" not in section


def test_paths_of_this_machine_stay_here(complete, tmp_path):
    (rows := tmp_path / "rows.csv").touch()
    (model := tmp_path / "model").mkdir()
    card, section = complete(dataset_name=str(rows), model_name_or_path=str(model), output_dir=str(tmp_path / "run"))
    assert "- Data: `rows.csv`" in section and "- Base model: `model`, a local directory" in section
    assert str(tmp_path) not in card.content


def test_an_adapter_is_loaded_by_peft(complete):
    assert complete()[0].data.library_name == "transformers"
    Path("run/adapter_config.json").write_text("{}")
    assert complete()[0].data.library_name == "peft"


# --- What it says of an end


def test_the_card_in_a_checkpoint_says_the_checkpoints_step(complete):
    """The last log may be older, and a later one may have been written."""
    assert "- Optimizer steps: 23 (running)" in complete(record={"status": "running"}, step=23)[1]


def test_trl_writes_its_part_with_names_that_exist(learned):
    text = (learned.path / "README.md").read_text()
    stock, _, section = text.partition("## Results")
    assert 'model="your-name/run"' in stock and "None" not in stock
    assert (
        "a fine-tuned version of `model`." in stock and "prompt of its training" in stock.partition("## Training p")[0]
    )
    assert "a local directory" in section and "[report.html]" in section
