"""A resumed run carries a figure on only if what it rests on is the same: rows, code, weights, settings, metric."""

import json
import re
import shutil
from pathlib import Path

import pytest
from helpers_runs import LEARNS
from safetensors.torch import load_file, save_file
from transformers import EarlyStoppingCallback, TrainerCallback
from transformers.trainer_callback import ExportableState

import train_grpo
from grpo.report.files import read_run
from grpo.training.run_trainer import RunTrainer

SHORT = LEARNS | {"eval_samples": "6", "save_steps": "2", "eval_every": "2", "logging_steps": "1"}
BEST = {"load_best_model_at_end": "true", "metric_for_best_model": "reward"}
REUSED = "Evaluation before training: reused from the start of the run"
JUDGE = (
    "def near(text, row):\n    return row.get('tolerance', 0) >= 50\n\n\n"
    "def close(completions, tolerance, **kwargs):\n"
    "    open('seen.log', 'a').write('seen')\n"
    "    return [float(open('paid.txt').read()) * (len(text) % 7) for text in completions]\n"
)
OWN = {"judge": "mine.near", "reward_funcs": "mine.close", "allow_custom_rewards": "true"}


def read(path):
    return json.loads(Path(path).read_text())


def rows(tolerance=0, count=60):
    lines = [{"question": f"What is {n} + 3?", "answer": str(n + 3), "tolerance": tolerance} for n in range(count)]
    texts = [json.dumps(line) + "\n" for line in lines]
    Path("data.jsonl").write_text("".join(texts[: count // 2]))
    Path("held_out.jsonl").write_text("".join(texts[count // 2 :]))


def trained(argv, capsys):
    """Run the command, and return what it printed in one line."""
    assert train_grpo.main(argv) == 0, capsys.readouterr()
    return " ".join(capsys.readouterr().out.split())


@pytest.fixture
def resume(tiny_run, capsys):
    """Train two steps; return a function that trains two more, with other settings, and returns what it printed."""
    rows()
    Path("mine.py").write_text(JUDGE)
    Path("paid.txt").write_text("1")
    own = SHORT | OWN | {"dataset_name": "data.jsonl", "eval_dataset_name": "held_out.jsonl", "max_samples": None}

    def start(**settings):
        trained(tiny_run(**own | settings | {"max_steps": "2"}), capsys)

        def again(**others):
            more = {"max_steps": "4", "resume_from_checkpoint": "auto"}
            return trained(tiny_run(**own | settings | more | others), capsys)

        return again

    return start


CHANGES = {  # settings of the resumed run, and what it says has changed
    "a column that the judge reads": ({}, "the held-out questions"),
    "other held-out questions": ({"eval_samples": "9"}, "the held-out questions"),
    "the weights of rewards": ({"reward_weights": "0.5"}, "reward_weights"),
    "the longest answer": ({"max_completion_length": "12"}, "max_completion_length"),
    "the code of the judge": ({}, "the code of the judge mine.near"),
    "the model's own generation": ({}, "the configuration of the model"),
    "what a reward opens": ({}, "the contents of paid.txt"),
    "nothing that is measured": ({"learning_rate": "2e-3"}, ""),
    "how samples are drawn": ({"temperature": "0.8"}, ""),  # evaluations are greedy
    "what a reward writes": ({}, ""),
}


FAST = ("the code of the judge", "nothing that is measured")


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.slow] * (case not in FAST)) for case in CHANGES]
)
def test_a_figure_of_another_measure_is_not_carried_on(resume, case):
    """Neither "before", nor the best value so far, nor the curve."""
    settings, said = CHANGES[case]
    base = Path(shutil.copytree(LEARNS["model_name_or_path"], "base"))
    Path("paid.txt").write_text("1")
    again = resume(**BEST, model_name_or_path=str(base))
    if "generation" in case:
        config = base / "generation_config.json"
        config.write_text(json.dumps(read(config) | {"suppress_tokens": [9]}))
    if "opens" in case:
        Path("paid.txt").write_text("1.0")
    if "column" in case:
        rows(tolerance=50)
    if "code" in case:
        Path("mine.py").write_text(JUDGE.replace("0) >= 50", "0) >= 0"))
    shown = again(**settings)
    state = read("run/checkpoint-4/trainer_state.json")
    curve = read_run(Path("run")).curves["eval/reward"].steps
    if not said:
        assert REUSED in shown and curve == [0, 2, 4]
        return
    assert REUSED not in shown and f"measured again; changed: {said}" in shown, shown
    assert f"the best value so far is dropped, the best from step 2 on counts; changed: {said}" in shown, shown
    measured = {line["step"]: line["eval/reward"] for line in metrics() if "eval/reward" in line}
    assert state["best_metric"] in [measured[2], measured[4]]  # both measured in the session that was resumed
    assert curve == [0, 2, 4]
    assert said in str(read("run/run.json")["sessions"][1]["changed"])
    if settings:  # the new figures are carried on
        assert REUSED in again(**settings, max_steps="6")


def metrics():
    return [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_a_measure_that_was_tried_and_taken_back(resume, monkeypatch):
    """Killed before its first checkpoint: what lies there is of that measure, and the seal is of the first one."""
    again = resume(**BEST)
    first = read("run/eval_before.json")["measure"]
    with monkeypatch.context() as patched:
        patched.setattr(RunTrainer, "training_step", lambda *_, **__: (_ for _ in ()).throw(SystemExit))
        with pytest.raises(SystemExit):
            again(reward_weights="0.5")
    assert read("run/eval_before.json")["measure"] != first
    shown = again()
    assert "is measured again" in shown and read("run/eval_before.json")["measure"] == first
    assert read_run(Path("run")).curves["eval/reward"].steps == [0, 2, 4]


def test_records_of_an_earlier_version_are_resumed(resume):
    """They do not say what a figure rests on, nor name the judge's rule: all is measured again."""
    again = resume(**BEST)
    seal, before = Path("run/checkpoint-2/complete.json"), Path("run/eval_before.json")
    sources = {key: value for key, value in read(seal)["sources"].items() if key.startswith(("code of", "system"))}
    seal.write_text(json.dumps(read(seal) | {"sources": sources}))
    before.write_text(json.dumps({key: value for key, value in read(before).items() if key != "measure"}))
    lines = [{key: value for key, value in line.items() if key != "measure"} for line in metrics()]
    Path("run/metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    shown = again()
    assert "measured again; changed: the rule of the judge" in shown
    assert read_run(Path("run")).curves["eval/reward"].steps == [0, 2, 4]


@pytest.mark.slow
def test_a_best_value_of_trls_evaluation_is_dropped(resume):
    """It could choose in 0.1.0, and sampled; the run's own is greedy."""
    again = resume(**BEST)
    seal = Path("run/checkpoint-2/complete.json")
    sources = read(seal)["sources"] | {"evaluation that chooses the best checkpoint": "TRL's"}
    seal.write_text(json.dumps(read(seal) | {"sources": sources}))
    shown = again()
    assert "from step 2 on counts; changed: the evaluation that chooses the best checkpoint" in shown


@pytest.mark.slow
@pytest.mark.parametrize("other", [{"metric_for_best_model": "accuracy_lenient"}, {"greater_is_better": "false"}])
def test_the_best_value_of_another_metric_is_dropped(resume, other):
    again = resume(**BEST)
    first = read("run/checkpoint-2/trainer_state.json")["best_metric"]
    shown = again(**other)
    assert f"from step 2 on counts; changed: {next(iter(other))}" in shown and REUSED in shown
    name = f"eval/{other.get('metric_for_best_model', 'reward')}"
    values = {line["step"]: line[name] for line in metrics() if name in line}
    better = min if "greater_is_better" in other else max
    best = better((2, 4), key=values.get)
    assert read("run/run.json")["best_step"] == best, (first, values)
    assert f"weights of step {best}, the best from step 2 on by" in shown
    assert read("run/checkpoint-4/trainer_state.json")["best_metric"] == values[best]


def moved(weights):
    """Change one number of a file of weights, and none of its size."""
    tensors = load_file(weights)
    name = min(tensors)
    tensors[name].view(-1)[0] += 1
    size = weights.stat().st_size
    save_file(tensors, weights, {"format": "pt"})
    assert weights.stat().st_size == size


@pytest.mark.slow
@pytest.mark.parametrize("adapter", ["true", "false"])
def test_other_weights_to_begin_with_are_refused(tiny_run, capsys, adapter):
    base = Path(shutil.copytree(LEARNS["model_name_or_path"], "base"))
    own = SHORT | {"model_name_or_path": "base", "use_peft": adapter}
    trained(tiny_run(**own | {"max_steps": "2"}), capsys)
    moved(base / "model.safetensors")
    assert train_grpo.main(tiny_run(**own | {"max_steps": "4", "resume_from_checkpoint": "auto"})) == 2
    line = capsys.readouterr().err
    assert "the weights of 'base' are not those" in line and "--model_name_or_path" in line and "Traceback" not in line
    assert read("run/run.json")["step"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("given", ["optim_args", "nothing"])
def test_options_that_the_checkpoint_overrules_are_refused(tiny_run, capsys, given):
    own = SHORT | {"optim": "rmsprop", "optim_args": "alpha=0.9"}
    trained(tiny_run(**own | {"max_steps": "2"}), capsys)
    other = {"optim_args": "alpha=0.5"} if given == "optim_args" else {}
    status = train_grpo.main(tiny_run(**own | other | {"max_steps": "4", "resume_from_checkpoint": "auto"}))
    assert status == (2 if other else 0)
    assert not other or "use --optim_args alpha=0.9" in capsys.readouterr().err


class Patient(EarlyStoppingCallback):
    """One of the user's, by inheritance."""


class Counting(TrainerCallback, ExportableState):
    """One of the user's that counts evaluations, and has no last one yet."""

    def __init__(self):
        self.count, self.last = 0, None

    def on_evaluate(self, args, state, control, **kwargs):
        self.count, self.last = self.count + 1, float(state.global_step)

    def state(self):
        return {"args": {}, "attributes": {"count": self.count, "last": self.last}}


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2])
def test_callbacks_with_a_state_have_it_again(resume, monkeypatch, count):
    """Also two of a class, where another metric chooses, and beside one that is new."""
    ours, added = train_grpo.callbacks_of, []

    def more(*args):
        is_new = [EarlyStoppingCallback(9)] if added else []
        added[:] = [Counting() for _ in range(count)]
        return [*ours(*args), *added, *is_new]

    monkeypatch.setattr(train_grpo, "callbacks_of", more)
    again = resume(**BEST)
    assert [(one.count, one.last) for one in added] == [(1, 2.0)] * count
    again(metric_for_best_model="accuracy_lenient")
    assert [(one.count, one.last) for one in added] == [(3, 4.0)] * count  # the checkpoint is evaluated, too


@pytest.mark.slow
@pytest.mark.parametrize("kind", [EarlyStoppingCallback, Patient])
def test_early_stopping_remembers_its_patience(tiny_run, capsys, monkeypatch, kind):
    ours = train_grpo.callbacks_of
    monkeypatch.setattr(train_grpo, "callbacks_of", lambda *args: [*ours(*args), kind(3)])
    own = SHORT | BEST | {"learning_rate": "1e-9", "eval_every": "1", "save_steps": "1"}
    del own["load_best_model_at_end"]
    shown = trained(tiny_run(**own | {"max_steps": "12"}), capsys)
    whole = re.search(r"ended training at step (\d+) of 12", shown)[1]
    shutil.rmtree(Path("run") / f"checkpoint-{whole}")
    shown = trained(tiny_run(**own | {"max_steps": "12", "resume_from_checkpoint": "auto"}), capsys)
    assert re.search(r"ended training at step (\d+) of 12", shown)[1] == whole
    # patience that is used up begins anew: otherwise the command that the line offers would do nothing
    shown = trained(tiny_run(**own | {"max_steps": "12", "resume_from_checkpoint": "auto"}), capsys)
    assert int(re.search(r"ended training at step (\d+) of 12", shown)[1]) == int(whole) + 3
