"""README.md and docs/: every snippet runs, every flag, link and file that is mentioned exists.

Commands are run where the reader stands: in a directory with the recipes, the demo's model, some of its problems, a
finished run (`outputs/demo-GRPO`), an adapter (`outputs/my-adapter`) and `my_task.py`, a copy of the script into which
the reward and the settings of docs/your-own-task.md are pasted. A training command is a dry run on the CPU; a model or
data set that is not there (a Hub id) is replaced by the demo's. NOT_RUN lists the others.
"""

import ast
import dataclasses
import doctest
import importlib.util
import json
import os
import re
import shlex
import shutil
import sys
import textwrap
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import trl
import yaml
from accelerate.commands.launch import launch_command_parser
from helpers_runs import COUNTDOWN, DEMO, ROOT, SHORT_ANSWERS
from torch.distributed import run as torchrun

import train_grpo
from examples import warm_up
from grpo.__main__ import main as tool
from grpo.config.configure import configure
from grpo.config.parsing import Parser
from grpo.scoring.registry import shipped
from grpo.training.causes import CAUSES

NOT_RUN = {  # command: why
    "wandb login": "asks for a key",
    "pip install .": "has a test of its own, lean_grpo/test_installed.py",
    "python3 -m venv .venv": "is where it runs",
    "python -m pytest": "is what runs this",
}
FOREIGN = {"nodes", "warmup_ratio"}  # Slurm's, and transformers' of 2025
NEED_CUDA = ("use_vllm", "load_in_4bit", "load_in_8bit")  # flags that a CPU refuses: dropped
README = ROOT / "README.md"
PAGES = [README, ROOT / "lean_grpo" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
OTHERS = [
    ROOT / f"{name}.md" for name in ("CONTRIBUTING", "CHANGELOG", "SECURITY", "tests/README", "benchmarks/README")
]
TEXTS = {page: page.read_text(encoding="utf-8") for page in [*PAGES, *OTHERS, ROOT / "benchmarks/RESULTS.md"]}
ALL = "\n".join(TEXTS[page] for page in PAGES)


def blocks(language):
    """Each fenced block of this language, and the place where it is."""
    for page in PAGES:
        text = TEXTS[page]
        for block in re.finditer(rf"^( *)```{language}\n(.*?)^\1```$", text, re.DOTALL | re.MULTILINE):
            name = f"{page.stem}-{text.count(chr(10), 0, block.start()) + 1}"
            yield pytest.param(textwrap.dedent(block[2]), id=name)


def tables(heading):
    """The cells of all table rows whose table begins with this heading, on any page."""
    bodies = re.findall(rf"^\| {re.escape(heading)} \|.*\n\|[-| :]+\|\n((?:\|.*\n)+)", ALL, re.MULTILINE)
    return [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for rows in bodies for row in rows.splitlines()
    ]


def code(text):
    """Texts in backticks outside of blocks."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"^ *```.*?^ *```$", "", text, flags=re.DOTALL | re.MULTILINE))


INTO_SCRIPT = "# {}.py, "  # the first line of what is pasted
PASTED = {
    name: [block.values[0] for block in blocks("python") if block.values[0].startswith(INTO_SCRIPT.format(name))]
    for name in ("my_task", "train_grpo")
}
PYTHON = [block for block in blocks("python") if not any(block.values[0] in texts for texts in PASTED.values())]
RECIPES = list(blocks("yaml"))
COMMANDS = {
    line.strip(): f"{block.id}-{number}"
    for block in blocks("bash")
    for number, line in enumerate(block.values[0].replace("\\\n", " ").strip().splitlines(), 1)
}
COMMANDS |= {
    f"python train_grpo.py {command}" if command.startswith("--") else command: f"write-ups-{number}"
    for number, row in enumerate(tables("what | from"), 1)
    for command in re.findall(r"`((?:--|python |torchrun )[^`]+)`", row[2])
}


# --- The reader's directory


def pasted(above, settings):
    """The script with a text above HYPERPARAMETERS and with these settings in it, as a reader edits a copy."""
    text = (ROOT / "train_grpo.py").read_text(encoding="utf-8")
    keys = {keyword.arg for keyword in ast.parse(f"dict({settings})", mode="eval").body.keywords}
    block = next(node for node in ast.parse(text).body if ast.unparse(node).startswith("HYPERPARAMETERS"))
    lines = text.splitlines(keepends=True)
    for keyword in reversed(block.value.keywords):
        if keyword.arg in keys:
            del lines[keyword.lineno - 1 : keyword.end_lineno]
    first = block.lineno
    return "".join([*lines[: first - 1], above, "\n\n", lines[first - 1], settings, *lines[first:]])


# The run that is there when a page resumes or uses one
BEGUN = shlex.split(
    "--config recipes/demo.yaml --max_steps 2 --save_strategy steps --save_steps 2 --eval_samples 20 "
    "--per_device_train_batch_size 16 --logging_steps 1"
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """The directory in which the snippets run, see above."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    reader = tmp_path_factory.mktemp("reader") / "repository"
    (reader / "assets" / "demo").mkdir(parents=True)
    for path in (
        *ROOT.glob("requirements*.txt"),
        ROOT / "recipes",
        ROOT / "examples",
        DEMO / "model",
        COUNTDOWN,
        SHORT_ANSWERS,
    ):
        (reader / path.relative_to(ROOT)).symlink_to(path)
    (reader.parent / "my-model").symlink_to(DEMO / "model")
    for name in ("train", "test"):
        lines = (DEMO / f"{name}.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)[:100]
        (reader / "assets" / "demo" / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    rows = [(f"What is {a} + {b}?", a + b) for a in range(9) for b in range(9)]
    problems = [json.dumps({"problem": question, "solution": answer}) + "\n" for question, answer in rows]
    (reader / "my_problems.jsonl").write_text("".join(problems))
    csv = ["problem,solution\n", *(f"{question},{answer}\n" for question, answer in rows)]
    (reader / "my_problems.csv").write_text("".join(csv))
    for block in PYTHON:
        if named := re.match(r"# (\w+\.py)\n", block.values[0]):
            (reader / named[1]).write_text(block.values[0], encoding="utf-8")
    (reader / "my_task.py").write_text(pasted(*PASTED["my_task"]), encoding="utf-8")
    (reader / "edited.py").write_text(pasted(*PASTED["train_grpo"]), encoding="utf-8")  # the README's train_grpo.py
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(reader)
        assert train_grpo.main(BEGUN) == 0
        adapter = LoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM")
        model = AutoModelForCausalLM.from_pretrained("assets/demo/model")
        get_peft_model(model, adapter).save_pretrained("outputs/my-adapter")
        AutoTokenizer.from_pretrained("assets/demo/model").save_pretrained("outputs/my-adapter")
        for name in ("Qwen-1.5B-GRPO", "Qwen-1.5B-GRPO-my_problems", "demo-GRPO-my_problems"):
            os.symlink("demo-GRPO", f"outputs/{name}")
        shutil.copytree("outputs/demo-GRPO", "outputs/demo-GRPO-my_problems-2")
    return reader


@pytest.fixture
def reader(directory, monkeypatch):
    monkeypatch.chdir(directory)
    monkeypatch.syspath_prepend(str(directory))
    yield directory
    for path in directory.glob("*.py"):
        sys.modules.pop(path.stem, None)  # another test may have another file of this name


# --- Snippets


@pytest.mark.slow
@pytest.mark.parametrize("text", PYTHON)
def test_python_snippets_run(text, reader, capsys):
    if ">>>" in text:
        test = doctest.DocTestParser().get_doctest(text, {}, "snippet", None, 0)
        said = []
        result = doctest.DocTestRunner().run(test, out=said.append, clear_globs=False)
        assert result.attempted and not result.failed, "".join(said)
        return
    names = {"__name__": "snippet"}
    exec(compile(text, "snippet", "exec"), names)
    assert names.get("status", 0) == 0, capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("text", RECIPES)
def test_recipe_snippets_are_recipes(text, reader, capfd):
    Path("snippet.yaml").write_text(text, encoding="utf-8")
    train(["--config", "snippet.yaml"], capfd)


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS, ids=COMMANDS.values())
def test_commands_run(command, reader, monkeypatch, capfd):
    words = shlex.split(command, comments=True)
    while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
        monkeypatch.setenv(*words.pop(0).split("=", 1))
    for part in shlex.join(words).replace(".venv/bin/", "").split(" '&&' "):
        if part not in NOT_RUN:
            run(shlex.split(part), capfd)


def run(words, capfd):
    if words[:2] == ["pip", "install"]:
        files = [word for before, word in pairwise(words) if before == "-r"]
        assert files and all((ROOT / file).is_file() for file in files)
    elif words[:2] == ["python", "examples/warm_up.py"]:
        settings = train_grpo.HYPERPARAMETERS
        train(words[2:], capfd, script=SimpleNamespace(HYPERPARAMETERS=settings, main=warm_up.main))
    elif words[0] == "cp":
        assert words == ["cp", "train_grpo.py", "my_task.py"]
    elif words[:2] == ["python", "my_task.py"]:
        script = script_of("my_task")
        assert script.close_reward_func in script.HYPERPARAMETERS["reward_funcs"]
        train(words[2:], capfd, script=script)
    elif words[:2] == ["python", "-c"]:
        exec(words[2], {})
    elif words[:3] == ["python", "-m", "grpo"]:
        shutil.rmtree("outputs/my-adapter/merged", ignore_errors=True)  # of the last time that it was mentioned
        assert tool(words[3:]) == 0, capfd.readouterr().err
    else:
        processes = launched(words) if words[0] in ("torchrun", "accelerate") else 1
        assert words[:2] == ["python", "train_grpo.py"] or processes > 1
        train(words[words.index("train_grpo.py") + 1 :], capfd, processes)


def script_of(name):
    spec = importlib.util.spec_from_file_location(name, f"{name}.py")
    sys.modules[name] = script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


def test_the_readmes_edits_of_the_script_are_checked_as_it_shows(reader, capfd):
    words = ["--use_cpu", "true", "--model_name_or_path", "assets/demo/model", "--report_to", "none"]
    assert script_of("edited").main([*words, "--dry_run", "true"]) == 0
    (matrix,) = re.findall(r"^ +perfect .*\n(?:\w.*\n)+", TEXTS[README], re.MULTILINE)
    shown, wanted = ([line.split() for line in text.splitlines()] for text in (capfd.readouterr().out, matrix))
    assert all(line in shown for line in wanted), shown


@pytest.mark.slow
def test_the_script_of_the_guide_trains_and_its_answers_are_scored(reader, capfd):
    quick = ["--max_steps", "2", "--eval_samples", "8", "--per_device_train_batch_size", "16"]
    assert script_of("my_task").main([*quick, "--output_dir", "outputs/guide"]) == 0, capfd.readouterr().err
    assert tool(["xray", "outputs/guide"]) == 0 and "close" in capfd.readouterr().out


def launched(words):
    """The processes that a launcher's line starts on all machines; the launcher itself reads its options."""
    if words[:2] == ["accelerate", "launch"]:
        options = launch_command_parser().parse_args(words[2:])
        file = options.config_file.replace("$(python -c 'import trl; print(*trl.__path__)')", *trl.__path__)
        assert (ROOT / file).is_file() and options.training_script == "train_grpo.py"
        return options.num_processes
    options = torchrun.parse_args(words[1:])
    assert options.training_script == "train_grpo.py"
    return int(options.nnodes.partition(":")[0]) * int(options.nproc_per_node)


def train(argv, capfd, processes=1, script=train_grpo):
    """The script with these flags: a dry run on the CPU."""
    if "--resume_from_checkpoint" in argv:  # beside the flags that the run was started with
        argv = [*BEGUN[2 if "--config" in argv else 0 :], *argv]
    flags = dict(pairwise([*argv, ""]))
    recipe = yaml.safe_load(Path(flags["--config"]).read_text(encoding="utf-8")) if "--config" in flags else {}
    settings = {**script.HYPERPARAMETERS, **recipe}
    settings |= {word[2:]: value for word, value in flags.items() if word.startswith("--")}
    replaced = ["--dry_run", "true", "--use_cpu", "true", "--report_to", "none"]
    if not os.path.isdir(settings["model_name_or_path"]):
        replaced += ["--model_name_or_path", "assets/demo/model"]
    if not os.path.isfile(settings["dataset_name"]):  # all of the demo's, where a slice is taken
        small = "[" not in settings["dataset_split"]
        replaced += ["--dataset_name", "assets/demo/train.jsonl" if small else str(DEMO / "train.jsonl")]
    of_vllm = [word[2:] for word in argv if word.startswith("--vllm_")]  # which have no effect without it
    for key in (*NEED_CUDA, *of_vllm):
        if f"--{key}" in argv:
            index = argv.index(f"--{key}")
            argv = argv[:index] + argv[index + 2 :]
        elif settings.get(key) in (True, "true") and key.startswith("use_"):
            replaced += [f"--{key}", "false"]
    refused = "push_to_hub: the Hub refuses the model" if "--push_to_hub" in argv else ""  # there is no Hub
    status = script.main([*argv, *replaced])
    err = capfd.readouterr().err
    assert status == (2 if refused else 0) and refused in err, err
    if processes > 1:
        geometry = configure(train_grpo.HYPERPARAMETERS, [*argv, *replaced]).geometry
        geometry = dataclasses.replace(geometry, world_size=processes)
        assert geometry.rollout % geometry.num_generations == 0


# --- Tables, flags, links, files


def test_tables_have_every_recipe_alarm_and_reward():
    recipes = [code(row[0])[0] for row in tables("recipe")]
    assert sorted(recipes) == sorted(path.stem for path in (ROOT / "recipes").iterdir())
    assert {code(row[0])[0] for row in tables("cause | while training")} == {cause.name for cause in CAUSES}
    assert {code(row[0])[0] for row in tables("reward")} >= set(shipped())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_flag_in_backticks_exists(page):
    flags = {flag[1] for span in code(TEXTS[page]) if (flag := re.match(r"--([a-z][a-z0-9_-]*[a-z0-9])", span))}
    parsers = (launch_command_parser(), torchrun.get_args_parser())
    launchers = {option.strip("-") for parser in parsers for option in parser._option_string_actions}
    sources = [
        path.read_text(encoding="utf-8")
        for name in ("grpo", "benchmarks", "examples")
        for path in (ROOT / name).rglob("*.py")
    ]
    others = {flag for text in sources for flag in re.findall(r"\"--([a-z][a-z0-9_-]*)\"", text)}
    assert not flags - set(Parser().settings) - others - launchers - FOREIGN


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_local_links_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", TEXTS[page]):
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-") for text in headings}, target


def test_files_that_are_mentioned_exist():
    for page, text in TEXTS.items():
        for span in code(text):
            for path in re.findall(r"\b(?:recipes|benchmarks|tests|docs|grpo|examples|launch)/[\w/-]+\.\w+", span):
                assert (ROOT / path).is_file(), f"{page.name}: {path}"


def test_the_map_names_files_and_each_folder_below_those_that_it_uses():
    above: list[str] = []
    folders = {path.parent.name for path in (ROOT / "grpo").glob("*/__init__.py")}
    for _, where in tables("to change"):
        for folder, names in re.findall(r"`([\w/]+/)`: ((?:`\w+\.py`(?: \([^)]*\))?(?:, )?)+)", where):
            assert all((ROOT / folder / name).is_file() for name in code(names)), where
        for folder in re.findall(r"`grpo/(\w+)/", where):
            text = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "grpo" / folder).glob("*.py"))
            used = set(re.findall(r"^(?:from|import) grpo\.(\w+)", text, re.MULTILINE)) & folders - {folder}
            assert used <= set(above), f"{folder} uses {used - set(above)}"
            above += [folder]
    assert set(above) == folders


