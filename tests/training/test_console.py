"""grpo/training/console.py: what a run shows is readable."""

from grpo.training.console import SampleTable, describe

LOGS = {
    "loss": float("nan"),
    "reward": 2.4375,
    "reward_std": 1.5,
    "rewards/correctness_reward_func/mean": 0.88,
    "rewards/correctness_reward_func/std": 1.0,
    "rewards/my_own/mean": None,
    "completions/mean_length": 30.4,
    "completions/clipped_ratio": 0.25,
}


def test_a_log_is_one_line_with_the_rewards_by_name():
    line = describe(7, LOGS)
    assert line == "step    7  reward 2.44 ± 1.50 = correctness 0.88 my_own - · length 30, 25 % cut"


def test_a_log_names_its_stage_and_no_rewards_of_others():
    logs = {**LOGS, "stage": 2.0, "reward_weights/correctness_reward_func": 1.5, "reward_weights/my_own": 0.0}
    line = describe(7, logs, ["format", "correctness"])
    assert line == "step    7 correctness  reward 2.44 ± 1.50 = correctness 0.88 · length 30, 25 % cut"


def test_samples_show_everything_a_tenth_of_the_time(capsys):
    table = SampleTable(total_steps=100)
    prompt = [{"role": "system", "content": "SYSTEM"}, {"role": "user", "content": "What is [2] + 2?"}]
    completion = [{"role": "assistant", "content": "<answer>\n4\n</answer>\n"}]
    for step in range(1, 101):
        table([prompt] * 4, [completion] * 4, {"correctness_reward_func": [2.0] * 4}, [0.7] * 4, step, 2)
    shown = capsys.readouterr().out
    assert shown.count("What is [2] + 2?") == 2 * 10
    assert "SYSTEM" not in shown and "correctness 2.00" in shown and "advantage +0.70" in shown


def test_a_long_completion_is_shortened_and_says_so(capsys):
    SampleTable(1)(["prompt"], ["x" * 2000], {}, [0.0], 1)
    shown = capsys.readouterr().out
    assert shown.count("x") == SampleTable.longest and "…" in shown
