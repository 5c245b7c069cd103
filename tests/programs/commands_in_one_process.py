"""Run commands of this folder's script and tools in one process, which imports the libraries once.

Arguments: a JSON list of commands, each a list of words. Prints a JSON list of [exit status, stdout, stderr].
"""

import contextlib
import io
import json
import sys

sys.path.insert(0, ".")
import train_grpo
from grpo import __main__ as tools

done = []
for program, *words in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = train_grpo.main(words) if program == "train_grpo.py" else tools.main([program, *words])
        except SystemExit as end:  # --help_all
            status = end.code
    done.append([status, out.getvalue(), err.getvalue()])
print(json.dumps(done))
