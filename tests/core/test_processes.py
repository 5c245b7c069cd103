"""grpo/core/processes.py; several machines are launchers with addresses of their own on the loopback interface."""

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import helpers_trainer
import pytest
import torch
from helpers_commands import on_two_machines
from helpers_gradients import CASES, gradients
from helpers_resume import assert_same, state_of
from helpers_runs import LEARNS, LONG, ROOT
from trl import GRPOTrainer

import train_grpo
from grpo.core import processes
from grpo.core.errors import Gone, UserError
from grpo.runs import checkpoints, resume
from grpo.runs import directory as run_directory
from grpo.training.trainer import LeanGRPOTrainer

ADDRESSES = ("127.0.0.2", "127.0.0.3")
SECOND = {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
SECOND |= {"GROUP_WORLD_SIZE": "2", "GROUP_RANK": "1", "MASTER_ADDR": "10.0.0.5", "MASTER_PORT": "29500"}


@pytest.fixture
def second(monkeypatch):
    """The environment of a process on the second of two machines."""
    for name, value in SECOND.items():
        monkeypatch.setenv(name, value)


# --- The end

# Twice in the same processes: DDP in a cycle, as a trainer has it, and a collective whose tensors outlast a barrier
ENDS = """
import os, sys
sys.path.insert(0, {root!r})
import torch, torch.distributed as dist
from accelerate import PartialState
from torch.nn.parallel import DistributedDataParallel
from grpo.core import processes

def gloo_threads():
    names = [open(f"/proc/self/task/{{number}}/comm").read() for number in os.listdir("/proc/self/task")]
    return sum(name.startswith("pt_gloo_runloop") for name in names)

def run():
    processes.meet_on_cpu(dict(use_cpu=True, ddp_timeout=60, ddp_backend=None))
    PartialState(cpu=True)
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    model.cycle = model
    model(torch.ones(2, 4)).sum().backward()
    dist.all_gather_object([None, None], "x")

for _ in range(2):
    run()
    during = gloo_threads()
    processes.end_process_group()
    os.write(1, f"threads {{during}} {{gloo_threads()}}\\n".encode())
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="names of threads are Linux'")
def test_ended_processes_have_no_gloo_thread_and_can_meet_again():
    """Such a thread aborts Python ("terminate called") when it needs the GIL while the interpreter ends."""
    Path("ends.py").write_text(ENDS.format(root=str(ROOT)))
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone", "ends.py"]
    done = subprocess.run(launch, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("threads 2 0") == 4


@pytest.mark.parametrize(
    ("error", "kind", "line"),
    [
        (RuntimeError("[gloo/pair.cc:5] Connection closed by peer"), Gone, "all that it saved is complete"),
        (ZeroDivisionError("a bug"), ZeroDivisionError, "a bug"),
    ],
    ids=["gone", "bug"],
)
def test_a_process_gone_at_the_end_is_one_line(second, monkeypatch, error, kind, line):
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("accelerate.PartialState", lambda: SimpleNamespace(wait_for_everyone=wait))

    def wait():
        raise error

    with pytest.raises(kind, match=line):
        processes.end_process_group()


def test_one_process_ends_without_a_group():
    processes.end_process_group()


# --- What is said


def test_the_command_is_the_same_on_every_machine(second, monkeypatch):
    rendezvous = "--rdzv_backend=c10d --rdzv_endpoint=10.0.0.5:29500"
    assert processes.launch() == f"torchrun --nnodes=2 --nproc_per_node=1 {rendezvous}"
    assert processes.on_each() == ", on each of the 2 machines"
    assert processes.speaker() == "error: [process 1, machine 2 of 2]"
    monkeypatch.delenv("GROUP_WORLD_SIZE")  # srun's tasks: the processes tell
    assert processes.count() == 2
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert (processes.launch(), processes.on_each()) == ("torchrun --nproc_per_node=2", "")


def test_what_accelerate_has_started_resumes_by_its_launcher(monkeypatch):
    """Without its options, what FSDP or DeepSpeed has divided would be read as if it were not."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setenv("ACCELERATE_DYNAMO_USE_FULLGRAPH", "False")
    assert processes.launch() == "accelerate launch [its options as before]"


def test_accelerates_own_options_are_read_from_its_command(tmp_path):
    (tmp_path / "accelerate").write_text("import subprocess, sys; subprocess.run([sys.executable, *sys.argv[4:]])")
    (tmp_path / "train.py").write_text("from grpo.core import processes; print(processes.launch())")
    words = ["accelerate", "launch", "--config_file", "my file.yaml", "train.py", "--beta", "0.1"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "ACCELERATE_DYNAMO_USE_FULLGRAPH": "False"}
    done = subprocess.run([sys.executable, *words], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.stdout == "accelerate launch --config_file 'my file.yaml'\n"


def test_only_the_first_machine_judges_the_directory(second, monkeypatch):
    """Before they have met, the first would wait for it in vain; a directory that differs is found afterwards."""
    assert run_directory.claim("run", "unused", "auto", False) == ("run", None, ())
    monkeypatch.setenv("GROUP_RANK", "0")
    with pytest.raises(UserError, match="'run' holds no checkpoint; drop the flag"):
        run_directory.claim("run", "unused", "auto", False)


def test_settings_unfit_for_several_machines_are_refused(second, monkeypatch, tiny_run, capsys):
    monkeypatch.setenv("RANK", "0")
    assert train_grpo.main(tiny_run(save_on_each_node="true")) == 2
    assert "save_on_each_node: true would let every machine write the same run" in capsys.readouterr().err
    Path("checkpoint-1").mkdir()
    checkpoints.seal(Path("checkpoint-1"), 4)
    with pytest.raises(UserError, match=r"4 processes.*use --nnodes times --nproc_per_node=4"):
        resume.compare(Path("checkpoint-1"), {}, 2)


# --- Two launchers

DIES = """
import os, signal, sys
sys.path.insert(0, {root!r})
from grpo.training import callbacks
class Dies(callbacks.MetricsFile):
    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == 2 and os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os.kill(os.getpid(), signal.{signal})
callbacks.MetricsFile = Dies
import train_grpo
sys.exit(train_grpo.main())
"""


def dies(signal):
    Path("dies.py").write_text(DIES.format(root=str(ROOT), signal=signal))
    return Path("dies.py").resolve()


def free_port():
    with socket.socket() as taken:
        taken.bind((ADDRESSES[0], 0))
        return taken.getsockname()[1]


def start(options, words, node):
    """A machine's launcher; its output is in `node<N>.log`."""
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "TOKENIZERS_PARALLELISM": "false", "COLUMNS": "100"}
    launch = [sys.executable, "-m", "torch.distributed.run", f"--local_addr={ADDRESSES[node]}", *options]
    with Path(f"node{node}.log").open("wb") as log:
        return subprocess.Popen(
            [*launch, *map(str, words)], env=environment, stdout=log, stderr=log,
            stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip


def machines(*words, more=()):
    """Start a script on two machines by torchrun's own rendezvous; their launchers."""
    where = [f"--master_addr={ADDRESSES[0]}", f"--master_port={free_port()}", "--nnodes=2", "--nproc_per_node=1"]
    return [start([*where, f"--node_rank={node}", *more], words, node) for node in (0, 1)]


def ended(launchers, timeout=240):
    """Their exit statuses and outputs; the test fails where they do not end."""
    try:
        statuses = [launcher.wait(timeout=timeout) for launcher in launchers]
    finally:
        for launcher in launchers:
            if launcher.poll() is None:
                launcher.kill()
    return statuses, [Path(f"node{node}.log").read_text(errors="replace") for node in (0, 1)]


STEPS = {**LEARNS, "per_device_train_batch_size": "8", "max_steps": "4", "save_steps": "1", "save_total_limit": "9"}
STEPS |= {"logging_steps": "1", "max_completion_length": "24", "eval_samples": "2"}


@pytest.mark.slow
def test_two_machines_resume_by_the_printed_command(tiny_run):
    whole, killed = (tiny_run(**STEPS, output_dir=name) for name in ("whole", "killed"))
    first, other = on_two_machines(ROOT / "train_grpo.py", whole)
    assert first.returncode == other.returncode == 0, first.stderr + other.stderr
    shown = first.stdout
    assert shown.count("Run: ") == shown.count("Saved in ") == shown.count("Training (a loss near 0") == 1
    assert not other.stdout.strip()
    assert (Path("whole/checkpoint-4") / "rng_state_1.pth").exists() and not list(Path("whole").glob(".shared-*"))

    first, other = on_two_machines(dies("SIGKILL"), killed)
    assert first.returncode > 0 and other.returncode == -signal.SIGKILL
    (line,) = re.findall(r"^error: .*$", first.stderr, re.M)
    assert "another process of this run is gone or does not answer (" in line
    assert "the newest complete checkpoint is killed/checkpoint-2. To resume, on each of the 2 machines: " in line
    assert "grpo/training" not in first.stderr  # no traceback of ours
    assert json.loads(Path("killed/run.json").read_text())["status"].startswith("failed: ")

    words = shlex.split(line.partition("machines: ")[2])
    assert words[0] == "torchrun" and words.index("train_grpo.py") == 5
    first, other = on_two_machines(ROOT / "train_grpo.py", words[6:])
    assert first.returncode == other.returncode == 0, first.stderr + other.stderr
    assert [each["from_step"] for each in json.loads(Path("killed/run.json").read_text())["sessions"]] == [0, 2]
    assert_same(state_of(Path("killed")), state_of(Path("whole")))


IMPATIENT = """
import sys
sys.path.insert(0, {root!r})
from grpo.core import ending, processes
ending.HEAD_START = processes.SHARED_DIR_TIMEOUT = 0.5
import train_grpo
sys.exit(train_grpo.main())
"""


@pytest.mark.slow
def test_machines_without_a_shared_directory_are_refused(tiny_run):
    """Also where only the first one has the checkpoint that is asked for."""
    for name in ("one", "two"):
        Path(name).mkdir()
    flags = tiny_run(**STEPS, output_dir="run", resume_from_checkpoint="auto")
    make_run(Path("one/run"))
    Path("impatient.py").write_text(IMPATIENT.format(root=str(ROOT)))
    both = on_two_machines(Path("impatient.py").resolve(), flags, directories=("one", "two"))
    for done, name in zip(both, ("error: ", "error: [process 1, machine 2 of 2] "), strict=True):
        assert done.returncode == 2
        (line,) = re.findall(r"^error: .*$", done.stderr, re.M)
        assert line.startswith(f"{name}output_dir: ") and "one/run on " in line and "two/run on " in line
        assert "use an output_dir on a file system that they share" in line
    assert not list(Path("two").iterdir()) and not list(Path("one/run").glob(".shared-*"))


def make_run(directory):
    """What a run leaves that was killed before its first checkpoint."""
    directory.mkdir()
    record = {"status": "running", "sessions": [{"from_step": 0}], "settings": {}}
    (directory / "run.json").write_text(json.dumps(record))


@pytest.mark.slow
@pytest.mark.skipif(not LONG, reason="the long profile's")
def test_a_machine_that_hangs_ends_the_run_after_ddp_timeout(tiny_run):
    launchers = machines(dies("SIGSTOP"), *tiny_run(**STEPS, ddp_timeout="15"))
    try:
        assert launchers[0].wait(timeout=200) == 1
    finally:
        subprocess.run(["pkill", "-9", "-P", str(launchers[1].pid)])
        ended(launchers)
    (line,) = re.findall(r"^error: .*$", Path("node0.log").read_text(), re.M)
    assert "(Timed out waiting 15000ms" in line and "raise ddp_timeout" in line
    assert "the newest complete checkpoint is run/checkpoint-2" in line


@pytest.mark.slow
@pytest.mark.skipif(not LONG, reason="the long profile's")
def test_a_run_that_torchrun_starts_again_resumes(tiny_run):
    script, flags = dies("SIGKILL"), tiny_run(**STEPS, resume_from_checkpoint="auto")
    statuses, logs = ended(machines(script, *flags, more=["--max_restarts=2"]))
    assert statuses == [0, 0], "".join(logs)
    record = json.loads(Path("run/run.json").read_text())
    assert record["status"] == "finished" and [each["from_step"] for each in record["sessions"]] == [0, 2]


# --- Gradients

GRADIENTS = """
import os, sys
sys.path[:0] = [{root!r}, {tests!r} + "/helpers"]
from pathlib import Path
import torch
from grpo.core import processes
from helpers_gradients import CASES, gradients
from helpers_trainer import GRPOTrainer, LeanGRPOTrainer
found = {{}}
for name in CASES:
    for trainer_class in (GRPOTrainer, LeanGRPOTrainer):
        found[name, trainer_class.__name__], trainer = gradients(trainer_class, name, {model!r}, 8, Path("out"))
if os.environ["RANK"] == "0":
    torch.save(found, "gradients.pt")
del trainer
processes.end_process_group()
"""


@pytest.mark.slow
def test_two_machines_have_the_gradients_of_one_process(tiny_model, tmp_path):
    tests = str(ROOT / "tests")
    script = Path("gradients.py").resolve()
    script.write_text(GRADIENTS.format(root=str(ROOT), tests=tests, model=tiny_model))
    for machine in on_two_machines(script):
        assert machine.returncode == 0, machine.stderr[-4000:]
    found = torch.load("gradients.pt", weights_only=False)
    for case in CASES:
        whole, _ = gradients(GRPOTrainer, case, tiny_model, 16, tmp_path)
        assert any(gradient.any() for gradient in whole[0].values())
        for trainer_class in (GRPOTrainer, LeanGRPOTrainer):
            two = found[case, trainer_class.__name__]
            assert helpers_trainer.largest_difference(whole, two) < 1e-5, (case, trainer_class)
