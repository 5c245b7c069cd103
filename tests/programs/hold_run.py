"""Hold a run's lock until the end of stdin, or until killed."""

import sys
from pathlib import Path

from grpo.runs.directory import locked

with locked(Path("run")):
    Path("run/run.json").write_text('{"status": "running", "settings": {}, "process": {"id": 4711, "host": "there"}}')
    print("held", flush=True)
    sys.stdin.read()
