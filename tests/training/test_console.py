"""grpo/training/console.py: what a run shows is readable, whatever the width."""

from itertools import pairwise
from types import SimpleNamespace

import pytest
from datasets import Dataset
from helpers_watch import is_text, trainer

from grpo.training import console
from grpo.training.console import Clock, Progress, Table, cells_of, make_readable

NAMES = ("xmlcount", "soft_format", "strict_format", "int", "correctness")
LOGS = {
    "loss": float("nan"),
    "reward": 2.4375,
    "reward_std": 1.5,
    **{f"rewards/{name}_reward_func/mean": 0.25 for name in NAMES},
    "rewards/my_own/mean": None,
    "rewards/length_reward/mean": -12.5,
    "completions/mean_length": 30.4,
    "completions/clipped_ratio": 0.25,
}


def lines(table, logs=LOGS, step=7, left="0:42"):
    cells, rewards = cells_of(logs)
    return [str(line) for line in table.lines({"step": str(step), **cells, "left": left}, rewards, logs.get("stage"))]


@pytest.mark.parametrize(("width", "shown"), [(80, 3), (160, 7)])
def test_columns_stay_within_the_console_and_aligned(width, shown, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    *note, header, first = lines(table := Table())
    assert bool(note) == (shown < 7) and all(len(line.strip()) <= width for line in note)
    (second,) = lines(table, {**LOGS, "reward": -0.5, "reward_std": None}, step=118, left="59:59")
    assert len(header.strip("\n")) == len(first) == len(second) <= width
    names = header.split()
    assert len(names) == 6 + shown and "correctness" in names  # which judges the answer and so comes first
    assert names[:3] == ["step", "reward", "std"] and names[-3:] == ["length", "cut", "left"]
    assert dict(zip(names, first.split(), strict=True)).items() >= {
        "step": "7", "reward": "2.44", "correctness": "0.25", "length": "30", "cut": "25%", "left": "0:42"
    }.items()  # fmt: skip


def test_the_time_left_is_steady_without_the_first_step(monkeypatch):
    now = iter(
        [30.0, *(31.0 + step + (0.5 if step % 2 else 0) for step in range(100))]
    )  # the first took half a minute
    monkeypatch.setattr(console.time, "perf_counter", lambda: next(now))
    clock, shown = Clock(), []
    for step in range(1, 101):
        clock.tick()
        shown.append(clock.left(100 - step))
    assert shown[0] == "-" and shown[1] == "1:38" and shown[-1] == "0:00"
    assert [clock.left(steps) for steps in (12, 600, 3600 * 12)] == ["0:12", "10:00", "12h00"]
    seconds = [60 * int(text.split(":")[0]) + int(text.split(":")[1]) for text in shown[1:]]
    assert all(abs(before - after - 1) <= 5 for before, after in pairwise(seconds[10:]))


def test_samples_show_gold_and_rewards_some_times_a_run(capsys):
    progress, prompt = Progress({"What is [2] + 2?": "4"}), [{"content": "SYSTEM"}, {"content": "What is [2] + 2?"}]
    progress.on_train_begin(SimpleNamespace(disable_tqdm=True), state(100), None)
    completion = [{"role": "assistant", "content": "<answer>\n5\n</answer>\n"}]
    for step in range(1, 101):
        progress.show_samples(
            [prompt] * 4, [completion] * 4, {"correctness_reward_func": [2.0] * 4}, [0.7] * 4, step, 2
        )
    shown = capsys.readouterr().out
    assert shown.count("What is [2] + 2?") == shown.count("gold: 4") == 2 * 10
    progress.on_train_begin(SimpleNamespace(disable_tqdm=True), state(12), None)
    for step in range(101, 113):  # a short run: four lines between two samples
        progress.show_samples([prompt], [completion], {}, [0.7], step)
    assert capsys.readouterr().out.count("gold: 4") == 3
    assert "SYSTEM" not in shown and "correctness 2.00" in shown and "advantage +0.70" in shown


def state(max_steps, step=0):
    return SimpleNamespace(is_world_process_zero=True, max_steps=max_steps, global_step=step, logging_steps=1)


def test_a_run_prints_its_lines_golds_and_evaluations(tmp_path, tiny_model, monkeypatch, capsys):
    """Without a terminal, too, and where tqdm is off; nothing of transformers' own lines."""
    monkeypatch.setenv("COLUMNS", "100")
    flags = {"log_completions": True, "num_completions_to_print": 1, "logging_steps": 1, "max_steps": 2}
    made, _ = trainer(tmp_path, tiny_model, reward_funcs=[is_text], **flags)
    made.eval_dataset = Dataset.from_list([{"prompt": "Held out?", "answer": "1"}])
    make_readable(made)
    capsys.readouterr()
    made.train()
    held_out = {f"eval_{key}": value for key, value in made.state.log_history[0].items()}
    made.callback_handler.on_log(made.args, made.state, made.control, held_out)
    out, err = capsys.readouterr()
    assert out.count("gold: ") == 1 and "{'" not in out and "%|" not in err
    rows = [line.split() for line in out.splitlines() if line.split()[:1] in (["1"], ["2"], ["eval"])]
    assert [row[0] for row in rows] == ["1", "2", "eval"] and all(row[1] == "0.50" for row in rows)
