"""grpo/core/redaction.py: secrets are masked wherever they are, and nothing else is; text for terminals is escaped."""

import re

import pytest
from helpers_runs import examples
from helpers_texts import ANY_TEXT
from hypothesis import given
from hypothesis import strategies as st

from grpo.core import redaction
from grpo.core.errors import UserError
from grpo.runs import record as records

TOKENS = {  # what it is: as it may stand in a text, and what of it must not be seen
    "user and password": ("https://me:s3cret-pw@host.example/data?x=1", "s3cret-pw"),
    "token": ("https://host.example/data.jsonl?token=s3cret-pw", "s3cret-pw"),
    "amazon": ("https://b.example/d?X-Amz-Date=2&X-Amz-Signature=s3cretpw&X-Amz-Credential=AB%2F1", "s3cretpw"),
    "hugging face": ("hf_" + "aB3" * 12, "aB3aB3"),
    "openai": ("sk-proj-" + "aB3_" * 12, "aB3_aB3"),
    "github": ("ghp_" + "aB3" * 12, "aB3aB3"),
    "aws": ("AKIA" + "ABCD" * 4, "ABCDABCD"),
}
HARMLESS = [
    "https://host.example/data?page=2&split=train",
    "openai/gsm8k",
    "2e59ed2f10e276edf419cc3b941a7b4c9f4a87a3",  # a commit, like a W&B key of 40 digits
    "--pack_tokens=2048",
    "outputs/Qwen-1.5B-GRPO",
]
VARIABLES = ["HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "MY_SECRET", "SMTP_PASSWORD", "GCP_CREDENTIALS"]


@pytest.mark.parametrize("kind", TOKENS)
def test_a_token_is_masked_wherever_it_is(kind):
    text, secret = TOKENS[kind]
    assert redaction.holds_key(text)
    for value in (text, f"see {text}, please", {"a": [{text: text}]}, (1, [text])):
        assert secret not in str(redaction.mask(value)) and redaction.MASK in str(redaction.mask(value))
    assert "host.example" in redaction.mask(text) or "host" not in text  # what is no secret stays
    error = UserError(f"it says:\n  {text}")
    assert secret not in str(error) and "\n" not in str(error)


@pytest.mark.parametrize("text", HARMLESS)
def test_what_is_no_secret_stays(text):
    assert redaction.mask({"a": [text]}) == {"a": [text]} and not redaction.holds_key(text)


@pytest.mark.parametrize("name", VARIABLES)
def test_values_of_variables_named_like_keys_are_masked(name, monkeypatch):
    monkeypatch.setenv(name, "planted.value/1")
    assert redaction.mask("with planted.value/1 in it") == "with *** in it"


@pytest.mark.parametrize("name", ["TOKENIZERS_PARALLELISM", "MONKEY_NAME", "NUM_TOKENS"])
def test_other_variables_are_not_masked(name, monkeypatch):
    monkeypatch.setenv(name, "planted.value/1")
    assert redaction.mask("planted.value/1") == "planted.value/1"


def test_a_secret_within_another_leaves_nothing_of_it(monkeypatch):
    monkeypatch.setenv("A_TOKEN", "abcdefgh")
    monkeypatch.setenv("B_TOKEN", "abcdefgh-and-more")
    assert redaction.mask("x abcdefgh-and-more y abcdefgh") == "x *** y ***"


def test_a_flag_like_a_key_is_masked_and_others_are_not():
    harmless = ["--pack_tokens", "2048", "--pack_tokens=2048", "--include_num_input_tokens_seen", "all"]
    assert records.command_line(harmless) == "train_grpo.py " + " ".join(harmless)  # or it could not be repeated


# --- Any text

SECRET = st.from_regex(r"[A-Za-z0-9]{24,40}", fullmatch=True).filter(lambda text: re.search(r"[0-9]", text))


@examples(200)
@given(
    ANY_TEXT,
    SECRET,
    ANY_TEXT,
    st.sampled_from(["hf_{}", "sk-{}", "https://u:{}@h/", "ftp://{}@h", "http://h/?a=1&token={}", "h?x-sig={}"]),
)
def test_no_key_survives_masking_and_masking_is_idempotent(before, secret, after, form):
    text = f"{before} {form.format(secret)} {after}"
    masked = redaction.mask(text)
    assert (
        secret not in masked
        and redaction.holds_key(text)
        and not redaction.holds_key(masked.replace(redaction.MASK, ""))
    )
    assert redaction.mask(masked) == masked


@examples(200)
@given(st.text(max_size=60))
def test_printable_text_steers_no_terminal_and_loses_nothing(text):
    shown = redaction.printable(text)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]", shown)
    assert redaction.printable(shown) == shown and len(shown) >= len(text)
    if text.isprintable():
        assert shown == text
