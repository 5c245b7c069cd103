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
from grpo.core.errors import Interrupted, UserError
from grpo.core.processes import GivenUp, by_all_processes
from grpo.policy.evaluation import HeldOut
from grpo.results.record import RunRecord
from grpo.runs import checkpoints, stop
from grpo.runs import run as runs
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
    assert "interrupted by SIGTERM</span>" in page and '"refresh"' not in page
    saved = "Interrupted by SIGTERM. Its model is saved in run, and no checkpoint to resume from. To draw its report: "
    assert saved in capfd.readouterr().err


def test_a_signal_amid_the_verdict_says_that_results_are_saved(tiny_run, monkeypatch, capfd):
    def interrupted(*args):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(10)

    monkeypatch.setattr("grpo.training.accuracy.print_summaries", interrupted)
    assert train_grpo.main(tiny_run(max_steps="1", save_strategy="no", eval_samples="2")) == 130
    assert Path("run/comparison.json").exists()
    said = "Interrupted by Ctrl-C. The run had ended, and its results are saved. To draw its report: "
    assert said in capfd.readouterr().err


def test_a_signal_while_the_report_is_drawn_names_its_command(tiny_run, monkeypatch, capfd):
    """All results are saved by then, and a resumed run would repeat the last evaluation."""

    def interrupted(directory):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(10)

    monkeypatch.setattr("grpo.report.contents.draw", interrupted)
    assert train_grpo.main(tiny_run(max_steps="1", save_strategy="no", eval_samples="2")) == 130
    (line,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("Interrupted")]
    assert line.startswith("Interrupted by Ctrl-C. The run had ended, and its results are saved. To draw its report: ")
    assert line.endswith(" report run") and status() == "finished"
    assert Path("run/comparison.json").exists() and Path("run/model.safetensors").exists()


# --- At a rollout's end


def stopping(tmp_path, every=1):
    """(run, its callback, as much of a trainer as that asks)."""
    trainer = type("Fake", (SimpleNamespace,), {"at_boundary": RunTrainer.at_boundary})(
        _step=4, num_iterations=1, args=SimpleNamespace(steps_per_generation=every), keep_random_states=lambda: None
    )
    run = run_in(tmp_path)
    callback = StopAtRolloutEnd(run)
    callback.join(trainer)
    return run, callback, trainer


def end_step(callback, step=4, due=False):
    """The callback's answer at a step's end where a checkpoint is due or not."""
    control = SimpleNamespace(should_save=due, should_log=False, should_training_stop=False, should_evaluate=True)
    state = SimpleNamespace(global_step=step, max_steps=8, is_world_process_zero=True)
    callback.on_step_end(None, state, control)
    return control


def test_the_first_reason_to_stop_counts(tmp_path):
    run, callback, _ = stopping(tmp_path)
    run.stop.ask("faulty rewards")
    run.stop.ask("an alarm")
    asked = end_step(callback, due=False)
    assert (run.stop.ending, run.stop.status) == ("stopped by faulty rewards", 3)
    assert asked.should_training_stop and asked.should_save


def test_another_callbacks_request_to_end_waits_for_the_rollouts_end(tmp_path):
    run, callback, trainer = stopping(tmp_path, every=3)
    state = SimpleNamespace(global_step=4, max_steps=8)
    asked = SimpleNamespace(should_save=False, should_training_stop=True, should_evaluate=True)
    callback.on_evaluate(None, state, asked)
    assert run.stop.early and not asked.should_training_stop  # step 4 is amid a rollout
    trainer._step = 6
    ended = end_step(callback, step=6)
    assert ended.should_training_stop and ended.should_save


def test_checkpoints_due_amid_a_rollout_come_at_its_end(tmp_path):
    run, callback, trainer = stopping(tmp_path, every=3)
    saved, stopped = [], []
    for step in range(1, 9):
        trainer._step = step
        if step == 4:
            run.stop.ask("an alarm")
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
    monkeypatch.setattr("grpo.runs.stop.largest", lambda own: signal.SIGTERM)
    asked = end_step(callback)
    assert asked.should_training_stop and not asked.should_evaluate
    assert (run.stop.ending, run.stop.status) == ("interrupted by SIGTERM", 143)


@pytest.mark.parametrize(
    ("phase", "reaction"),
    [
        (phases.SAMPLING, "finishing this rollout's steps"),
        (phases.EVALUATION, "giving up this evaluation"),
        (phases.REWARDS, "finishing this rollout's steps"),
        (phases.SAVING, "finishing this rollout's steps"),
    ],
)
def test_a_signal_says_whether_it_gives_up_the_runs_phase(tmp_path, capfd, phase, reaction):
    run, _, _ = stopping(tmp_path)
    run.stop.training = True
    with run.during(phase):
        run.stop.take(signal.SIGTERM)
    assert capfd.readouterr().err == f"\nSIGTERM: {reaction}, then saving\n"


@pytest.fixture
def under_torchrun(tmp_path, monkeypatch):
    """A function: a run that has a record, in the first of two processes, of which another has failed in this way."""

    def begin(*failed, training=False):
        run = stopping(tmp_path)[0]
        run.record, run.stop.training = RunRecord(status="running", sessions=[{"from_step": 0}]), training
        for name, value in {"LOCAL_RANK": 0, "RANK": 0, "WORLD_SIZE": 2, "TORCHELASTIC_RUN_ID": "none"}.items():
            monkeypatch.setenv(name, str(value))
        for module in (runs, stop):
            monkeypatch.setattr(module, "failure_left", lambda: failed or None)
        return run

    return begin


