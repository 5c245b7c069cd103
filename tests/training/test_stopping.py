"""grpo/training/stopping.py: a signal costs nothing but time."""

import json
import multiprocessing
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers_checkpoints import make_checkpoint
from helpers_commands import start
from helpers_runs import LEARNS, ROOT

import train_grpo
from grpo.core.errors import Interrupted
from grpo.evaluation import evaluate
from grpo.runs import checkpoints
from grpo.runs.run import Run
from grpo.training import callbacks
from grpo.training.stopping import StopAtRolloutEnd
from grpo.training.trainer import LeanGRPOTrainer


@pytest.fixture(autouse=True)
def _not_ignored():
    """As in a terminal, wherever the tests run: a shell that starts them with & has SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class SignalInTheSecondStep(callbacks.MetricsFile):
    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == 1:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.slow
def test_a_signal_ends_the_step_saves_and_reports(tiny_run, monkeypatch, capfd):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with monkeypatch.context() as patched:
        patched.setattr(callbacks, "MetricsFile", SignalInTheSecondStep)
        flags = tiny_run(**{**LEARNS, "max_steps": "4", "eval_samples": "2"})
        assert train_grpo.main(flags) == 143
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    out, err = capfd.readouterr()
    assert "SIGTERM: finishing" in err and "Traceback" not in err
    assert "Interrupted by SIGTERM. To resume: python train_grpo.py" in out
    assert "--resume_from_checkpoint auto" in out
    run = Path("run")
    assert checkpoints.newest(run) == (run / "checkpoint-2", [])
    assert json.loads((run / "run.json").read_text())["status"] == "interrupted by SIGTERM"
    assert [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()] == [1, 2, 2]
    assert (run / "report.html").exists() and not (run / "eval_after.json").exists()
    assert "Optimizer steps: 2 (interrupted by SIGTERM)" in (run / "README.md").read_text()
    assert train_grpo.main([*flags, "--resume_from_checkpoint", "auto"]) == 0
    record = json.loads((run / "run.json").read_text())
    assert record["status"] == "finished" and [s["from_step"] for s in record["sessions"]] == [0, 2]
    steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert steps == [1, 2, 3, 4, 4] and "reused from the start of the run" in capfd.readouterr().out


def interrupted_at(monkeypatch, evaluation):
    """Let this process get SIGTERM in this evaluation of its run, which would take long."""
    measure, calls = evaluate.measure, []

    def interrupted(*args, **kwargs):
        calls.append(1)
        if len(calls) == evaluation:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(10)
        return measure(*args, **kwargs)

    monkeypatch.setattr(evaluate, "measure", interrupted)


def test_a_signal_while_nothing_is_trained_ends_the_run_at_once(tiny_run, monkeypatch, capfd):
    interrupted_at(monkeypatch, 1)
    assert train_grpo.main(tiny_run(max_steps="1")) == 143
    err = capfd.readouterr().err
    assert "\nInterrupted by SIGTERM. There is no checkpoint to resume from\n" in f"\n{err}"
    assert "Traceback" not in err
    assert json.loads(Path("run/run.json").read_text())["status"] == "interrupted by SIGTERM"


def test_a_signal_in_the_last_evaluation_keeps_the_weights(tiny_run, monkeypatch, capfd):
    interrupted_at(monkeypatch, 2)
    assert train_grpo.main(tiny_run(max_steps="1", save_strategy="no")) == 143
    assert "Interrupted by SIGTERM. There is no checkpoint to resume from" in capfd.readouterr().err
    assert Path("run/model.safetensors").exists()  # which no restart replaces: tests/runs/test_directory.py
    page = Path("run/report.html").read_text()
    assert "interrupted by SIGTERM</span>" in page and "http-equiv" not in page


def test_ctrl_c_before_a_run_has_begun_is_one_line(monkeypatch, capfd):
    monkeypatch.setattr(train_grpo, "configure", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
    assert train_grpo.main([]) == 130
    assert capfd.readouterr().err == "Interrupted\n"


def fake(tmp_path, step=4, every=1, processes=1, gathered=None):
    """As much of a trainer as StopAtRolloutEnd asks."""
    trainer = type("Fake", (SimpleNamespace,), {"at_boundary": LeanGRPOTrainer.at_boundary})
    accelerator = SimpleNamespace(
        num_processes=processes, device="cpu", gather=lambda own: own if gathered is None else gathered
    )
    return trainer(
        _step=step, num_iterations=1, accelerator=accelerator, is_world_process_zero=lambda: True,
        args=SimpleNamespace(steps_per_generation=every, output_dir=str(tmp_path)),
    )  # fmt: skip


def run(tmp_path, *argv):
    script = SimpleNamespace(eval_only=False, dataset_name="a.csv")
    return Run(SimpleNamespace(output=tmp_path, argv=list(argv), started=0.0, script=script))


def stopping(tmp_path, **settings):
    made = run(tmp_path)
    return made, StopAtRolloutEnd(fake(tmp_path, **settings), made)


def control():
    return SimpleNamespace(should_save=False, should_log=False, should_training_stop=False)


STATE = SimpleNamespace(global_step=4, max_steps=10, is_world_process_zero=True)


def test_unusable_checkpoints_are_not_recommended(tmp_path):
    ending = run(tmp_path)
    make_checkpoint(tmp_path, 3, sealed=False)
    ending.request_stop("SIGTERM")
    assert ending.how_to_resume() == "There is no checkpoint to resume from"


def test_the_first_reason_to_stop_counts(tmp_path):
    (ending, stop), asked = stopping(tmp_path), control()
    ending.request_stop("faulty rewards")
    ending.request_stop("an alarm")
    stop.on_step_end(None, STATE, asked)
    assert (ending.reason, ending.status) == ("faulty rewards", 3)
    assert asked.should_training_stop and asked.should_save


def test_checkpoints_due_amid_a_rollout_come_at_its_end(tmp_path):
    (ending, stop), saved = stopping(tmp_path, every=3), []
    for step in range(1, 9):
        state = SimpleNamespace(global_step=step, max_steps=8, is_world_process_zero=True)
        stop.trainer._step, asked = step, control()
        asked.should_save = step % 2 == 0
        if step == 4:
            ending.request_stop("an alarm")
        stop.on_step_end(None, state, asked)
        saved += [step] * asked.should_save
        assert asked.should_log is asked.should_save  # a checkpoint holds no metrics that wait for a log
        assert asked.should_training_stop == (step in (6, 8))  # at the rollout's end, or the run's
    assert saved == [3, 6, 8]


def test_what_one_process_was_told_ends_all_of_them(tmp_path):
    import torch

    (ending, stop), asked = stopping(tmp_path, processes=2, gathered=torch.tensor([0, 15])), control()
    stop.on_step_end(None, STATE, asked)
    assert (ending.reason, ending.status) == ("SIGTERM", 143) and asked.should_training_stop


def test_under_torchrun_a_line_says_how_long_it_waits(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    ending, stop = stopping(tmp_path)
    stop.on_train_begin(None, STATE, control())
    with ending._signals():
        os.kill(os.getpid(), signal.SIGTERM)
    assert "torchrun kills it after 30 seconds (--shutdown-timeout)" in capfd.readouterr().err


def test_outside_of_training_a_signal_raises(tmp_path):
    ending = run(tmp_path, "--output_dir", str(tmp_path))
    with (
        pytest.raises(Interrupted, match="There is no checkpoint") as caught,
        ending._readable(),
        ending._signals(),
    ):
        os.kill(os.getpid(), signal.SIGINT)
    assert caught.value.status == 130
    make_checkpoint(tmp_path, 3)
    ending = run(tmp_path, "--output_dir", str(tmp_path))
    with (
        pytest.raises(Interrupted, match=r" by SIGTERM\. To resume: .*--resume_from_checkpoint auto"),
        ending._readable(),
        ending._signals(),
    ):
        os.kill(os.getpid(), signal.SIGTERM)


def test_a_signal_that_was_ignored_stays_so(tmp_path):
    """As nohup and a script's `&` leave SIGINT to a process."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with run(tmp_path)._signals():
            os.kill(os.getpid(), signal.SIGINT)
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_rewards_child_ends_by_sigterm_but_not_by_ctrl_c(tmp_path, capfd):
    ending, stop = stopping(tmp_path)
    context = multiprocessing.get_context("fork")
    with ending._signals():
        stop.on_train_begin(None, None, None)
        child = context.Process(target=time.sleep, args=(60,), daemon=True)
        child.start()
        os.kill(child.pid, signal.SIGINT)
        child.join(0.5)
        assert child.exitcode is None
        child.terminate()
        child.join(10)
    assert child.exitcode == -signal.SIGTERM and not ending.signal
    assert capfd.readouterr().err == ""


