"""README.md and docs/: every snippet runs, every flag and file that is mentioned exists.

Commands are run where the reader stands: in a directory with the recipes, the demo's model, some of its problems, a
finished run (`outputs/demo-GRPO`) and an adapter (`outputs/my-adapter`). A training command is a dry run on the CPU; a
model or data set that is not there (a Hub id) is replaced by the demo's. What cannot be run is listed in NOT_RUN.
"""

import dataclasses
import doctest
import json
import os
import re
import shlex
import shutil
import sys
import textwrap
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from accelerate.commands.launch import launch_command_parser
from helpers_runs import COUNTDOWN, DEMO, ROOT
from torch.distributed import run as torchrun

import rewards
import train_grpo
from grpo.__main__ import main as tool
from grpo.config.configure import Parser, configure
from grpo.training.alarms import ALARMS

NOT_RUN = {  # command: why
    "wandb login": "asks for a key",
    "pip install flash-attn --no-build-isolation": "compiles for a GPU",
    "python -m pytest": "is what runs this",
}
FOREIGN = {"nodes", "no-build-isolation", "warmup_ratio"}  # Slurm's, pip's, and transformers' of 2025
NEED_CUDA = ("use_vllm", "load_in_4bit", "load_in_8bit")  # flags that a CPU refuses: dropped
REFUSED = {"push_to_hub": "push_to_hub: the Hub refuses the model"}  # there is no Hub: as far as this line


@dataclasses.dataclass(frozen=True)
class Block:
    page: Path
    line: int
    language: str
    text: str

    def __str__(self):
        return f"{self.page.stem}-{self.line}"


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TEXTS = {page: page.read_text(encoding="utf-8") for page in PAGES}
BLOCKS = [
    Block(page, text.count("\n", 0, found.start()) + 1, found[2], textwrap.dedent(found[3]))
    for page, text in TEXTS.items()
    for found in re.finditer(r"^( *)```(\w*)\n(.*?)^\1```$", text, re.DOTALL | re.MULTILINE)
]
COMMANDS = [
    pytest.param(command.strip(), id=f"{block}-{number}")
    for block in BLOCKS
    if block.language == "bash"
    for number, command in enumerate(block.text.replace("\\\n", " ").strip().splitlines(), 1)
]


def blocks(language):
    return [pytest.param(block, id=str(block)) for block in BLOCKS if block.language == language]


SOURCES = {
    path: path.read_text(encoding="utf-8")
    for folder in ("grpo", "recipes", "accelerate", "benchmarks", ".")
    for path in (ROOT / folder).glob("**/*" if folder != "." else "*")
    if path.suffix in (".py", ".yaml", ".j2")
}


def tables(text, heading):
    """The cells of all table rows whose table begins with this heading."""
    found = re.findall(rf"^\| {re.escape(heading)} \|.*\n\|[-| :]+\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    return [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for rows in found for row in rows.splitlines()
    ]


def code(text):
    return re.findall(r"`([^`\n]+)`", re.sub(r"^ *```.*?^ *```$", "", text, flags=re.DOTALL | re.MULTILINE))


# --- The reader's directory


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
    for path in (*ROOT.glob("requirements*.txt"), ROOT / "recipes", DEMO / "model", COUNTDOWN):
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
    for block in BLOCKS:
        if named := re.match(r"# (\w+\.py)\n", block.text):
            (reader / named[1]).write_text(block.text, encoding="utf-8")
    before = os.getcwd()
    os.chdir(reader)
    try:
        assert train_grpo.main(BEGUN) == 0
        adapter = LoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM")
        model = AutoModelForCausalLM.from_pretrained("assets/demo/model")
        get_peft_model(model, adapter).save_pretrained("outputs/my-adapter")
        AutoTokenizer.from_pretrained("assets/demo/model").save_pretrained("outputs/my-adapter")
        for name in ("Qwen-1.5B-GRPO", "Qwen-1.5B-GRPO-my_problems", "demo-GRPO-my_problems"):
            os.symlink("demo-GRPO", f"outputs/{name}")
    finally:
        os.chdir(before)
    return reader


