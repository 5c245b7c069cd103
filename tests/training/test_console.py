"""grpo/training/console.py: what a run shows is readable, whatever the width."""

from types import SimpleNamespace

import pytest
from datasets import Dataset
from helpers_watch import is_text, trainer
from trl.trainer import grpo_trainer

from grpo.rewarding.judge import Judge
from grpo.training import console
from grpo.training.console import Progress, replace_progress

NAMES = [f"{name}_reward_func" for name in ("xmlcount", "soft_format", "strict_format", "int", "correctness")]
LOGS = {
    "loss": float("nan"),
    "reward": 2.4375,
    "reward_std": 1.5,
    **{f"rewards/{name}/mean": 0.25 for name in NAMES},
    "rewards/length_reward_func/mean": -12.5,
    "groups/mixed": 0.5,
    "completions/mean_length": 30.4,
    "completions/clipped_ratio": 0.25,
}


def state(max_steps, step=0):
    return SimpleNamespace(is_world_process_zero=True, max_steps=max_steps, global_step=step, logging_steps=1)


def progress(names=(*NAMES, "length_reward_func"), golds=None):
    return Progress(list(names), golds or {}, Judge())


@pytest.mark.parametrize(("width", "shown"), [(80, 2), (160, 6)])
def test_columns_stay_within_the_console_and_aligned(width, shown, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(width))
    shows = progress()
    shows.on_log(None, state(100, 7), None, LOGS)
    shows.on_log(None, state(100, 118), None, {**LOGS, "reward": -0.5, "reward_std": None})
    header, first, second = capsys.readouterr().out.strip("\n").split("\n")
    assert len(header) == len(first) == len(second) <= width
    names = header.split()
    assert len(names) == 7 + shown and "correctness" in names  # which judges the answer and so stays longest
    assert names[:3] == ["step", "reward", "std"] and names[-4:] == ["mixed", "length", "cut", "left"]
    assert dict(zip(names, first.split(), strict=True)).items() >= {
        "step": "7", "reward": "2.44", "correctness": "0.25", "mixed": "50%", "length": "30", "cut": "25%", "left": "-"
    }.items()  # fmt: skip


def test_the_time_left_is_steady_without_the_first_step(monkeypatch):
    now = iter([30.0, *(31.0 + step for step in range(100)), 0.0])  # the first step took half a minute
    monkeypatch.setattr(console.time, "perf_counter", lambda: next(now))
    shows, left = progress(), []
    for step in range(1, 51):
        shows.on_step_end(None, state(50, step), None)
    shows._begun = (1, 0.0)
    monkeypatch.setattr(console.time, "perf_counter", lambda: 10.0)
    for steps in (11, 611, 3611):
        left.append(shows._left(state(steps, 11)))
    assert left == ["0:00", "10:00", "1h00"]
    assert shows._left(state(10, 1)) == ""


def test_samples_show_gold_and_rewards_some_times_a_run(capsys):
    shows, prompt = progress(golds={"What is [2] + 2?": "4"}), [{"content": "SYSTEM"}, {"content": "What is [2] + 2?"}]
    stock = grpo_trainer.print_prompt_completions_sample
    shows.on_train_begin(SimpleNamespace(disable_tqdm=True), state(100), None)
    completion = [{"role": "assistant", "content": "<answer>\n5\n</answer>\n"}]
    for step in range(1, 101):
        grpo_trainer.print_prompt_completions_sample(
            [prompt] * 4, [completion] * 4, {"correctness_reward_func": [2.0] * 4}, [0.7] * 4, step, 2
        )
    shown = capsys.readouterr().out
    assert shown.count("What is [2] + 2?") == shown.count("gold: 4") == shown.count("read: 5") == 10
    assert "SYSTEM" not in shown and "correctness 2.00" in shown and "advantage +0.70" in shown
    assert shown.count(", whose group earned the same") == 10
    shows.on_train_end(None, None, None)
    assert grpo_trainer.print_prompt_completions_sample is stock  # a plain GRPOTrainer's samples are TRL's again


def test_samples_are_the_best_and_the_worst_of_a_group_that_differs():
    prompts, advantages = [*"aaaabbbbcccc"], [0, 0, 0, 0, -1, 1, 2, -2, 0.5, 0.5, -0.5, -0.5]
    pairs = [[6, 7], [8, 10]]
    for step in range(20):
        both = console.samples_of(prompts, advantages, step, 2)
        assert list(both) in pairs and list(both.values()) == [
            ": the best of a group",
            ": the worst of the same group",
        ]
        assert list(console.samples_of(prompts, advantages, step, 1)) in [[6], [8]]
        assert sorted(console.samples_of(prompts, advantages, step, 4)) == [6, 7, 8, 10]
        assert len(console.samples_of(prompts, advantages, step, 99)) == 5  # one for the group that is all the same
    assert len(console.samples_of(prompts, advantages, 0, None)) == 12


def test_a_run_prints_its_lines_golds_and_evaluations(tmp_path, tiny_model, monkeypatch, capsys):
    """Without a terminal, too, and where tqdm is off; nothing of transformers' own lines."""
    monkeypatch.setenv("COLUMNS", "100")
    flags = {"log_completions": True, "num_completions_to_print": 1, "logging_steps": 1, "max_steps": 2}
    made, _ = trainer(tmp_path, tiny_model, reward_funcs=[is_text], **flags)
    made.eval_dataset = Dataset.from_list([{"prompt": "Held out?", "answer": "1"}])
    replace_progress(made, Judge())
    capsys.readouterr()
    made.train()
    held_out = {f"eval_{key}": value for key, value in made.state.log_history[0].items()}
    made.callback_handler.on_log(made.args, made.state, made.control, held_out)
    out, err = capsys.readouterr()
    assert out.count("gold: ") == 1 and "{'" not in out and "%|" not in err
    rows = [line.split() for line in out.splitlines() if line.split()[:1] in (["1"], ["2"], ["eval"])]
    assert [row[0] for row in rows] == ["1", "2", "eval"] and all(row[1] == "0.50" for row in rows)
