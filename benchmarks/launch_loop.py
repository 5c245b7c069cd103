"""Launch the whole program on two processes again and again, and count the launches that do not end with status 0.

    python benchmarks/launch_loop.py 200 [--busy 2] [--forked]

Each launch is torchrun with a training run of one step on the demo's model, evaluated before and after. `--busy` adds
processes that only compute, so that threads run in unusual orders. `--forked` leaves torchrun out and imports the
libraries once: each launch is then two forks, which do all the rest, to the end of their interpreters.
"""

import argparse
import gc
import importlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DEMO = ROOT / "assets" / "demo"
FLAGS = {
    "use_cpu": "true",
    "model_name_or_path": DEMO / "model",
    "dataset_name": DEMO / "train.jsonl",
    "max_samples": 8,
    "eval_samples": 2,
    "max_steps": 1,
    "max_completion_length": 8,
    "num_generations": 2,
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 1,
    "report_to": "none",
    "output_dir": "run",
}
ARGV = [str(word) for key, value in FLAGS.items() for word in (f"--{key}", value)]


def torchrun() -> list[int]:
    """The launcher's exit status."""
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", str(ROOT / "train_grpo.py"), *ARGV]
    with open("log", "w") as log:
        return [subprocess.run(words, stdout=log, stderr=log, stdin=subprocess.DEVNULL, check=False).returncode]


def fork() -> list[int]:
    """The exit statuses of both processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    processes = []
    for rank in ("0", "1"):
        processes.append(os.fork())
        if not processes[-1]:
            log = os.open("log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.environ.update(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
            import train_grpo

            sys.exit(train_grpo.main(ARGV))
    return [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in processes]


def import_libraries() -> None:
    """What a run imports, but nothing that starts a thread."""
    sys.path.insert(0, str(ROOT))
    for name in ("torch._dynamo", "torch.distributed.fsdp", "torch.distributed.nn.functional", "matplotlib.pyplot"):
        importlib.import_module(name)
    for name in ("config.preflight", "config.resolve", "evaluation.before_after", "training.setup"):
        importlib.import_module(f"grpo.{name}")
    gc.freeze()  # so that an interpreter's end does not copy all of this


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("launches", type=int)
    parser.add_argument("--busy", type=int, default=0, help="processes that only compute meanwhile")
    parser.add_argument("--forked", action="store_true")
    args = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    os.environ |= {"CUDA_VISIBLE_DEVICES": "", "TOKENIZERS_PARALLELISM": "false"}
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(args.busy)]
    if args.forked:
        import_libraries()
    failed, start = 0, time.monotonic()
    try:
        for number in range(1, args.launches + 1):
            with tempfile.TemporaryDirectory() as directory:
                os.chdir(directory)
                statuses = fork() if args.forked else torchrun()
                os.chdir(ROOT)
                if any(statuses):
                    failed += 1
                    print(f"launch {number}: {statuses}\n{Path(directory, 'log').read_text(errors='replace')}")
            print(
                f"{number} launches, {failed} failed, {time.monotonic() - start:.0f} s, "
                f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores",
                flush=True,
            )
    finally:
        for process in busy:
            process.kill()
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