@pytest.fixture
def reader(directory, monkeypatch):
    monkeypatch.chdir(directory)
    monkeypatch.syspath_prepend(str(directory))
    yield directory
    for path in directory.glob("*.py"):
        sys.modules.pop(path.stem, None)  # another test may have another file of this name


# --- Snippets


def test_every_block_is_of_a_kind_that_is_checked():
    assert {block.language for block in BLOCKS} == {"bash", "python", "yaml", "bibtex", ""}
    without = [block.text for block in BLOCKS if block.language == ""]
    assert len(without) == 1 and "held-out questions, greedy" in without[0]  # what the demo prints


@pytest.mark.slow
@pytest.mark.parametrize("block", blocks("python"))
def test_python_snippets_run(block, reader, capsys):
    if ">>>" in block.text:
        test = doctest.DocTestParser().get_doctest(block.text, {}, str(block), str(block.page), block.line)
        said = []
        result = doctest.DocTestRunner().run(test, out=said.append, clear_globs=False)
        assert result.attempted and not result.failed, "".join(said)
        return
    names = {"__name__": "snippet"}
    exec(compile(block.text, str(block), "exec"), names)
    assert names.get("status", 0) == 0, capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("block", blocks("yaml"))
def test_recipe_snippets_are_recipes(block, reader, capfd):
    Path("snippet.yaml").write_text(block.text, encoding="utf-8")
    assert isinstance(yaml.safe_load(block.text), dict)
    train(["--config", "snippet.yaml"], capfd)


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_commands_run(command, reader, monkeypatch, capfd):
    run(command, monkeypatch, capfd)


def run(command, monkeypatch, capfd):
    words = shlex.split(command, comments=True)
    while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
        monkeypatch.setenv(*words.pop(0).split("=", 1))
    if "&&" in words:
        second = words.index("&&") + 1
        run(shlex.join(words[second:]), monkeypatch, capfd)
        words = words[: second - 1]
    if shlex.join(words) in NOT_RUN:
        return
    if words[:2] == ["pip", "install"]:
        files = [word for word, before in zip(words[1:], words, strict=False) if before == "-r"]
        assert files and all((ROOT / file).is_file() for file in files)
    elif words[:3] == ["python", "-m", "grpo"]:
        shutil.rmtree("outputs/my-adapter/merged", ignore_errors=True)  # of the last time that it was mentioned
        assert tool(words[3:]) == 0, capfd.readouterr().err
    else:
        processes = launched(words) if words[0] in ("torchrun", "accelerate") else 1
        assert words[:2] == ["python", "train_grpo.py"] or processes > 1
        train(words[words.index("train_grpo.py") + 1 :], capfd, processes)


def launched(words):
    """The processes that a launcher's line starts on all machines; the launcher itself reads its options."""
    if words[:2] == ["accelerate", "launch"]:
        options = launch_command_parser().parse_args(words[2:])
        assert (ROOT / options.config_file).is_file() and options.training_script == "train_grpo.py"
        return options.num_processes
    options = torchrun.parse_args(words[1:])
    machines = int(options.nnodes.partition(":")[0])
    assert options.training_script == "train_grpo.py" and 0 <= options.node_rank < machines
    assert machines == 1 or options.rdzv_endpoint or options.master_addr != "127.0.0.1"
    return machines * int(options.nproc_per_node)