def test_a_second_signal_acts_as_if_nobody_had_taken_the_first(tmp_path, capfd):
    make_checkpoint(tmp_path, 4)
    (tmp_path / "run.json").write_text('{"status": "running", "sessions": [{}]}')
    ending, stop = stopping(tmp_path)
    ending._recorded = True
    with (
        pytest.raises(Interrupted, match=r"To resume: .*_checkpoint auto") as caught,
        ending._readable(),
        ending._signals(),
    ):
        stop.on_train_begin(None, None, None)
        os.kill(os.getpid(), signal.SIGTERM)
        assert ending.signal == signal.SIGTERM
        os.kill(os.getpid(), signal.SIGINT)
    assert caught.value.status == 130
    assert json.loads((tmp_path / "run.json").read_text())["status"] == "interrupted by Ctrl-C"
    assert capfd.readouterr().err.count("finishing this rollout's steps") == 1


def test_under_torchrun_further_signals_are_its_echo(tmp_path, monkeypatch):
    """As Slurm sends it: torchrun gets one, too, and passes it on."""
    ending, stop = stopping(tmp_path)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    with ending._signals():
        stop.on_train_begin(None, None, None)
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGTERM)
        assert ending.signal == signal.SIGTERM


# --- Real processes


def begun(argv, run, processes=1, step=2):
    """A run that has logged this step."""
    started = start(ROOT / "train_grpo.py", argv, processes)
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline and all(process.is_alive() for process in started.processes):
        text = (run / "metrics.jsonl").read_text() if (run / "metrics.jsonl").exists() else ""
        if f'"step": {step}, ' in text:
            return started
        time.sleep(0.02)
    raise AssertionError(started.wait(timeout=0).stderr[-3000:])


LONG = {**LEARNS, "max_steps": "2000", "save_strategy": "no", "max_completion_length": "8", "logging_steps": "1"}


@pytest.mark.slow
def test_under_torchrun_all_processes_save_and_stop_in_time(tiny_run):
    started = begun(tiny_run(**{**LONG, "per_device_train_batch_size": "8"}), Path("run"), processes=2)
    for process in started.processes:  # as torchrun passes it on
        process.terminate()
    done = started.wait(timeout=30)  # after which a launcher kills
    assert "Interrupted by SIGTERM. To resume: torchrun --nproc_per_node=2 train_grpo.py" in done.stdout + done.stderr
    found, skipped = checkpoints.newest(Path("run"))
    assert found is not None and not skipped and (found / "rng_state_1.pth").exists()
    last = json.loads(Path("run/metrics.jsonl").read_text().splitlines()[-1])
    assert checkpoints.step_of(found) == last["step"] and Path("run/report.html").exists()