@pytest.mark.parametrize(
    ("number", "failed", "said"),
    [
        (
            signal.SIGTERM,
            (),
            "\nSIGTERM: finishing this rollout's steps, then saving, unless another process has ended; torch",
        ),
        (signal.SIGTERM, (1, "out of memory"), ""),
        (
            signal.SIGINT,
            (1, "out of memory"),
            "\nCtrl-C: finishing this rollout's steps, then saving; torchrun",
        ),  # yours
    ],
)
def test_no_checkpoint_is_promised_where_another_process_has_ended(under_torchrun, capfd, number, failed, said):
    run = under_torchrun(*failed, training=True)
    with run.during(phases.SAMPLING):
        run.stop.take(number)
    err = capfd.readouterr().err
    assert err.startswith(said) and bool(err) == bool(said) and run.stop.signal == number


OF_LAUNCHER = "by the launcher's SIGTERM: you stopped the run, or another process has ended"
CLOSED = "[/x/gloo/transport/tcp/pair.cc:553] Connection closed by peer"


@pytest.mark.parametrize(
    ("number", "failed", "said", "recorded"),
    [
        (signal.SIGTERM, (), f" {OF_LAUNCHER}", f"interrupted {OF_LAUNCHER}"),
        (signal.SIGINT, (), " by Ctrl-C. There", "interrupted by Ctrl-C"),
        (signal.SIGTERM, (1, "out of memory"), "out of memory", "failed: [process 1] out of memory"),
    ],
)
def test_torchruns_sigterm_outside_of_training_may_not_be_yours(
    tmp_path, under_torchrun, number, failed, said, recorded
):
    run = under_torchrun(*failed)
    with pytest.raises(UserError if failed else Interrupted) as ended, run._readable():
        run.stop.take(number)
    assert str(ended.value).startswith(said) and status(tmp_path).startswith(recorded)
    assert getattr(ended.value, "process", None) == (1 if failed else None)


def test_why_another_process_has_failed_is_recorded(tmp_path, under_torchrun):
    run = under_torchrun(3, "the disk is full", training=True)
    with pytest.raises(UserError, match=r"^the disk is full. There is no checkpoint") as ended, run._readable():
        raise RuntimeError(CLOSED)
    assert ended.value.process == 3 and status(tmp_path) == "failed: [process 3] the disk is full"


def test_a_signal_after_a_failure_does_not_hide_it(under_torchrun, monkeypatch):
    """torchrun's, which comes once the other process has ended."""
    run = under_torchrun()
    monkeypatch.setattr(run, "_note", lambda status: run.stop.take(signal.SIGTERM))
    with pytest.raises(UserError, match="another process of this run has ended"), run._readable():
        raise RuntimeError(CLOSED)


# --- In a rollout, an evaluation, a checkpoint

REPEATS = {**LEARNS, "max_steps": "4", "eval_samples": "4", "max_samples": "30", "max_completion_length": "12"}
REPEATS |= {"logging_steps": "1", "save_steps": "3"}
# The settings, the function that the signal meets, in which of its calls, what is said, and the step of the checkpoint
FINISHED, GIVEN_UP = "finishing this rollout's steps", "giving up this evaluation"
MOMENTS = {  # preflight calls each of five rewards, and the evaluation before training all of them once
    "answers": ({"eval_every": "2"}, "grpo.policy.answering.complete", 2, GIVEN_UP, 2),
    "rewards of answers": ({"eval_every": "2"}, "grpo.scoring.scorer.Scorer.reward", 9, GIVEN_UP, 2),
    "a rollout": ({"eval_every": "2"}, "lean_grpo.sampling.complete", 3, FINISHED, 3),
    "a rollout by generate": (
        {"repetition_penalty": "1.1"},
        "trl.trainer.grpo_trainer.GRPOTrainer._generate_single_turn",
        3,
        FINISHED,
        3,
    ),
    "a checkpoint": ({"save_steps": "2"}, "grpo.runs.checkpoints.seal", 1, FINISHED, 3),
}


def trained(run):
    """The state of a finished run, its lines in one order."""
    state = state_of(Path(run))
    for lines in (state["metrics"], state["state"]["log_history"]):
        lines.sort(key=lambda line: (line["step"], "eval/n" in line, "train_loss" in line))
    return state


@pytest.mark.parametrize(
    "moment", [pytest.param(name, marks=[pytest.mark.slow] * (name != "a rollout")) for name in MOMENTS]
)
def test_a_signal_ends_a_run_that_continues_exactly(tiny_run, monkeypatch, capfd, moment):
    settings, name, call, said, step = MOMENTS[moment]
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
    assert f"SIGTERM: {said}, then saving" in capfd.readouterr().err and status() == "interrupted by SIGTERM"
    assert checkpoints.newest(Path("run")) == (Path(f"run/checkpoint-{step}"), [])
    assert train_grpo.main([*flags, "--resume_from_checkpoint", "auto"]) == 0
    assert_same(trained("run"), trained("whole"))


@pytest.mark.slow
def test_a_signal_in_the_curves_last_evaluation_keeps_the_weights(tiny_run, monkeypatch):
    interrupted_at(monkeypatch, 2)
    flags = tiny_run(max_steps="1", save_strategy="no", eval_every="1")
    assert train_grpo.main(flags) == 143
    assert Path("run/model.safetensors").exists() and status() == "interrupted by SIGTERM"
    assert not Path("run/eval_after.json").exists()


def test_all_processes_learn_that_one_gave_up_its_share(tmp_path):
    run, _, _ = stopping(tmp_path)
    run.stop.training = True

    def share_of(numbers):
        run.stop.take(signal.SIGTERM)
        run.stop.after_batch()
        return dict.fromkeys(numbers)

    with pytest.raises(GivenUp):
        by_all_processes(share_of, 3)
    assert by_all_processes(lambda share: {number: number**2 for number in share}, 3) == {0: 0, 1: 1, 2: 4}
