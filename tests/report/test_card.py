"""The model card is TRL's with the verdict, the results, the rewards, a link and no path of this machine."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from helpers_report import change, write_run
from huggingface_hub import ModelCard
from markdown_it import MarkdownIt
from trl.trainer.utils import generate_model_card

from grpo.core.text import printable
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


# --- Markdown and HTML of others


class Rendered(HTMLParser):
    """A card as a page: its elements with their attributes, and its text outside of code."""

    def __init__(self, markdown):
        super().__init__()
        self.elements, self.open, self.words, self.text = [], [], "", ""
        self.feed(MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(markdown))
        self.text = " ".join(self.text.split())

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.elements += [(tag, attrs)] if tag != "code" else []  # any text may be shown as code

    def handle_endtag(self, tag):
        self.open.remove(tag)

    def handle_data(self, data):
        self.text += data
        self.words += data if not {"code", "a"} & set(self.open) else " "

    def handle_comment(self, data):
        raise AssertionError(data)


HOSTILE = [
    "![x](http://127.0.0.1:9/p.png) <img src=http://127.0.0.1:9/q>", "[a](javascript:alert) [b][1] [1]: http://h/",
    "<b>", "</strong></p><script>alert(1)</script>", "<!-- hidden", "`code` ``more`` ```",
    "**bold** *a* _b_ __c__ ~~d~~", "a | b | c", "http://evil.example", "https://evil.example/`a`",
    "www.evil.example", "WWW.x", "me@evil.example", "ftp://x", "evil.example", "<http://evil.example>",
    "mailto:me@evil.example", "&lt;b&gt; &#60;b&#62; &amp;", "# heading", "- item", "1. item", "2) item", "> quote",
    "---", "===", "+ x", "* * *", "    code", "\tcode", "\\", "\\*a\\*", "\\[a](b)", "a\\", "!",
    "x\n\n# heading\n\n- item\n\n<b>", "x\r\r<b>\r", "x\n```\n<b>\n```\n", "x\n---\nbase_model: y\n---\n",
    "$x$ $$y$$ \\(z\\)", "[^1] [x] [!NOTE]", "\x1b[31mred\u202e", "`", "``", "_", "*", "a`", "`a", "<", "&", "]", "[",
    "\u2028# x", "<a\nhref=x>", "```sh", "~~~", "a\\`b`", "`\\`<b>`", "http://a`<img src=x>`", "&#x3c;b>", "a_b_c",
    "_a_b", "<![CDATA[x]]>", "<?x?>", "|", "\\|", "| - |",
]  # fmt: skip


def card_of(run, text):
    """The card of a run with this text wherever one of a user, a model or a file may be."""
    write_run(run, text)
    change(run, "comparison.json", sentence=text, diagnosis=[text, f"{text} amid {text}"])
    rewards = json.loads((run / "run.json").read_text())["settings"]
    rewards |= {"reward_funcs": [text, f"own.{text}"], "model_name_or_path": text, "dataset_name": text}
    sessions = [{"from_step": 3, "changed": [text, text]}]
    change(run, settings=rewards | {"metric_for_best_model": text}, sessions=sessions, status=text, best_step=24)
    names = dict(hub_model_id=f"your-name/{model_card.hub_name(text)}", dataset_name=None, trainer_name="GRPO")
    stock = generate_model_card(text, model_name=text, tags=[text], wandb_url=None, trackio_url=None, **names)
    stock.save(run / "README.md")
    model_card.complete(run, 24)
    return ModelCard.load(run / "README.md")


LINKED = re.compile(r"(?i)://|www\.|\w@\w|evil\.")  # by renderers of GitHub's Markdown, outside of code


@pytest.mark.parametrize("text", HOSTILE)
def test_texts_of_others_are_shown_as_they_are(text, tmp_path):
    card, plain = card_of(tmp_path / "run", text), card_of(tmp_path / "plain", "plain words")
    page, usual = Rendered(card.text), Rendered(plain.text)
    link = ("a", [("href", f"https://huggingface.co/{text}")])  # a name of the Hub, in TRL's part
    assert [each for each in page.elements if each != link] == usual.elements
    line = printable(" ".join(text.split()))
    assert f"Likely cause: {line} amid {line}." in page.text and f"Model Card for {line}" in page.text
    assert not LINKED.search(page.words) and (link in page.elements) == model_card.is_hub_id(text)
    assert card.data.to_dict().keys() - {"base_model"} == plain.data.to_dict().keys()
    assert card.data.model_name == text and card.data.get("base_model") == (text if link in page.elements else None)


@pytest.mark.parametrize("text", HOSTILE)
def test_a_text_is_markdown_wherever_it_stands(text):
    line = printable(" ".join(text.split()))
    for before, after in (("", ""), ("a ", " b"), ("(", ")"), ("- ", ""), ("x\n", "\ny")):
        for shown in (model_card.markdown(text), model_card.code_span(text)):
            page = Rendered(before + shown + after)
            assert [tag for tag, _ in page.elements] == (["ul", "li"] if before == "- " else ["p"])
            assert line in page.text and not LINKED.search(page.words)


def test_ordinary_sentences_stay_readable():
    for text in (
        "It got better: 50.0 % (+12.5 points, p = 0.5).",
        "raise learning_rate or max_steps",
        "Qwen-1.5B-GRPO",
    ):
        assert model_card.markdown(text) == text
