"""A copy of the script with edits of its own: commands name it, and no tool takes two experiments for one."""

import importlib.util
import itertools
import json
import sys
from pathlib import Path

import pytest
from helpers_runs import LEARNS, ROOT, TINY, flags

from grpo.__main__ import main as tool

NUMBERS = itertools.count()
REWARD = '''
def shorter(completions, answer, **kwargs):
    """More for shorter texts that hold the answer."""
    return [worth(c[0]["content"]) if a in c[0]["content"] else 0.0 for c, a in zip(completions, answer)]


def worth(text):
    return 1 / (1 + len(text))


# ---
'''


@pytest.fixture
def script(monkeypatch):
    """Write my_dates.py, the script with an own reward and these edits, and return its `main`."""

    def write(*edits):
        text = (ROOT / "train_grpo.py").read_text()
        text = text.replace("# ---", f"{REWARD}# ---", 1).replace(
            "        xmlcount_reward_func,\n", "        shorter,\n", 1
        )
        for old, new in edits:
            assert old in text
            text = text.replace(old, new, 1)
        Path("my_dates.py").write_text(text)
        spec = importlib.util.spec_from_file_location(f"my_dates_{next(NUMBERS)}", "my_dates.py")
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.main

    monkeypatch.setattr(sys, "argv", ["my_dates.py"])
    return write


PROMPT = ("Respond in the following format:", "Answer in the following format:")
CODE = ("return 1 / (1 + len(text))", "return 2 / (1 + len(text))")  # a helper of the reward
RATE = ("learning_rate=5e-6", "learning_rate=1e-5")
GIVEN = {**TINY, **LEARNS, "output_dir": None, "learning_rate": None, "eval_samples": "4"}
GIVEN |= {"save_strategy": "steps", "save_steps": "1"}
ARGV = flags(**GIVEN)
AUTO = [*ARGV, "--resume_from_checkpoint", "auto", "--dry_run", "true"]


def shown(capfd):
    return " ".join("".join(capfd.readouterr()).split())


@pytest.mark.slow
def test_two_experiments_in_one_script_are_two(script, capfd):
    runs = [f"outputs/demo-GRPO-train{end}" for end in ("", "-2")]
    assert script()(ARGV) == 0
    record = json.loads(Path(runs[0], "run.json").read_text())
    assert record["script"] == "my_dates.py" and record["origin"]["learning_rate"] == "script"
    assert (record["launcher"], record["program"], record["argv"]) == ("python", "my_dates.py", ARGV)
    assert Path(runs[0], "source/my_dates.py").read_bytes() == Path("my_dates.py").read_bytes()
    assert Path(runs[0], "source/rewards.py").exists() and record["code"]["shorter"].startswith("def shorter(")
    assert "More for shorter texts" in Path(runs[0], "report.html").read_text()
    capfd.readouterr()

    # another prompt and another helper of the reward: another experiment, which auto does not continue
    for edit, told in ((PROMPT, "the system prompt"), (CODE, "the code of shorter"), (RATE, "learning_rate 5e-06 → ")):
        assert script(edit)(AUTO) == 2
        assert f"{runs[0]} differs in {told}" in (said := shown(capfd)), said
    assert script(PROMPT, CODE)(ARGV) == 0
    capfd.readouterr()
    for edits, run in (((), runs[0]), ((PROMPT, CODE), runs[1]), ((("# The prompt", "# A comment"),), runs[0])):
        assert script(*edits)(AUTO) == 0
        assert f"resumed from {run}/checkpoint-2" in shown(capfd)
    assert script(CODE)(AUTO) == 2
    said = shown(capfd)
    assert f"{runs[1]} differs in the system prompt; {runs[0]} differs in the code of shorter" in said

    # of a run that is named, other code is listed, and another prompt refused
    named = [*AUTO, "--output_dir", runs[0]]
    assert script(CODE, RATE)(named) == 0
    assert "learning_rate 5e-06 → 1e-05, the code of shorter → the run will differ" in shown(capfd)
    assert script(PROMPT)(named) == 2
    assert "this command has another system prompt than" in shown(capfd)

    # tools
    assert tool(["compare", *runs]) == 0
    said = shown(capfd).lower()
    assert "training rows" not in said  # which are the same, in other prompts
    assert "one experiment" not in said and "system prompt" in said and "code in shorter" in said
    assert tool(["xray", runs[0]]) == 0
    said = shown(capfd)
    assert "shorter" in said and "not scored" not in said


@pytest.mark.slow
def test_a_helper_in_another_file_is_compared_without_its_comments(script, capfd, monkeypatch):
    monkeypatch.syspath_prepend(str(Path.cwd()))
    where = ("def worth(text):\n    return 1 / (1 + len(text))", "from my_helpers import worth")

    def main(helper):
        Path("my_helpers.py").write_text(helper)
        monkeypatch.delitem(sys.modules, "my_helpers", raising=False)
        importlib.invalidate_caches()
        return script(where)

    runs = [f"outputs/demo-GRPO-train{end}" for end in ("", "-2")]
    helper, other = (f"def worth(text):\n    return {n} / (1 + len(text))\n" for n in (1, 20))
    assert main(helper)(ARGV) == 0
    assert Path(runs[0], "source/my_helpers.py").read_text() == helper
    capfd.readouterr()
    assert main(f"# why\n{helper}")(AUTO) == 0
    assert f"{runs[0]} has finished, and its settings and code have not changed" in shown(capfd)
    assert main(other)(AUTO) == 2
    assert f"{runs[0]} differs in the code in my_helpers.py" in shown(capfd)
    assert main(other)(ARGV) == 0
    capfd.readouterr()
    assert tool(["compare", *runs]) == 0
    assert "What differs: Other code in my_helpers.py" in shown(capfd)