def train(argv, capfd, processes=1):
    """What train_grpo.py makes of these flags: a dry run on the CPU."""
    if "--resume_from_checkpoint" in argv:  # beside the flags that the run was started with
        argv = [*BEGUN[2 if "--config" in argv else 0 :], *argv]
    flags = dict(pairwise([*argv, ""]))
    recipe = yaml.safe_load(Path(flags["--config"]).read_text(encoding="utf-8")) if "--config" in flags else {}
    settings = {**train_grpo.HYPERPARAMETERS, **recipe}
    settings |= {word[2:]: value for word, value in flags.items() if word.startswith("--")}
    replaced = ["--dry_run", "true", "--use_cpu", "true", "--report_to", "none"]
    if not os.path.isdir(settings["model_name_or_path"]):
        replaced += ["--model_name_or_path", "assets/demo/model"]
    if not os.path.isfile(settings["dataset_name"]):  # all of the demo's, where a slice is taken
        small = "[" not in settings["dataset_split"]
        replaced += ["--dataset_name", "assets/demo/train.jsonl" if small else str(DEMO / "train.jsonl")]
    of_vllm = [word[2:] for word in argv if word.startswith("--vllm_")]  # which have no effect without it
    for key in (*NEED_CUDA, "use_unsloth", *of_vllm):
        if f"--{key}" in argv:
            place = argv.index(f"--{key}")
            argv = argv[:place] + argv[place + 2 :]
        elif settings.get(key) in (True, "true") and key.startswith("use_"):
            replaced += [f"--{key}", "false"]
    if settings.get("use_unsloth") is True:  # first as it stands
        assert train_grpo.main(argv) == 2 and "use_unsloth: " in capfd.readouterr().err
    refused = next((line for key, line in REFUSED.items() if f"--{key}" in argv), None)
    status = train_grpo.main([*argv, *replaced])
    err = capfd.readouterr().err
    assert status == (2 if refused else 0) and (refused or "") in err, err
    if processes > 1:
        solved = configure(train_grpo.HYPERPARAMETERS, [*argv, *replaced]).geometry
        solved = dataclasses.replace(solved, world_size=processes)
        assert solved.rollout % solved.num_generations == 0


# --- Tables


WRITE_UPS = [
    pytest.param(command, id=f"{number}-{command[:40]}")
    for number, row in enumerate(tables(TEXTS[ROOT / "docs/write-ups.md"], "what | from"), 1)
    for command in re.findall(r"`((?:--|python |torchrun )[^`]+)`", row[2])
]


@pytest.mark.slow
@pytest.mark.parametrize("command", WRITE_UPS)
def test_what_the_write_ups_teach_runs(command, reader, monkeypatch, capfd):
    run(command if not command.startswith("--") else f"python train_grpo.py {command}", monkeypatch, capfd)


def test_the_table_of_recipes_is_the_folder():
    rows = tables(TEXTS[ROOT / "docs/README.md"], "recipe")
    assert sorted(code(row[0])[0] for row in rows) == sorted(path.stem for path in (ROOT / "recipes").iterdir())


def test_the_table_of_alarms_is_the_programs():
    rows = tables(TEXTS[ROOT / "docs/alarms.md"], "alarm | when | what the curves show | first thing to try")
    assert {code(row[0])[0] for row in rows} == set(ALARMS)


def test_the_guide_has_every_reward():
    rows = tables(TEXTS[ROOT / "docs/reward-design.md"], "reward")
    assert {code(row[0])[0] for row in rows} >= set(rewards.REWARD_FUNCS)


# --- Flags, links, files


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_flag_in_backticks_exists(page):
    flags = {found[1] for span in code(TEXTS[page]) if (found := re.match(r"--([a-z][a-z0-9_-]*[a-z0-9])", span))}
    parsers = (launch_command_parser(), torchrun.get_args_parser())
    launchers = {option.strip("-") for parser in parsers for option in parser._option_string_actions}
    others = {found for text in SOURCES.values() for found in re.findall(r"\"--([a-z][a-z0-9_-]*)\"", text)}
    assert not flags - set(Parser().settings) - others - launchers - FOREIGN


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
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
        for span in code(text) + re.findall(r"\btests/[\w/]+\.py", text):
            for path in re.findall(r"\b(?:recipes|benchmarks|tests|docs|grpo)/[\w/-]+\.\w+", span):
                assert (ROOT / path).is_file(), f"{page.name}: {path}"


def test_the_lines_that_others_rely_on():
    lines = TEXTS[ROOT / "README.md"].splitlines()
    assert "pip install -r requirements.txt && python train_grpo.py --config recipes/demo.yaml" in lines
    tested = next(line for line in lines if re.match(r" *pip install .*pytest", line))  # what CI looks for
    assert tested == "pip install -r requirements-dev.txt && python -m pytest"
