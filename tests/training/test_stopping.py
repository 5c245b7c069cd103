"""grpo/training/stopping.py: a signal costs nothing but time, and every checkpoint is at a rollout's end."""

import json
import os
import pydoc
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers_resume import assert_same, state_of
from helpers_runs import LEARNS, run_in

import train_grpo
from grpo.core import phases
from grpo.core.processes import GivenUp, by_first_process
from grpo.evaluation.evaluate import HeldOut
from grpo.runs import checkpoints
from grpo.training import callbacks
from grpo.training.run_trainer import RunTrainer
from grpo.training.stopping import StopAtRolloutEnd


@pytest.fixture(autouse=True)
def _not_ignored():
    """Take SIGINT as in a terminal: a shell that starts the tests with & has it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler), signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGINT, before[0])
    signal.signal(signal.SIGHUP, before[1])


@pytest.fixture
def signal_in_the_second_step(monkeypatch):
    def send(*signals):
        class Signals(callbacks.MetricsFile):
            def on_pre_optimizer_step(self, args, state, control, **kwargs):
                if state.global_step == 1 and not sent:
                    sent.extend(signals)
                    for number in signals:
                        os.kill(os.getpid(), number)

        sent = []
        monkeypatch.setattr(callbacks, "MetricsFile", Signals)

    return send


def status(run=Path("run")):
    return json.loads((run / "run.json").read_text())["status"]


def test_a_signal_lets_the_step_end_and_the_handlers_return(tiny_run, signal_in_the_second_step, capfd):
    """Files, status and commands then: tests/test_life_of_a_run.py."""
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    signal_in_the_second_step(signal.SIGTERM)
    flags, run = tiny_run(**{**LEARNS, "max_steps": "4", "eval_samples": "2"}), Path("run")
    assert train_grpo.main(flags) == 143
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    err = capfd.readouterr().err
    assert "SIGTERM: finishing" in err and "Traceback" not in err
    assert checkpoints.newest(run) == (run / "checkpoint-2", [])
    assert train_grpo.main([*flags, "--resume_from_checkpoint", "auto"]) == 0
    assert "reused from the start of the run" in capfd.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGUSR1", "SIGHUP"])
def test_slurms_warning_and_a_closed_terminal_end_a_run_as_sigterm_does(name, tiny_run, signal_in_the_second_step):
    number = signal.Signals[name]
    signal_in_the_second_step(number)
    assert train_grpo.main(tiny_run(**{**LEARNS, "max_steps": "4", "eval_samples": "0"})) == 128 + number
    assert status() == f"interrupted by {name}" and checkpoints.newest(Path("run"))[0] == Path("run/checkpoint-2")
    assert signal.getsignal(number) is signal.SIG_DFL


@pytest.mark.slow
def test_a_hangup_under_nohup_stays_ignored(tiny_run, signal_in_the_second_step):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal_in_the_second_step(signal.SIGHUP)
    assert train_grpo.main(tiny_run(**{**LEARNS, "max_steps": "3", "eval_samples": "0"})) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("signals", "launched", "exit_status", "last"),
    [
        ((signal.SIGTERM, signal.SIGINT), False, 130, 1),
        ((signal.SIGTERM,) * 3, True, 143, 2),  # torchrun passes on what its processes have got, too
    ],
    ids=["by hand", "torchrun's echo"],
)
def test_a_second_signal_ends_at_once_unless_it_is_an_echo(
    tiny_run, signal_in_the_second_step, monkeypatch, capfd, signals, launched, exit_status, last
):
    signal_in_the_second_step(*signals)
    if launched:
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert train_grpo.main(tiny_run(**{**LEARNS, "max_steps": "3", "save_steps": "1"})) == exit_status
    assert checkpoints.newest(Path("run")) == (Path(f"run/checkpoint-{last}"), [])
    assert status() == f"interrupted by {'SIGTERM' if launched else 'Ctrl-C'}"
    assert "--resume_from_checkpoint auto" in "".join(capfd.readouterr())


def interrupted_at(monkeypatch, evaluation):
    """Let this process get SIGTERM in this evaluation of its run, which would take long."""
    measure, calls = HeldOut.evaluate, []

    def interrupted(*args, **kwargs):
        calls.append(1)
        if len(calls) == evaluation:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(10)
        return measure(*args, **kwargs)

    monkeypatch.setattr(HeldOut, "evaluate", interrupted)


def test_a_signal_while_nothing_is_trained_ends_the_run_at_once(tiny_run, monkeypatch, capfd):
    interrupted_at(monkeypatch, 1)
    assert train_grpo.main(tiny_run(max_steps="1")) == 143
    err = capfd.readouterr().err
    assert "Interrupted by SIGTERM. There is no checkpoint to resume from\n" in err and "Traceback" not in err
    assert status() == "interrupted by SIGTERM"


def test_a_signal_in_the_last_evaluation_keeps_the_weights(tiny_run, monkeypatch, capfd):
    interrupted_at(monkeypatch, 2)
    assert train_grpo.main(tiny_run(max_steps="1", save_strategy="no")) == 143
    assert Path("run/model.safetensors").exists()  # which no restart replaces: tests/runs/test_directory.py
    page = Path("run/report.html").read_text()
    assert "interrupted by SIGTERM</span>" in page and "http-equiv" not in page


# --- At a rollout's end


def stopping(tmp_path, every=1):
    """(run, its callback, as much of a trainer as that asks)."""
    trainer = type("Fake", (SimpleNamespace,), {"at_boundary": RunTrainer.at_boundary})(
        _step=4, num_iterations=1, args=SimpleNamespace(steps_per_generation=every), keep_random_states=lambda: None
    )
    run = run_in(tmp_path)
    return run, StopAtRolloutEnd(trainer, run), trainer


def end_step(callback, step=4, due=False):
    """The callback's answer at a step's end where a checkpoint is due or not."""
    control = SimpleNamespace(should_save=due, should_log=False, should_training_stop=False, should_evaluate=True)
    state = SimpleNamespace(global_step=step, max_steps=8, is_world_process_zero=True)
    callback.on_step_end(None, state, control)
    return control


def test_the_first_reason_to_stop_counts(tmp_path):
    run, callback, _ = stopping(tmp_path)
    run.request_stop("faulty rewards")
    run.request_stop("an alarm")
    asked = end_step(callback, due=False)
    assert (run.ending, run.status) == ("stopped by faulty rewards", 3)
    assert asked.should_training_stop and asked.should_save


def test_another_callbacks_request_to_end_waits_for_the_rollouts_end(tmp_path):
    run, callback, trainer = stopping(tmp_path, every=3)
    state = SimpleNamespace(global_step=4, max_steps=8)
    asked = SimpleNamespace(should_save=False, should_training_stop=True, should_evaluate=True)
    callback.on_evaluate(None, state, asked)
    assert run.early and not asked.should_training_stop  # step 4 is amid a rollout
    trainer._step = 6
    ended = end_step(callback, step=6)
    assert ended.should_training_stop and ended.should_save


def test_checkpoints_due_amid_a_rollout_come_at_its_end(tmp_path):
    run, callback, trainer = stopping(tmp_path, every=3)
    saved, stopped = [], []
    for step in range(1, 9):
        trainer._step = step
        if step == 4:
            run.request_stop("an alarm")
        asked = end_step(callback, step, due=step % 2 == 0)
        saved += [step] * asked.should_save
        stopped += [step] * asked.should_training_stop
        assert asked.should_log is (
            asked.should_save or step == 8
        )  # a checkpoint holds no metrics that wait for a log
    assert saved == [3, 6, 8] and stopped == [6, 8]  # at the rollout's end, or the run's


def test_a_signal_to_one_process_ends_all_of_them(tmp_path, monkeypatch):
    run, callback, _ = stopping(tmp_path)
    assert end_step(callback).should_evaluate
    monkeypatch.setattr("grpo.runs.run.largest", lambda own: signal.SIGTERM)
    asked = end_step(callback)
    assert asked.should_training_stop and not asked.should_evaluate
    assert (run.ending, run.status) == ("interrupted by SIGTERM", 143)


@pytest.mark.parametrize(
    ("phase", "reaction"),
    [
        (phases.SAMPLING, "giving up this rollout"),
        (phases.EVALUATION, "giving up this evaluation"),
        (phases.REWARDS, "finishing this rollout's steps"),
        (phases.SAVING, "finishing this rollout's steps"),
    ],
)
def test_a_signal_says_whether_it_gives_up_the_runs_phase(tmp_path, capfd, phase, reaction):
    run, _, _ = stopping(tmp_path)
    run.training = True
    with run.during(phase):
        run._take(signal.SIGTERM, None)
    assert capfd.readouterr().err == f"\nSIGTERM: {reaction}, then saving\n"


# --- While work is done that a resumed run repeats

REPEATS = {**LEARNS, "max_steps": "4", "eval_samples": "4", "max_samples": "30", "max_completion_length": "12"}
REPEATS |= {"logging_steps": "1", "save_steps": "3"}
BY_STEPS = {"eval_strategy": "steps", "eval_steps": "2", "per_device_eval_batch_size": "8"}
# After step 2: the settings, the function that the signal meets, in which of its calls, and the work that is given up
MOMENTS = {
    "answers": ({"eval_every": "2"}, "grpo.policy.answering.complete", 2, "giving up this evaluation"),
    "rewards of answers": ({"eval_every": "2"}, "grpo.rewarding.guard.score", 2, "giving up this evaluation"),
    "a rollout": ({"eval_every": "2"}, "lean_grpo.sampling.complete", 3, "giving up this rollout"),
    "a rollout by generate": (
        {"repetition_penalty": "1.1"},
        "transformers.GenerationMixin.generate",
        3,
        "giving up this rollout",
    ),
    "a checkpoint": ({"save_steps": "2"}, "grpo.runs.checkpoints.seal", 1, "finishing this rollout's steps"),
    "TRL's evaluation": (BY_STEPS, "lean_grpo.sampling.complete", 3, "giving up this evaluation"),
}


def trained(run):
    """The state of a finished run without TRL's evaluations, whose lines a resumed run may lack."""
    state = state_of(Path(run))
    if any("eval_reward" in line for line in state["metrics"]):
        del state["samples"]  # TRL's evaluations replace those of their step
    for lines in (state["metrics"], state["state"]["log_history"]):
        lines[:] = [line for line in lines if not any(key.startswith("eval_") for key in line)]
        lines.sort(key=lambda line: (line["step"], "eval/n" in line, "train_loss" in line))
    return state


