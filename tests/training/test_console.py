"""grpo/training/console.py: the lines of a run fit into any width, and its samples show the gold answer."""

from types import SimpleNamespace

import pytest
from helpers_runs import ROWS
from helpers_trainer import watched
from trl.trainer import grpo_trainer

from grpo.task import Task
from grpo.task.prompts import XML
from grpo.training import console
from grpo.training.causes import History
from grpo.training.console import Progress

SHORT = ["xmlcount", "soft_format", "strict_format", "int", "correctness"]
NAMES = [f"{name}_reward_func" for name in [*SHORT, "length"]]
LOGS = {
    "reward": 2.4375,
    "reward_std": 1.5,
    **{f"rewards/{name}/mean": 0.25 for name in NAMES},
    "groups/mixed": 0.5,
    "completions/mean_length": 30.4,
    "completions/clipped_ratio": 0.25,
}


def state(max_steps, step=0):
    return SimpleNamespace(is_world_process_zero=True, max_steps=max_steps, global_step=step, logging_steps=1)


@pytest.mark.parametrize(("width", "rewards"), [(80, ["int", "correctness"]), (160, [*SHORT, "length_reward_func"])])
def test_columns_stay_within_the_console_and_aligned(width, rewards, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(width))
    history = History(perfect={"correctness_reward_func": 2.0, "int_reward_func": 0.5})
    shows = Progress(NAMES, {}, Task(XML))
    shows.join(SimpleNamespace(history=history, remove_callback=lambda stock: None))
    shows.on_log(None, state(100, 7), None, LOGS)
    shows.on_log(None, state(100, 118), None, {**LOGS, "reward": -0.5, "reward_std": None})
    header, first, second = capsys.readouterr().out.strip("\n").split("\n")
    assert len(header) == len(first) == len(second) <= width
    names = header.split()
    assert names == ["step", "reward", "std", *rewards, "mixed", "length", "cut", "left"]
    assert dict(zip(names, first.split(), strict=True)).items() >= {
        "step": "7", "reward": "2.44", "int": "0.25", "mixed": "50%", "cut": "25%", "left": "-"
    }.items()  # fmt: skip


def test_dynamic_sampling_has_columns(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    shows = Progress(NAMES, {}, Task(XML))
    rounds = {"dynamic_sampling/completions": 88.0, "dynamic_sampling/rounds": 1.5, "dynamic_sampling/live": 0.875}
    shows.on_log(None, state(100, 7), None, LOGS | rounds)
    header, row = capsys.readouterr().out.strip("\n").split("\n")
    assert len(header) <= 80
    cells = dict(zip(header.split(), row.split(), strict=True))
    assert (cells["sampled"], cells["rounds"], cells["live"]) == ("88", "1.5", "88%")


def test_what_a_reward_logs_is_on_a_line_of_its_own(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    shows = Progress([], {}, Task(XML))
    shows.on_log(None, state(100, 7), None, {**LOGS, "share_of_dates": 0.25, "unknown": None})
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[-1] == ["share_of_dates", "0.25", "unknown", "-"] and lines[-2][0] == "7"
    many = {f"share_of_{index}{'x' * 60}": 0.25 for index in range(9)}
    shows.on_log(None, state(100, 8), None, {**LOGS, **many})
    assert all(len(line) <= 80 for line in capsys.readouterr().out.splitlines())


def test_samples_show_gold_and_rewards_some_times_a_run(capsys):
    shows, prompt = Progress([], {"What is [2] + 2?": "4"}, Task(XML)), [{"content": "What is [2] + 2?"}]
    stock = grpo_trainer.print_prompt_completions_sample
    shows.on_train_begin(None, state(100), None)
    completion = [{"role": "assistant", "content": "<answer>\n5\n</answer>\n"}]
    for step in range(1, 101):
        with console.printing(shows.show_samples):
            grpo_trainer.print_prompt_completions_sample(
                [prompt] * 4, [completion] * 4, {"correctness_reward_func": [2.0] * 4}, [0.7] * 4, step, 2
            )
    shown = capsys.readouterr().out
    for part in ("What is [2] + 2?", "gold: 4", "correctness reads: 5", "correctness 2.00", "advantage +0.70"):
        assert shown.count(part) == 10
    with pytest.raises(ZeroDivisionError), console.printing(shows.show_samples):
        raise ZeroDivisionError
    assert grpo_trainer.print_prompt_completions_sample is stock  # a plain GRPOTrainer's samples are TRL's again


@pytest.mark.parametrize(
    ("count", "shown"), [(2, [6, 7]), (1, [6]), (3, [6, 5, 7]), (99, [6, 5, 4, 7]), (None, [*range(12)])]
)
def test_samples_are_the_best_and_the_worst_of_the_group_that_differs_most(count, shown):
    prompts, advantages = [*"aaaabbbbcccc"], [0, 0, 0, 0, -1, 1, 2, -2, 0.5, 0.5, -0.5, -0.5]
    assert console.samples_of(prompts, advantages, count) == shown


def rewards_half(completions, **kwargs):
    return [0.5] * len(completions)


def test_a_run_prints_its_lines_and_golds(tmp_path, tiny_model, capsys):
    """Without transformers' own lines."""
    options = {"log_completions": True, "num_completions_to_print": 1, "max_steps": 2}
    progress = Progress(["rewards_half"], {row["question"]: row["answer"].split()[-1] for row in ROWS}, Task(XML))
    trainer, _ = watched(tiny_model, tmp_path, more=[progress], reward=[rewards_half], **options)
    capsys.readouterr()
    trainer.train()
    out, err = capsys.readouterr()
    assert out.count("gold: ") == 1 and "{'" not in out and "%|" not in err
    rows = [line.split() for line in out.splitlines() if line.split()[:1] in (["1"], ["2"])]
    assert [row[0] for row in rows] == ["1", "2"] and all(row[1] == "0.50" for row in rows)
