"""Start-up: what is not needed is not imported, and nothing is loaded twice."""

import json
import re
import subprocess
import sys
from collections import Counter

import pytest
from helpers_runs import DEMO, ROOT

import train_grpo
from grpo.data import sources
from grpo.policy import loading

PHASES = """
import json, sys
sys.path.insert(0, {root!r})
modules = {{}}
import rewards
modules["import rewards"] = sorted(sys.modules)
import train_grpo
modules["import train_grpo"] = sorted(sys.modules)
assert train_grpo.main(["--no_such_flag", "1"]) == 2 and train_grpo.main(["--version"]) == 0
modules["a wrong flag"] = sorted(sys.modules)
assert train_grpo.main(["--num_generations", "7"]) == 2
modules["a mistake"] = sorted(sys.modules)
assert train_grpo.main({argv!r}) == 0
modules["a dry run"] = sorted(sys.modules)
print("\\n" + json.dumps(modules))
"""


@pytest.fixture(scope="module")
def modules(tmp_path_factory):
    """The names in sys.modules at five moments of one fresh interpreter."""
    argv = ["--use_cpu", "true", "--report_to", "none", "--dry_run", "true", "--max_samples", "200"]
    argv += ["--model_name_or_path", str(DEMO / "model"), "--dataset_name", str(DEMO / "train.jsonl")]
    done = subprocess.run(
        [sys.executable, "-c", PHASES.format(root=str(ROOT), argv=argv)],
        cwd=tmp_path_factory.mktemp("fresh"), capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return {moment: set(names) for moment, names in json.loads(done.stdout.splitlines()[-1]).items()}


NEVER_HERE = {"matplotlib", "vllm", "unsloth", "math_verify", "tensorboard", "swanlab", "trackio", "bitsandbytes"}
LIBRARIES = {"torch", "transformers", "trl", "peft", "datasets", "accelerate", "numpy", "pandas", "rich"}
ABSENT = {  # what each moment does without
    "import rewards": {*NEVER_HERE, *LIBRARIES, "grpo"},
    "import train_grpo": {*NEVER_HERE, *LIBRARIES, "grpo.config.resolve"},
    "a wrong flag": {*NEVER_HERE, *LIBRARIES, "wandb"},
    "a mistake": {*NEVER_HERE, "datasets", "wandb", "rich", "grpo.data.dataset", "grpo.evaluation.evaluate"},
    "a dry run": {
        *NEVER_HERE,
        "trl.trainer.grpo_trainer",
        "wandb",
        "grpo.runs.report",
        "grpo.runs.charts",
        "grpo.training.callbacks",
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("moment", ABSENT)
def test_what_is_not_needed_yet_is_not_imported(moment, modules):
    assert ABSENT[moment] & modules[moment] == set()


@pytest.mark.parametrize("command", [["train_grpo.py"], ["train_grpo.py", "--version"], ["-m", "grpo", "plan"]])
def test_without_the_requirements_one_line_says_so(command):
    bare = [sys.executable, "-S", *command]  # without site-packages
    done = subprocess.run(bare, cwd=ROOT, capture_output=True, text=True, timeout=60)
    expected = r"error: \w+ is not installed; activate the virtual environment, or pip install -r requirements.txt\n"
    assert (done.returncode, done.stdout) == (2, "") and re.fullmatch(expected, done.stderr), done.stderr


def test_a_run_loads_tokenizer_weights_and_rows_once(tiny_run, monkeypatch):
    from transformers import AutoModelForCausalLM, AutoProcessor, AutoTokenizer

    calls = Counter()

    def count(owner, name, *, of=None):
        function = getattr(owner, name)

        def counted(*args, **kwargs):
            calls[of or owner.__name__] += 1
            return function(*args, **kwargs)

        monkeypatch.setattr(owner, name, counted)

    for auto in (AutoTokenizer, AutoModelForCausalLM, AutoProcessor):
        count(auto, "from_pretrained")
    count(sources, "load_source", of="rows")
    count(loading, "read_configs", of="configs")
    assert train_grpo.main(tiny_run(max_steps="1", eval_samples="2")) == 0
    assert calls == {"AutoTokenizer": 1, "AutoModelForCausalLM": 1, "rows": 1, "configs": 1}
