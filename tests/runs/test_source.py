"""A run directory holds the code that ran; other code is what does something else, wherever it is written."""

import functools
import importlib
import importlib.util
import itertools
import sys
from pathlib import Path

import pytest
from helpers_runs import ROOT
from trl.rewards import think_format_reward

import rewards
import train_grpo
from grpo.runs import source
from grpo.runs.differences import without_rest


def read(functions, script=Path("notebook")):
    return source.read(script, functions, None)


@pytest.fixture
def own(monkeypatch):
    """A user's module whose reward uses another file of the user's."""
    monkeypatch.syspath_prepend(str(Path.cwd()))
    Path("my_helpers.py").write_text("def worth(text):\n    return 1.0\n")
    Path("my_dates.py").write_text(
        "import json\nfrom my_helpers import worth\n\nlower = str.lower\n\n\n"
        "def date(completions, *, scale=1.0, **kwargs):\n    # why\n"
        "    return [scale * worth(text) for text in completions]\n\n\n"
        "class Longer:\n    def __call__(self, completions, **kwargs):\n        return [0.0]\n"
    )
    yield importlib.import_module("my_dates")
    for name in ("my_dates", "my_helpers"):
        sys.modules.pop(name)


def test_the_code_is_that_of_the_users_functions(own):
    functions = {"date": functools.partial(own.date, scale=2.0), "longer": own.Longer(), "trl": think_format_reward}
    code = read(functions | {"int": rewards.int_reward_func}).code
    assert list(code) == ["date", "longer", "int"]
    assert code["date"].startswith("def date(completions") and "# why" in code["date"]
    assert code["longer"].startswith("class Longer:") and code["int"].startswith("def int_reward_func")


def test_files_are_the_script_its_own_imports_and_the_recipe(own):
    Path("mine.yaml").write_text("seed: 1\n")
    functions = {"date": own.date, "trl": think_format_reward}
    files = source.read(Path(train_grpo.__file__), functions, Path("mine.yaml")).files
    assert set(files) == {"train_grpo.py", "rewards.py", "my_dates.py", "my_helpers.py", "mine.yaml"}
    assert files["train_grpo.py"] == (ROOT / "train_grpo.py").read_bytes() and files["mine.yaml"] == b"seed: 1\n"


def test_what_only_the_script_uses_is_no_code_of_the_rewards(own, monkeypatch):
    """A callback's file, say: figures do not rest on it."""
    Path("my_script.py").write_text("import my_callbacks\n")
    Path("my_callbacks.py").write_text("TEXT = 'my_helpers.py'\n")
    monkeypatch.setitem(sys.modules, "my_script", importlib.import_module("my_script"))
    hashes = source.read(Path("my_script.py"), {"date": own.date}, None).hashes
    assert {"script's code in my_callbacks.py", "code in my_helpers.py"} <= {*hashes}
    assert "contents of my_helpers.py" not in hashes and "code in my_callbacks.py" not in hashes


IMPORTED = {  # how a reward reaches a helper or a file, besides the imports at the top of its file
    "an import in the body": "from late import pay",
    "a module in the body": "import late",
    "by name": "import importlib\n    importlib.import_module('late')",
    "through another file": "import between",
    "a file that it opens": "open('late.txt').read()",
    "a folder on the path": "import sys\n    sys.path.append('lib')\n    from late import pay",
    "a file as an argument": "__import__('pathlib').Path('late.txt').read_text()",
}


@pytest.mark.parametrize("way", IMPORTED)
def test_what_a_body_imports_or_opens_is_compared(monkeypatch, way):
    """Before it has run: a reward's first call comes after the code was read."""
    monkeypatch.syspath_prepend(str(Path.cwd()))
    Path("lazy.py").write_text(f"def close(completions, **kwargs):\n    {IMPORTED[way]}\n    return [0.0]\n")
    Path("between.py").write_text("def two():\n    import late\n    return late\n")
    try:
        lazy = importlib.import_module("lazy")
        found = []
        for number in ("1", "2"):
            Path("late.py").write_text(f"def pay():\n    return {number}\n")
            Path("late.txt").write_text(number)
            found.append(read({"close": lazy.close}))
        one, two = found
        assert [name for name in one.hashes if one.hashes[name] != two.hashes[name]] == (
            ["contents of late.txt"] if "file" in way and "through" not in way else ["code in late.py"]
        )
        assert ("late.py" in one.files) is ("contents of late.txt" not in one.hashes)
    finally:
        sys.modules.pop("lazy")


def test_a_library_in_a_folder_of_its_own_is_not_copied(own, tmp_path_factory, monkeypatch):
    """As `pip install --editable` leaves it."""
    folder = tmp_path_factory.mktemp("library")
    (folder / "their_library.py").write_text("def helps(): ...\n")
    monkeypatch.syspath_prepend(str(folder))
    own.helps = importlib.import_module("their_library").helps
    assert "their_library.py" not in read({"date": own.date}, Path("my_dates.py")).files


def test_a_notebook_has_no_script():
    assert set(read({}).files) == {"rewards.py"} and set(read({}).hashes) == {"code in rewards.py"}


# --- Other code

