"""One comparison says what differs between runs, sessions and processes, and what that means."""

import pytest
from helpers_checkpoints import make_checkpoint

from grpo.core.processes import UNSHARDED
from grpo.core.settings import CHECKPOINT, LEARNING, LENGTH, MEASURE, NOTHING, SETTINGS
from grpo.runs import checkpoints, facts
from grpo.runs.differences import between_processes, compare

PARTS = {"system prompt": "1", "exemplars": "2", "code of date_exact": "3", "rest of the script": "4"}
# A setting or a part, and what another value or hash of it means
MEANINGS = [
    ("save_steps", NOTHING), ("output_dir", NOTHING), ("eval_split", MEASURE), ("max_steps", LENGTH),
    ("learning_rate", LEARNING), ("dataset_name", LEARNING), ("system_prompt", LEARNING), ("seed", CHECKPOINT),
    ("held-out questions", MEASURE), ("code of date_exact", LEARNING), ("tokens of the prompts", LEARNING),
    ("question template", CHECKPOINT), ("weights to begin with", CHECKPOINT),
]  # fmt: skip


def with_value(label, value):
    return {"settings" if label in SETTINGS else "sources": {label: value}}


@pytest.mark.parametrize(("label", "means"), MEANINGS)
def test_a_difference_has_one_of_five_meanings(label, means):
    (difference,) = compare(with_value(label, "1"), with_value(label, "2"))
    assert (difference.label, difference.means) == (label, means)
    assert str(difference) == (f"{label} 1 → 2" if label in SETTINGS else f"the {label}")


def test_other_rows_make_a_checkpoint_unusable():
    (difference,) = compare({"data": "1"}, {"data": "2"})
    assert (str(difference), difference.means) == ("the rows", CHECKPOINT)


def test_what_one_of_them_lacks_is_no_difference():
    then = {"settings": {"removed": 1}, "sources": {"exemplars": "1"}}
    assert compare(then, {"settings": {"added": 2}, "data": "3"}) == compare({}, then) == compare(then, {}) == []


@pytest.mark.parametrize(
    ("cause", "follower"),
    [("exemplars", "tokens of the prompts"), ("held-out questions", "tokens of the prompts"),
     ("model_name_or_path", "tokens of the prompts"), ("dtype", "weights to begin with"),
     ("code of date_exact", "rest of the script")],
)  # fmt: skip
def test_what_another_difference_changes_anyway_is_not_listed(cause, follower):
    then, now = ({"settings": {}, "sources": {follower: value}} for value in "12")
    assert [one.label for one in compare(then, now)] == [follower]
    for values, value in ((then, "1"), (now, "2")):
        values["settings" if cause in SETTINGS else "sources"][cause] = value
    assert [one.label for one in compare(then, now)] == [cause]


def test_a_number_format_changes_no_tokens():
    then, now = ({"settings": {"dtype": value}, "sources": {facts.TOKENS: value}} for value in "12")
    assert [one.label for one in compare(then, now)] == ["dtype", facts.TOKENS]


# --- The processes of one run

FACTS = {
    "settings": {
        **{"learning_rate": 1e-5, "seed": 42, "output_dir": "a", "save_steps": 10, "report_to": ["wandb"]},
        **{"dataset_name": "a.csv", "eval_dataset_name": "c.csv", "per_device_eval_batch_size": 4, "local_rank": 0},
        "dataloader_num_workers": 0,
    },
    "sources": PARTS | {facts.TOKENS: "b", facts.HELD_OUT: "c", facts.WEIGHTS: "e"},
    **{"data": "a", "sharding": UNSHARDED, "checkpoint": None, "commit": "d" * 40},
    "versions": {"torch": "2.13.0", "vllm": "0.9", "python": "3.11.7"},
}
# What one process has that the first has not, and what is said of it
DISAGREEMENTS = [
    ({}, ""),
    ({"settings": {"learning_rate": 1e-3}}, "learning_rate (0.001 instead of 1e-05)"),
    ({"settings": {"seed": 7, "save_steps": 5}}, "seed (7 instead of 42), save_steps (5 instead of 10)"),
    ({"settings": {"output_dir": "b", "report_to": [], "local_rank": 1}}, ""),
    ({"settings": {"dataset_name": "b.csv", "eval_dataset_name": "d.csv"}}, ""),  # of the same rows
    ({"data": "x", "settings": {"dataset_name": "b.csv"}}, "dataset_name (b.csv instead of a.csv), the rows"),
    ({"sources": {facts.TOKENS: "x"}}, "the tokens of the prompts"),
    ({"sources": {facts.HELD_OUT: "x"}, "settings": {"eval_dataset_name": "d.csv"}}, "the held-out questions"),
    ({"sources": {facts.WEIGHTS: "x"}}, "the weights to begin with"),
    ({"sources": {"code of date_exact": "x", "rest of the script": "y"}}, "the code of date_exact"),
    ({"sources": {"rest of the script": "y"}}, "the rest of the script"),
    ({"sharding": "DeepSpeed ZeRO-2"}, "sharding (DeepSpeed ZeRO-2 instead of no sharding)"),
    ({"checkpoint": "checkpoint-4"}, "checkpoint (checkpoint-4 instead of None)"),
    ({"commit": "e" * 40}, f"commit ({'e' * 40} instead of {'d' * 40})"),
    ({"commit": ""}, ""),  # without git
    ({"versions": {"torch": "2.12.0"}}, "torch (2.12.0 instead of 2.13.0)"),
    ({"versions": {"torch": "2.13.0+cu128", "python": "3.11.9"}}, ""),  # builds of one release
    ({"versions": {"python": "3.12.7"}}, "python (3.12 instead of 3.11)"),
    ({"settings": {"per_device_eval_batch_size": 2}}, "per_device_eval_batch_size (2 instead of 4)"),
    ({"settings": {"dataloader_num_workers": 2}}, ""),
]


@pytest.mark.parametrize(("other", "said"), DISAGREEMENTS)
def test_processes_say_in_what_they_differ_from_the_first(other, said):
    own = {key: value | other.get(key, {}) if isinstance(value, dict) else value for key, value in FACTS.items()}
    own |= {key: value for key, value in other.items() if not isinstance(value, dict)}
    assert between_processes(FACTS, own) == said


def test_a_version_that_one_process_lacks_is_a_difference():
    own = FACTS | {"versions": {"torch": "2.13.0", "python": "3.11.7"}}
    assert between_processes(FACTS, own) == "vllm (None instead of 0.9)"
    assert between_processes(own, FACTS) == "vllm (0.9 instead of None)"


def test_a_checkpoint_of_the_same_name_is_told_apart():
    first, second, copied = (
        make_checkpoint(run, 4, **state) for run, state in (("a", {}), ("b", {"epoch": 2}), ("c", {}))
    )
    assert checkpoints.identity(first) == checkpoints.identity(copied) != checkpoints.identity(second)


def test_a_seal_holds_what_processes_compare(learned):
    """One record: what is added to it is sealed and compared."""
    sealed = checkpoints.read_seal(learned.path / "checkpoint-2")
    assert {*FACTS} - {"checkpoint"} <= {*sealed} and sealed["sharding"] == UNSHARDED
    assert between_processes(sealed | {"checkpoint": None}, sealed | {"checkpoint": None}) == ""
