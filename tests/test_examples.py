"""grpo_minimal.py learns, with TRL's gradients, and stays short; rewards follow their success, or the run's step."""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers_resume import assert_same, interrupted, state_of
from helpers_runs import DEMO, LEARNS, ROOT
from helpers_trainer import largest_difference, trained
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerState
from trl import GRPOTrainer

import train_grpo
from examples import adaptive_reward, grpo_minimal
from examples.adaptive_reward import AdaptiveReward, adapted
from examples.two_stages import FORMAT, Stages, two_stages
from rewards import REWARD_FUNCS, extract_hash_answer

RATE = 0.05  # of SGD: large enough that the second update clips some tokens


@pytest.fixture(scope="module")
def rollout():
    """Four questions, four completions of each, some truncated: (questions, answers, what `sample` returned)."""
    rows = [json.loads(line) for line in (DEMO / "train.jsonl").read_text().splitlines()[32:36]]
    questions, answers = [row["question"] for row in rows], [extract_hash_answer(row["answer"]) for row in rows]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(grpo_minimal, "GROUP_SIZE", 4)
        patched.setattr(grpo_minimal, "MAX_TOKENS", 30)
        torch.manual_seed(0)
        sampled = grpo_minimal.sample(*load(), questions)
    return questions, answers, sampled


def load(dtype=torch.float32):
    model = AutoModelForCausalLM.from_pretrained(DEMO / "model", dtype=dtype)
    return model, AutoTokenizer.from_pretrained(DEMO / "model", padding_side="left")


def gradients_of_example(answers, ids, attention_mask, completion_mask):
    """Gradients of two updates on one rollout, as `main` makes them, but with SGD; and the last update's ratios."""
    model, tokenizer = load(torch.float64)
    length = completion_mask.shape[1]
    texts = tokenizer.batch_decode(ids[:, -length:], skip_special_tokens=True)
    rewards = grpo_minimal.score(texts, [answer for answer in answers for _ in range(4)])
    advantages = grpo_minimal.compare(rewards.sum(dim=0).view(4, 4))
    gradients, log_probs = [], []
    for _ in range(2):
        log_probs.append(grpo_minimal.log_probs_of(model, ids, attention_mask, length))
        model.zero_grad()
        grpo_minimal.loss_of(log_probs[-1], log_probs[0].detach(), advantages, completion_mask).backward()
        gradients.append({name: parameter.grad.clone() for name, parameter in model.named_parameters()})
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= RATE * parameter.grad
    return gradients, (log_probs[1] - log_probs[0]).exp()[completion_mask]


def test_example_has_the_trainers_gradients(rollout, tmp_path):
    questions, answers, (ids, attention_mask, completion_mask) = rollout
    lengths = completion_mask.sum(dim=1)
    ended = (ids[:, -completion_mask.shape[1] :] == 2).any(dim=1)
    assert lengths.unique().numel() > 2 and 0 < ended.sum() < 16
    gradients, ratios = gradients_of_example(answers, ids, attention_mask, completion_mask)
    assert ((ratios < 0.8) | (ratios > 1.2)).any()  # clipping is part of what is compared

    prompt_mask = attention_mask[:, : -completion_mask.shape[1]].bool()
    completions = {}  # of each prompt
    for row, prompt, chosen in zip(ids, prompt_mask, completion_mask, strict=True):
        prompt_ids, completion = row[: len(prompt)][prompt].tolist(), row[len(prompt) :][chosen].tolist()
        completions.setdefault(tuple(prompt_ids), []).append(completion)

    def same_completions(prompt_ids, *args, **kwargs):
        left = {prompt: iter(texts) for prompt, texts in completions.items()}
        return [next(left[tuple(prompt)]) for prompt in prompt_ids], None

    system = {"role": "system", "content": train_grpo.SYSTEM_PROMPT}
    chats = [[system, {"role": "user", "content": question}] for question in questions]
    theirs, _, _ = trained(
        GRPOTrainer,
        load(torch.float64)[0],  # in float32 this model's own gradients are rounded by about 1e-5
        tmp_path,
        reward=list(REWARD_FUNCS.values()),
        prompts=chats,
        columns={"answer": answers},
        lengths=same_completions,
        loss_type="dapo",
        num_iterations=2,
        max_steps=2,
        max_completion_length=30,
        learning_rate=RATE,
    )
    assert largest_difference(theirs, gradients) < 1e-5


