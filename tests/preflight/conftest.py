"""Fixtures of preflight: the plan of a run, and its checks."""

import pytest
from helpers_runs import DEMO, ROWS
from transformers import AutoTokenizer

import train_grpo
from grpo.config.configure import configure
from grpo.data import dataset
from grpo.preflight import preflight
from grpo.preflight.plan import Plan, TrainingPlan
from grpo.runs.run import choose_run
from grpo.scoring.registry import make_task, shipped
from rewards import REWARD_FUNCS


@pytest.fixture
def plan(write_jsonl):
    """Plan a run on the demo's model."""

    def planned(rows=ROWS, rewards=tuple(REWARD_FUNCS), edit=lambda tokenizer: None, **overrides):
        flags = {
            "use_cpu": "true",
            "report_to": "none",
            "model_name_or_path": str(DEMO / "model"),
            "dataset_name": write_jsonl(rows),
            "max_completion_length": "64",
            "per_device_train_batch_size": "16",
            "gradient_accumulation_steps": "1",
            "learning_rate": "1e-4",
            **overrides,
        }
        argv = [word for key, value in flags.items() if value is not None for word in (f"--{key}", *value.split(" "))]
        config = configure(train_grpo.HYPERPARAMETERS, argv)
        tokenizer = AutoTokenizer.from_pretrained(DEMO / "model", padding_side="left")
        edit(tokenizer)
        task = make_task(config)
        load, kind = dataset.load_data, TrainingPlan
        if config.script.eval_only:
            load, kind = dataset.load_questions, Plan
        data = load(config, task, tokenizer, ["correctness"])
        functions = {name: shipped()[name] for name in rewards}
        return kind(choose_run(config, task, functions), tokenizer, task, data, functions)

    return planned


@pytest.fixture
def table(plan):
    """The checks of a run on the demo's model, by name."""
    return lambda **options: {check.name: check for check in preflight.outcomes(plan(**options))}
