"""The tests themselves: no test imports a test, names are short, and each file has a module that it is about."""

import ast

import pytest
from helpers_runs import ROOT

TESTS = ROOT / "tests"
FILES = sorted(TESTS.rglob("*.py"))
# Across modules: commands and documents, and what all modules promise
CROSS_CUTTING = {
    "test_demo.py", "test_docs.py", "test_docstrings.py", "test_kill_loop.py", "test_rewards.py", "test_security.py",
    "test_startup.py", "test_tests.py", "test_train_grpo.py",
}  # fmt: skip


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


def test_every_file_is_about_a_module_of_its_wing():
    """tests/WING/test_MODULE.py (or test_fuzz_MODULE.py) is about grpo/WING/MODULE.py."""
    lost = []
    for path in FILES:
        if not path.name.startswith("test_") or (path.parent == TESTS and path.name in CROSS_CUTTING):
            continue
        module = path.stem.removeprefix("test_").removeprefix("fuzz_")
        if not (ROOT / "grpo" / path.parent.name / f"{module}.py").is_file():
            lost.append(str(path.relative_to(TESTS)))
    assert not lost