def test_example_learns_nothing_from_equal_rewards():
    rewards = torch.tensor([[0.7] * 8, [0.1] * 7 + [0.2]])
    assert grpo_minimal.compare(rewards).count_nonzero(dim=1).tolist() == [0, 8]


@pytest.mark.slow
def test_example_learns(tmp_path, monkeypatch):
    """Each step has the same four questions, so that the reward does not depend on the draw."""
    demo = tmp_path / "assets" / "demo"
    demo.mkdir(parents=True)
    (demo / "model").symlink_to(DEMO / "model")
    (demo / "train.jsonl").write_text("".join((DEMO / "train.jsonl").read_text().splitlines(keepends=True)[:4]))
    for name, value in {"ROOT": tmp_path, "QUESTIONS": 4, "GROUP_SIZE": 6}.items():
        monkeypatch.setattr(grpo_minimal, name, value)
    rewards = grpo_minimal.main(steps=6)
    assert statistics.mean(rewards[-3:]) > statistics.mean(rewards[:3]) + 0.3


def test_example_fits_on_a_page():
    lines = (ROOT / "examples" / "grpo_minimal.py").read_text().splitlines()
    assert len(lines) <= 120 and not any("import trl" in line or "from trl" in line for line in lines)


@pytest.mark.parametrize("name", ["examples/grpo_minimal.py", "train_grpo.py", "grpo/__main__.py"])
def test_idle_threads_sleep_before_torch_is_imported(name):
    """Spinning threads took three times the processor time on a loaded machine."""
    code = f"""
import builtins, os, runpy, sys
find, sys.argv = builtins.__import__, ["x", "ask", "a?"]
def check(name, *rest, **options):
    if name == "torch":
        raise SystemExit(7 if os.environ.get("GOMP_SPINCOUNT") else "too late")
    return find(name, *rest, **options)
builtins.__import__ = check
sys.path.insert(0, {str(ROOT)!r})
runpy.run_path({str(ROOT / name)!r}, run_name="__main__")
"""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("GOMP", "OMP"))}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 7, done.stderr


# --- adaptive_reward.py


@pytest.mark.parametrize(
    ("factor", "values", "threshold", "expected"),
    [
        (1.0, [0, 0, 0, 0], 0.0, 1.2),
        (1.0, [2, 2, 2, 2, 0], 0.0, 1.0),  # 0.8 is not above 0.8
        (1.0, [2] * 9 + [0], 0.0, 0.9),
        (1.0, [0.5] * 4, 0.5, 1.2),  # success is a value above the threshold
        (3.9, [0.0], 0.0, 4.0),  # within the bounds
        (0.26, [1.0], 0.0, 0.25),
    ],
)
def test_a_rare_reward_grows_and_a_usual_one_shrinks(factor, values, threshold, expected):
    assert adapted(factor, values, threshold) == expected


def half(completions, *, worth: float = 1.0, **kwargs):
    """A quarter of the completions earns it, and for one it has no value."""
    return [None, worth, 0.0, 0.0, 0.0][: len(completions)]


def test_the_factor_follows_each_rollout_of_a_run():
    reward, factors = AdaptiveReward(half), []
    run = {"trainer_state": TrainerState(), "log_metric": lambda name, value: factors.append((name, value))}
    rollouts = [reward(completions=["a"] * 5, **run) for _ in range(3)]
    assert rollouts == [[None, factor, 0.0, 0.0, 0.0] for factor in (1.0, 1.2, 1.2 * 1.2)]
    assert factors[1] == ("adaptive/adaptive_half", 1.2)
    reward(completions=["a"] * 2, **run)  # one value is no rollout
    assert run["trainer_state"].stateful_callbacks["adaptive_rewards"] == {"adaptive_half": pytest.approx(1.2**3)}
    assert reward(completions=["a"] * 5, **{**run, "trainer_state": TrainerState()})[1] == 1.0  # outside of training


