"""Every logged number becomes a curve, with the true times of its optimizer steps."""

import re
from pathlib import Path

import pytest
from trl.trainer import grpo_trainer

from grpo.report.curves import is_a_rewards_own, read_curves
from grpo.scoring import guard
from grpo.training import callbacks, run_trainer


def test_a_step_that_was_logged_twice_counts_once():
    rewards = [{"step": 2, "reward": 1.5}, {"step": 1, "reward": 1.0}, {"step": 2, "reward": 1.6}]
    curves = read_curves([*rewards, {"step": 2, "loss": 0}, {"step": 2, "train_runtime": 9.0, "reward": 7.0}])
    assert (curves["reward"].steps, curves["reward"].values) == ([1, 2], [1.0, 1.6])
    assert curves["loss"].steps == [2]


def test_times_are_of_all_steps_since_the_log_before():
    lines = [{"step": step, "loss": 0.0, "step_time": 2.0} for step in (5, 10, 12)]
    assert read_curves(lines)["seconds"].values == [10.0, 10.0, 4.0]


def test_a_curve_has_its_points_and_its_band():
    logs = [{"step": 10, "reward": 1.0, "reward_std": 2.0}, {"step": 30, "reward": 3.0, "reward_std": 1}]
    reward = read_curves(logs)["reward"]
    assert (reward.steps, reward.values) == ([10, 30], [1.0, 3.0])
    assert (reward.lows, reward.highs) == ([-1.0, 2.0], [3.0, 4.0]) and reward.window == 1
    assert reward.ends == (1.0, 3.0)
    logs = [{"step": step, "reward": float(step % 2)} for step in range(29)]
    assert read_curves(logs)["reward"].ends == (0.5, 0.5)  # single values would say 0 → 0


@pytest.mark.parametrize("key", ["num_tokens", "num_input_tokens_seen", "skipped_steps", "epoch"])
def test_a_running_total_ends_with_its_last_value(key):
    """Tokens so far were shown as 206,596, the mean of the last tenth, of 213,863."""
    curve = read_curves([{"step": step, key: 10.0 * step, "loss": 10.0 * step} for step in range(1, 101)])[key]
    assert curve.ends == (10.0, 1000.0) and curve.running_mean == curve.values


def test_no_number_of_trl_passes_for_a_rewards_own():
    """Those of its step, of transformers' trainer, and of this program, in training and in an evaluation."""
    modules = (grpo_trainer, run_trainer, guard, callbacks)
    keys = {
        re.sub(r"{.*?}", "x", key)
        for module in modules
        for key in re.findall(
            r"""(?:[mM]etrics(?:\[[^]]*\])?(?:\[|\.setdefault\()|note\(|_timed\()f?["']([^"']+)""",
            Path(module.__file__).read_text(),
        )
    }
    keys -= {"train"}  # the key of those in training
    assert {"kl", "num_tokens", "step_time", "rewards/x/mean", "policy_loss", "skipped_steps", "groups/x"} <= keys
    logs = ("loss", "grad_norm", "learning_rate", "epoch", "runtime", "samples_per_second", "steps_per_second")
    keys |= {*logs, "seconds", "eval/accuracy_lenient", "time/evaluation", "train_loss"}
    assert not [key for key in keys for prefix in ("", "eval_") if is_a_rewards_own(prefix + key)]