WORDS = ("Respond in the following format:\n<reasoning>", "Reply with a number.\n<reasoning>")
SHOT = ("What is the largest single-digit prime number?", "Which digit is the largest prime?")
OWN = "the script's own: Reply with a number."
USED = [  # edits, flags, exit status, what the model gets or None, what is said
    ([WORDS], "", 0, "Reply with a number.", "0 worked examples"),
    ([WORDS, ("answer_pattern=None", 'answer_pattern="text"')], "", 0, "Reply with a number.", "prompt_format stays"),
    ([WORDS], "--answer_pattern boxed", 0, "Reply with a number.", "it never shows \\boxed{"),
    ([WORDS], "--prompt_format think", 0, "<think>", f"the flag replaces {OWN}"),
    ([WORDS], "--prompt_format xml", 0, "Respond in the following", f"the flag replaces {OWN}"),
    ([WORDS], "--config demo", 0, "Respond in the following", f"demo replaces {OWN}"),
    ([WORDS], "--config notebook_gpt2 --num_shots 0", 0, "<problem>", f"notebook_gpt2 replaces {OWN}"),
    ([WORDS], "--system_prompt Count.", 0, "Count.", "system_prompt replaces that of prompt_format: Reply with a"),
    ([SHOT], "--num_shots 1", 0, "Which digit is the largest prime?", "1 worked example"),
    ([SHOT], "--num_shots 1 --config demo", 0, "Which digit is the largest prime?", "1 worked example"),
    ([SHOT], "--num_shots 4", 2, None, "error: num_shots: 4 is more than the exemplars; use 0 to 3"),
    ([("num_shots=0", 'system_prompt="Count."')], "--num_shots 0 --config demo", 0, "Respond", "script's own: Count."),
]


def test_the_judges_reward_is_written_into_the_script(script, capfd):
    edits = [("        shorter,\n", "        judge_reward_func,\n")]
    assert script(*edits)([*ARGV, "--dry_run", "true"]) == 0
    assert "judge " in shown(capfd)


@pytest.mark.parametrize(("edits", "flags", "status", "prompt", "said"), USED)
def test_an_edited_prompt_is_used_or_a_line_says_why_not(script, capfd, edits, flags, status, prompt, said):
    assert script(*edits)([*ARGV, "--dry_run", "true", *flags.split()]) == status
    told = shown(capfd)
    panel = told.rpartition("a training prompt, as the model gets it")[2]
    assert said in told.replace("\u2502 ", "").replace(" \u2502", ""), told
    assert prompt is None or prompt in panel
    assert not Path("outputs").exists()


OWN_TASK = '''
def from_chat(row):
    return {"question": row["turns"][0], "answer": row["turns"][1]}


def near(text, row):
    """Right if the last number is."""
    digits = "".join(sign if sign.isdigit() else " " for sign in text).split()
    return digits[-1:] == [row["answer"]]


def closeness(completions, answer, *, extract, **kwargs):
    return [1.0 if extract(c[0]["content"]) == gold else 0.1 for c, gold in zip(completions, answer)]


CHATS = [{"turns": [f"What is {a} + {b}?", str(a + b)]} for a in range(2, 9) for b in range(2, 7)]
# ---'''


def test_a_task_written_into_the_script_is_read_by_every_tool(script, capfd):
    edits = [
        ("# ---", OWN_TASK),
        ("        shorter,\n", "        closeness,\n"),
        ("prepare=None", "prepare=from_chat"),
        ("judge=None", "judge=near"),
        ('dataset_name="openai/gsm8k"', "dataset_name=CHATS"),
    ]
    argv = flags(**{**GIVEN, "dataset_name": None, "max_samples": None})
    assert script(*edits)(argv) == 0
    run = Path("outputs/demo-GRPO-rows-of-the-script")
    said = shown(capfd)
    assert "right by near" in said and "closeness" in said and f"Saved in {run}" in said
    record = json.loads((run / "run.json").read_text())
    assert {"code of prepare", "code of the judge near", "code of closeness"} <= record["sources"].keys()
    assert record["origin"]["prepare"] == record["origin"]["dataset_name"] == "script"
    assert (run / "source" / "my_dates.py").read_text() == Path("my_dates.py").read_text()
    answers = [json.loads(line) for line in (run / "completions_after.jsonl").read_text().splitlines()]
    assert all(
        {"lenient", "rewards", "row", "read"} <= line.keys() and "closeness" in line["rewards"] for line in answers
    )
    text = (run / "report.html").read_text()
    assert "def closeness" in text and "def from_chat" in text and "Right if the last number is." in text

    assert tool(["xray", str(run)]) == 0
    assert "right (by near)" in (said := shown(capfd)) and "closeness" in said
    assert tool(["ask", str(run), "What is 3 + 4?"]) == 0
    assert "Answer:" in shown(capfd)

    # an edit of the rows' function is another experiment
    auto = [*argv, "--resume_from_checkpoint", "auto", "--dry_run", "true"]
    assert script(*edits)(auto) == 0
    capfd.readouterr()
    assert (
        script(*edits, ('return {"question": row["turns"][0]', 'return {"question": row["turns"][0] + " Now!"'))(auto)
        == 2
    )
    assert f"{run} differs in the code of prepare" in shown(capfd)
