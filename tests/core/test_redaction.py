"""grpo/core/redaction.py: secrets are masked wherever they are, and nothing else is."""

import pytest

from grpo.core import redaction
from grpo.core.errors import UserError
from grpo.runs import record as records

TOKENS = {  # what it is: as it may stand in a text, and what of it must not be seen
    "user and password": ("https://me:s3cret-pw@host.example/data?x=1", "s3cret-pw"),
    "token as a user": ("https://s3cret-pw@host.example/data", "s3cret-pw"),
    "password with an @": ("https://me:s3cret@pw@host.example/data", "s3cret"),
    "database": ("see postgres://admin:s3cret-pw@db:5432/rows now", "s3cret-pw"),
    "token": ("https://host.example/data.jsonl?token=s3cret-pw", "s3cret-pw"),
    "api key": ("https://host.example/data.jsonl?page=2&api_key=s3cret-pw&size=3", "s3cret-pw"),
    "apikey": ("https://host.example/?apiKey=s3cret-pw", "s3cret-pw"),
    "amazon": ("https://b.example/d?X-Amz-Date=2&X-Amz-Signature=s3cretpw&X-Amz-Credential=AB%2F1", "s3cretpw"),
    "amazon, older": ("https://b.example/d?AWSAccessKeyId=s3cretpw&Expires=1", "s3cretpw"),
    "google": ("https://b.example/d?X-Goog-Signature=s3cretpw", "s3cretpw"),
    "azure": ("https://b.example/d?sv=2&sig=s3cret%2Fpw%3D", "s3cret"),
    "fragment": ("https://host.example/#access_token=s3cret-pw", "s3cret-pw"),
    "hugging face": ("hf_" + "aB3" * 12, "aB3aB3"),
    "openai": ("sk-proj-" + "aB3_" * 12, "aB3_aB3"),
    "anthropic": ("sk-ant-api03-" + "aB3-" * 12, "aB3-aB3"),
    "github": ("ghp_" + "aB3" * 12, "aB3aB3"),
    "github, fine": ("github_pat_" + "aB3_" * 12, "aB3_aB3"),
    "gitlab": ("glpat-" + "aB3-" * 6, "aB3-aB3"),
    "aws": ("AKIA" + "ABCD" * 4, "ABCDABCD"),
    "slack": ("xoxb-1234567890-abcdef", "1234567890"),
}
HARMLESS = [
    "https://host.example/data?page=2&split=train",
    "openai/gsm8k",
    "s3://bucket/key/token.jsonl",
    "write to me@host.example",
    "2e59ed2f10e276edf419cc3b941a7b4c9f4a87a3",  # a commit, like a W&B key of 40 digits
    "--pack_tokens=2048",
    "max_tokens=5&top_k=3",
    "risk-averse-and-rather-long-name-of-a-run-2",
    "outputs/Qwen-1.5B-GRPO",
    "What is 3 * (2 + 4)? <|im_start|>",
]
VARIABLES = [
    *("HF_TOKEN", "HF_TOKEN_2", "TOKEN", "WANDB_API_KEY", "OPENAI_APIKEY", "AWS_SECRET_ACCESS_KEY", "MY_SECRET"),
    *("SECRET_KEY_BASE", "SMTP_PASSWORD", "PGPASSWORD", "MYSQL_PWD", "GITHUB_PAT", "GCP_CREDENTIALS", "CREDENTIAL"),
]


@pytest.mark.parametrize("kind", TOKENS)
def test_a_token_is_masked_wherever_it_is(kind):
    text, secret = TOKENS[kind]
    assert redaction.holds_key(text)
    for value in (text, f"see {text}, please", {"a": [{text: text}]}, (1, [text])):
        assert secret not in str(redaction.mask(value)) and redaction.MASK in str(redaction.mask(value))
    assert "host.example" in redaction.mask(text) or "host" not in text  # what is no secret stays
    error = UserError(f"it says:\n  {text}")
    assert secret not in str(error) and "\n" not in str(error)
    assert secret not in records.command_line(["--run_name", text, f"--ask={text}"])


@pytest.mark.parametrize("text", HARMLESS)
def test_what_is_no_secret_stays(text):
    assert redaction.mask({"a": [text]}) == {"a": [text]} and not redaction.holds_key(text)


@pytest.mark.parametrize("name", VARIABLES)
def test_values_of_variables_named_like_keys_are_masked(name, monkeypatch):
    monkeypatch.setenv(name, "planted.value/1")
    assert redaction.mask("with planted.value/1 in it") == "with *** in it"


@pytest.mark.parametrize("name", ["TOKENIZERS_PARALLELISM", "MONKEY_NAME", "KEYBOARD", "NUM_TOKENS", "PATH_TO_X"])
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