def test_each_promise_is_held_in_the_sets_that_the_table_says():
    table = TEXTS[ROOT / "tests" / "README.md"].partition("|---|")[2].partition("\n\n")[0]
    rows = [line.split("|")[2:4] for line in table.splitlines() if line.startswith("| ")]
    assert rows
    for row in rows:
        assert "`" in row[0], row
        for cell, wanted in zip(row, (False, True), strict=True):
            for name in re.findall(r"`([\w/]+(?:\.py|/))`", cell):
                path = ROOT / "tests" / name
                files = [path] if path.is_file() else list(path.glob("test_*.py"))
                assert wanted in {slow for file in files for slow in slow_tests(file)}, name


def slow_tests(file):
    """Whether each of a file's tests, or one of its cases, is slow."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    everywhere = any(
        ast.unparse(line).startswith("pytestmark") and "mark.slow" in ast.unparse(line) for line in tree.body
    )
    for test in tree.body:
        if isinstance(test, ast.FunctionDef) and test.name.startswith("test_"):
            marks = [ast.unparse(decorator) for decorator in test.decorator_list]
            whole = everywhere or "pytest.mark.slow" in marks
            yield whole
            if any("mark.slow" in mark for mark in marks):
                yield True


def test_the_lines_that_others_rely_on():
    """The demo's, and what .ci/run takes: each is all that an empty machine needs."""
    lines, install = TEXTS[README].splitlines(), "python3 -m venv .venv && .venv/bin/pip install -r requirements"
    assert f"{install}.txt && .venv/bin/python train_grpo.py --config recipes/demo.yaml" in lines
    assert f"{install}-dev.txt && .venv/bin/python -m pytest" in lines
