"""The tests themselves: no test imports a test, names are short, and each file has a module that it is about."""

import ast

import pytest
from helpers_runs import ROOT

TESTS = ROOT / "tests"
FILES = sorted(TESTS.rglob("*.py"))
ACROSS_MODULES = {  # what they are about instead of one module
    "test_countdown.py": "examples/countdown.py and assets/countdown/",
    "test_demo.py": "assets/demo",
    "test_docs.py": "README.md and docs/",
    "test_docstrings.py": "the examples in docstrings",
    "test_examples.py": "examples/",
    "test_killed.py": "runs that are killed",
    "test_notebooks.py": "notebooks/",
    "test_rewards.py": "rewards.py",
    "test_security.py": "SECURITY.md",
    "test_startup.py": "what is imported when",
    "test_tests.py": "the tests",
    "test_train_grpo.py": "train_grpo.py",
    "config/test_bad_input.py": "mistakes of a user",
    "config/test_on_a_gpu.py": "benchmarks/on_a_gpu.py",
    "config/test_recipes.py": "recipes/",
    "evaluation/test_controls.py": "benchmarks/controls.py",
    "evaluation/test_independent_judge.py": "benchmarks/independent_judge.py",
    "evaluation/test_sweeps.py": "benchmarks/learning_rates.py, ablations.py and bench_runs.py",
    "real_vllm/test_training.py": "a vLLM that is installed",
    "runs/test_run_full_disk.py": "run.py, on a full disk",
    "runs/test_out_of_memory.py": "what a run says where a device is full",
    "training/test_exactness.py": "benchmarks/bench_exactness.py",
    "training/test_optimizer.py": "the default optimizer",
    "training/test_prefill.py": "templates that begin the completion",
    "training/test_private_names.py": "libraries' private names",
    "training/test_subclasses.py": "subclasses of LeanGRPOTrainer",
}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_test_imports_a_test_and_names_are_short(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imported = {
        name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
    }
    assert not imported & {"conftest", *(file.stem for file in FILES if file.name.startswith("test_"))}
    names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    assert not [name for name in names if name.startswith("test_") and len(name) > 60]


def test_every_file_mirrors_a_module_or_is_listed():
    """tests/WING/test_MODULE.py is about grpo/WING/MODULE.py; test_fuzz_*.py holds properties of its wing."""
    names = {str(path.relative_to(TESTS)) for path in FILES if path.name.startswith("test_")}
    assert set(ACROSS_MODULES) <= names
    modules = {f"{path.parent.name}/test_{path.name}" for path in (ROOT / "grpo").glob("*/*.py")}
    assert not {name for name in names - set(ACROSS_MODULES) - modules if "/test_fuzz_" not in name}
