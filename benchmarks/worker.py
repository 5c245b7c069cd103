"""A process that answers one question after another, so that what kills it, or never ends, costs one answer."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

Case = dict[str, Any]  # its `kind` says which function answers, its `group` which process


class Worker:
    """A process that measures one case after another, and is started anew after it has died."""

    def __init__(self, log: Path, command: list[str]) -> None:
        self.log, self.command = log, command
        self.process: subprocess.Popen | None = None
        self.group: str | None = None

    def ask(self, case: Case, seconds: float) -> dict[str, Any]:
        """Its answer: `found`, or an `error` of one line."""
        if self.process is None or case.get("group") != self.group:
            self._start()
        self.group = case.get("group")
        before = self.log.stat().st_size
        try:
            self.process.stdin.write(json.dumps(case) + "\n")
            self.process.stdin.flush()
            answer = self.answers.get(timeout=max(seconds, 0.1))
        except BrokenPipeError:
            answer = None
        except queue.Empty:
            self.stop()
            return {"error": f"not done after {seconds:.0f} s"}
        if answer is not None:
            found = json.loads(answer)
            if found.pop("lost", False):  # it leaves now: the next case is for another one
                self.stop()
            return found
        status = self.process.wait()
        self.stop()
        if status < 0:
            return {"error": f"its process was killed by {signal.Signals(-status).name}"}
        with self.log.open("rb") as file:
            file.seek(before)
            lines = file.read().decode(errors="replace").split("\n")
        said = next((line.strip() for line in reversed(lines) if line.strip()), "nothing was said")
        return {"error": f"its process ended with status {status}: {said[:200]}"}

    def _start(self) -> None:
        self.stop()
        gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "0")  # one: GRPOTrainer refuses several in one process
        environment = os.environ | {"CUDA_VISIBLE_DEVICES": gpus.split(",")[0], "HF_HUB_OFFLINE": "1"}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=environment,
                start_new_session=True,
            )  # fmt: skip
        self.answers: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._listen, args=(self.process, self.answers), daemon=True).start()

    @staticmethod
    def _listen(process: subprocess.Popen, answers: queue.Queue) -> None:
        for line in process.stdout:
            answers.put(line)
        answers.put(None)

    def stop(self) -> None:
        """End it, and what it has started."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.process = None


def serve(kinds: dict[str, Callable[[Case], Any]], clean: Callable[[], bool]) -> int:
    """The other end of a Worker: answer what stands on stdin, until its end or until the device is lost.

    Args:
        clean: gives back what a case has left behind; whether the device still works.
    """
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever libraries print is no answer
    for line in sys.stdin:
        answer = respond(kinds, json.loads(line))
        lost = not clean()
        print(json.dumps(answer | {"lost": lost}), file=answers, flush=True)
        if lost:
            return 1
    return 0


def respond(kinds: dict[str, Callable[[Case], Any]], case: Case) -> dict[str, Any]:
    """What came of it, `found`, or an `error` of one line; the traceback goes to stderr."""
    from grpo.core import out_of_memory

    try:
        return {"found": kinds[case["kind"]](case)}
    except Exception as error:  # a case may fail in any way; the others are measured nevertheless
        traceback.print_exc()
        if out_of_memory.is_one(error) and not isinstance(error, out_of_memory.OutOfMemory):
            error = out_of_memory.OutOfMemory("this case", str(error), None)
        name = "" if isinstance(error, out_of_memory.UserError) else f"{type(error).__name__}: "
        return {"error": f"{name}{' '.join(str(error).split())}"[:300]}
