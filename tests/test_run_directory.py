"""grpo/run_directory.py: a run is never overwritten by accident."""

from pathlib import Path

import pytest

from grpo import UserError, run_directory


def make_run(name, checkpoints=()):
    Path(name).mkdir(parents=True)
    (Path(name) / "run.json").write_text("{}")
    for step in checkpoints:
        (Path(name) / f"checkpoint-{step}").mkdir()
        (Path(name) / f"checkpoint-{step}" / "trainer_state.json").write_text("{}")


def test_an_unset_directory_takes_the_next_free_number_and_creates_nothing():
    assert run_directory.claim(None, "out/X", None, False) == ("out/X", None)
    make_run("out/X")
    assert run_directory.claim(None, "out/X", None, False) == ("out/X-2", None)
    make_run("out/X-2")
    assert run_directory.claim(None, "out/X", None, False) == ("out/X-3", None)
    assert not Path("out/X-3").exists()
    assert run_directory.claim(None, "out/X", None, True) == ("out/X", None)


def test_a_given_directory_that_holds_a_run_is_refused_with_three_ways_out():
    make_run("mine")
    with pytest.raises(UserError) as caught:
        run_directory.claim("mine", "unused", None, False)
    for way in ("--resume_from_checkpoint auto", "another name", "--overwrite_run true"):
        assert way in str(caught.value)
    assert run_directory.claim("mine", "unused", None, True) == ("mine", None)


def test_a_directory_with_other_files_is_free():
    Path("mine").mkdir()
    Path("mine/notes.txt").write_text("hello")
    assert run_directory.claim("mine", "unused", None, False) == ("mine", None)


def test_auto_resumes_the_newest_checkpoint_of_the_newest_run():
    make_run("out/X", [5, 10])
    make_run("out/X-2", [9, 100, 20])
    assert run_directory.claim(None, "out/X", "auto", False) == ("out/X-2", "out/X-2/checkpoint-100")
    assert run_directory.claim("out/X", "unused", "auto", False) == ("out/X", "out/X/checkpoint-10")


def test_an_explicit_checkpoint_names_its_run():
    make_run("out/X", [5])
    assert run_directory.claim(None, "unused", "out/X/checkpoint-5", False) == ("out/X", "out/X/checkpoint-5")
    with pytest.raises(UserError, match="is no checkpoint"):
        run_directory.claim(None, "unused", "out/X", False)


def test_a_file_in_the_way_is_named():
    Path("file").write_text("x")
    for name in ("file", "file/run"):
        with pytest.raises(UserError, match=r"output_dir.*file. is in the way"):
            run_directory.refuse_unwritable(Path(name))
    run_directory.refuse_unwritable(Path("new/deep/run"))
    assert not Path("new").exists()


@pytest.mark.parametrize("model", ["assets/demo/model", "outputs/demo-GRPO", "outputs/demo-GRPO-2"])
def test_a_run_that_goes_on_from_another_is_called_like_it(model):
    assert run_directory.default_names(model, "train.jsonl") == ("outputs/demo-GRPO", "demo-GRPO-train")


def test_an_evaluation_alone_is_called_after_the_whole_model():
    assert run_directory.default_names("outputs/demo-GRPO", "d.jsonl", eval_only=True)[0] == "outputs/demo-GRPO-eval"
    assert run_directory.default_names("a/Qwen2.5-1.5B-Instruct", "d", True)[0] == "outputs/Qwen2.5-1.5B-Instruct-eval"