@pytest.mark.parametrize(
    "moment", [pytest.param(name, marks=[pytest.mark.slow] * (name != "a rollout")) for name in MOMENTS]
)
def test_a_signal_ends_work_that_is_repeated(tiny_run, monkeypatch, capfd, moment):
    settings, name, call, work = MOMENTS[moment]
    flags, (owner, _, attribute) = tiny_run(**REPEATS | settings), name.rpartition(".")
    assert train_grpo.main([*flags, "--output_dir", "whole"]) == 0
    original, calls = pydoc.locate(name), []

    def interrupted(*args, **kwargs):
        calls.append(1)
        if len(calls) == call:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(*args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(pydoc.locate(owner), attribute, interrupted)
        assert train_grpo.main(flags) == 143
    assert len(calls) == call and f"SIGTERM: {work}, then saving" in capfd.readouterr().err
    assert checkpoints.newest(Path("run")) == (Path("run/checkpoint-2"), []) and status() == "interrupted by SIGTERM"
    assert train_grpo.main([*flags, "--resume_from_checkpoint", "auto"]) == 0
    assert_same(trained("run"), trained("whole"))


def test_a_signal_in_the_curves_last_evaluation_keeps_the_weights(tiny_run, monkeypatch):
    interrupted_at(monkeypatch, 2)
    flags = tiny_run(max_steps="1", save_strategy="no", eval_every="1")
    assert train_grpo.main(flags) == 143
    assert Path("run/model.safetensors").exists() and status() == "interrupted by SIGTERM"
    assert not Path("run/eval_after.json").exists()


def test_all_processes_learn_that_the_first_gave_up(tmp_path):
    run, _, _ = stopping(tmp_path)
    run.training = True

    def user_code():
        run._take(signal.SIGTERM, None)
        return "never"

    with pytest.raises(GivenUp):
        by_first_process(user_code, run.at_once())
    with pytest.raises(GivenUp):  # it does not begin
        by_first_process(lambda: pytest.fail("it began"), run.at_once())
    assert by_first_process(lambda: "done") == "done"