HELPERS = "import math, json\n\nLIMIT = 3\n\n\ndef worth(text):\n    return 1.0\n"
SCRIPT = '''"""A script."""
from functools import partial

from my_helpers import worth

HALF = 0.5
WORDS = {"yes", "no"}
SYSTEM_PROMPT = "Reply."


if True:
    END = 5

    def shortened(text):
        return text[:END]


class Longer:
    factor = 2

    def __init__(self, low):
        self.low = low

    def __call__(self, completions, **kwargs):
        return [self.factor * worth(text) for text in completions]


def date(completions, *, scale=1.0, **kwargs):
    def inner(text):
        return shortened(text) in WORDS
    return [scale * inner(text) for text in completions]


longer = Longer(4)
half = lambda completions, **kwargs: [HALF for _ in completions]  # noqa: E731
HYPERPARAMETERS: dict = dict(learning_rate=1.0, reward_funcs=[date, longer, half, partial(date, scale=2.0)])


def main():
    return 0
'''
NUMBERS = itertools.count()


@pytest.fixture
def hashes(monkeypatch):
    """Write SCRIPT and HELPERS with these edits, and return what a run of them compares."""
    monkeypatch.syspath_prepend(str(Path.cwd()))

    def of(*edits):
        texts = {"my_script": SCRIPT, "my_helpers": HELPERS}
        for old, new in edits:
            assert any(old in text for text in texts.values())
            texts = {name: text.replace(old, new) for name, text in texts.items()}
        directory = Path(f"version{next(NUMBERS)}")
        directory.mkdir()
        monkeypatch.syspath_prepend(str(directory.absolute()))
        for name, text in texts.items():
            (directory / f"{name}.py").write_text(text)
            monkeypatch.delitem(sys.modules, name, raising=False)
        importlib.invalidate_caches()
        own = importlib.import_module("my_script")
        functions = {name: getattr(own, name) for name in ("date", "longer", "half")}
        path = directory / "my_script.py"
        return source.read(path, functions, None, {"reward_funcs"}).hashes

    yield of
    for name in ("my_script", "my_helpers"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("edit", "label"),
    [
        (("        return text[:END]", "        # a comment\n\n        return text[ : END ]"), ""),
        (("    return 1.0", "    return 1.0  # so"), ""),
        (('"""A script."""', '"""Another."""'), ""),
        (("learning_rate=1.0", "learning_rate=2.0"), ""),  # a setting
        (('"Reply."', '"Answer."'), ""),  # the prompt
        (("from my_helpers import worth", "from my_helpers import (\n    LIMIT,\n    worth,\n)"), ""),
        (
            (
                "from functools import partial\n\nfrom my_helpers import worth",
                "import my_helpers, json\nfrom my_helpers import worth\nfrom functools import partial",
            ),
            "rest of the script",
        ),
        (("from my_helpers import worth", "import my_helpers\nfrom builtins import len as worth"), "code of longer"),
        (("scale * inner(text)", "scale + inner(text)"), "code of date"),
        (("scale=1.0", "scale=1.5"), "code of date"),  # a default
        (("text[:END]", "text[:END + 1]"), "code of date"),  # a helper in its file
        (("END = 5", "END = 6"), "code of date"),
        (('"yes"', '"yes", "Yes"'), "code of date"),  # a constant in its file
        (("factor = 2", "factor = 3"), "code of longer"),
        (("Longer(4)", "Longer(5)"), "code of longer"),
        (("[HALF for", "[-HALF for"), "code of half"),
        (("HALF = 0.5", "HALF = 0.25"), "code of half"),
        (("return 1.0", "return 2.0"), "code in my_helpers.py"),
        (("LIMIT = 3", "LIMIT = 4"), "code in my_helpers.py"),
        (("import math, json", "import json\nimport math"), ""),
        (("partial(date, scale=2.0)", "partial(date, scale=3.0)"), "code in HYPERPARAMETERS"),
        (("return 0", "return 1"), "rest of the script"),
    ],
)
def test_other_code_is_named_where_it_is(hashes, edit, label):
    then, now = hashes(), hashes(edit)
    assert then.keys() == now.keys()
    found = without_rest(label for label in now if then[label] != now[label])
    assert found == ([label] if label else [])


def test_code_without_a_file_is_not_compared():
    functions = {}
    exec("def one(completions, **kwargs): return [1]", functions)
    found = read({"one": functions["one"]})
    assert not found.code and set(found.hashes) == {"code in rewards.py"}


SHIPPED = {  # by which records of earlier versions know the five rewards
    "xmlcount_reward_func": "4a0bba454027f1e1",
    "soft_format_reward_func": "553e12281808192f",
    "strict_format_reward_func": "68fc336de501bc51",
    "int_reward_func": "0be39198fd795d99",
    "correctness_reward_func": "1ba7da8bdd5ef42a",
}


def test_the_five_rewards_are_those_of_earlier_runs():
    """Otherwise each run from before is one with other code, whose figures are measured again."""
    hashes = source.read(ROOT / "train_grpo.py", rewards.REWARD_FUNCS, None).hashes
    assert {name: hashes[f"code of {name}"] for name in SHIPPED} == SHIPPED