@pytest.mark.slow
def test_a_resumed_run_knows_the_factors(tiny_run, monkeypatch):
    rewards = [REWARD_FUNCS["xmlcount_reward_func"], adaptive_reward.correctness]
    monkeypatch.setitem(train_grpo.HYPERPARAMETERS, "reward_funcs", rewards)
    argv = tiny_run(**{**LEARNS, "max_steps": "3", "save_steps": "1", "save_total_limit": "9", "eval_samples": "2"})
    assert train_grpo.main([*argv, "--output_dir", "whole"]) == 0
    whole = state_of(Path("whole"))
    curve = [line["adaptive/adaptive_correctness_reward_func"] for line in whole["metrics"] if "reward" in line]
    assert curve[0] == 1.0 and len(set(curve)) > 1
    run = interrupted("whole", 2)
    assert train_grpo.main([*argv, "--output_dir", "again", "--resume_from_checkpoint", "auto"]) == 0
    assert_same(state_of(run), whole)


# --- two_stages.py


def at_step(step, max_steps=9):
    logged = {}
    state = TrainerState(global_step=step, max_steps=max_steps)
    return {"trainer_state": state, "log_metric": logged.__setitem__}, logged


@pytest.mark.parametrize(
    ("state", "stage", "values"),
    [
        (at_step(0), 1, [1.5, 0.0]),  # global_step counts the steps that are done
        (at_step(1), 1, [1.5, 0.0]),
        (at_step(2), 2, [2.75, 2.0]),  # the answer, and the format for half of its worth
        (at_step(0, max_steps=0), 2, [2.75, 2.0]),  # outside of training
    ],
)
def test_a_stage_ends_with_its_last_step(state, stage, values):
    texts = ["<reasoning>\nr\n</reasoning>\n<answer>\n7\n</answer>\n", "seven"]
    given, logged = state
    assert two_stages(texts, ["7", "seven"], borders=[2], **given) == values
    assert logged["two_stages/stage"] == stage and ("two_stages/correctness" in logged) is (stage == 2)


def hundred(completions, **kwargs):
    return [100.0] * len(completions)


@pytest.mark.slow
def test_stages_in_a_run_and_a_resume_across_their_border(tiny_run, monkeypatch):
    """All evaluations are of the last stage."""
    answers = {REWARD_FUNCS["xmlcount_reward_func"]: 0.5, REWARD_FUNCS["int_reward_func"]: 1.0}
    monkeypatch.setitem(train_grpo.HYPERPARAMETERS, "reward_funcs", [Stages({**FORMAT, hundred: 1.0}, answers)])
    settings = {"max_steps": "4", "save_steps": "1", "save_total_limit": "9", "eval_samples": "2", "eval_every": "1"}
    argv = tiny_run(**LEARNS | settings, reward_args='{"two_stages": {"borders": [2]}}')
    assert train_grpo.main([*argv, "--output_dir", "whole"]) == 0
    whole = state_of(Path("whole"))
    lines = {"train": [], "eval": []}
    for line in whole["metrics"]:
        lines["train" if "reward" in line else "eval"].append(line)
    rewards = [line["rewards/two_stages/mean"] for line in lines["train"] if "two_stages/stage" in line]
    assert [value > 50 for value in rewards] == [True, True, False, False]
    assert [line["two_stages/stage"] for line in lines["train"]] == [1, 1, 2, 2]
    curve = {line["step"]: line["eval/reward_two_stages"] > 50 for line in lines["eval"] if "eval/reward" in line}
    assert curve == dict.fromkeys(range(5), False)
    for step in (1, 2):
        run = interrupted("whole", step, f"again-{step}")
        assert train_grpo.main([*argv, "--output_dir", str(run), "--resume_from_checkpoint", "auto"]) == 0
        assert_same(state_of(run), whole)
