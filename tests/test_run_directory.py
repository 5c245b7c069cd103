"""grpo/run_directory.py: a run is never overwritten by accident."""

import json
from pathlib import Path

import pytest

import train_grpo
from grpo import UserError, run_directory
from grpo.config import resolve


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


def test_run_json_records_settings_versions_hardware_and_no_nan():
    config = resolve(train_grpo.HYPERPARAMETERS, ["--use_cpu", "true", "--report_to", "none", "--output_dir", "r"])
    run_directory.begin(Path("r"), config, prompt={"system": "Be brief."})
    record = json.loads(Path("r/run.json").read_text(), parse_constant=pytest.fail)
    assert record["settings"]["learning_rate"] == 5e-6 and record["settings"]["num_generations"] == 16
    assert {"python", "torch", "trl", "transformers"} <= set(record["versions"])
    assert record["geometry"]["num_generations"] == 16 and record["hardware"]["cpus"] >= 1
    assert record["commit"] is None or len(record["commit"].rstrip("+")) == 40


def test_beginning_anew_removes_what_the_replaced_run_left_and_nothing_else():
    make_run("r", [5])
    for name in ("metrics.jsonl", "eval_before.json", "notes.txt"):
        (Path("r") / name).write_text("old")
    argv = ["--use_cpu", "true", "--report_to", "none", "--output_dir", "r", "--overwrite_run", "true"]
    run_directory.begin(Path("r"), resolve(train_grpo.HYPERPARAMETERS, argv), prompt={"system": "Be brief."})
    assert sorted(path.name for path in Path("r").iterdir()) == ["notes.txt", "run.json"]


def test_a_directory_of_somebody_elses_files_loses_none_of_them():
    Path("pictures").mkdir()
    names = ["holiday.png", "metrics.jsonl", "completions_of_mine.jsonl"]
    for name in names:
        (Path("pictures") / name).write_text("mine")
    argv = ["--use_cpu", "true", "--report_to", "none", "--output_dir", "pictures", "--overwrite_run", "true"]
    run_directory.begin(Path("pictures"), resolve(train_grpo.HYPERPARAMETERS, argv), prompt={"system": "Be brief."})
    assert all((Path("pictures") / name).read_text() == "mine" for name in names)


def test_a_file_in_the_way_is_named():
    Path("file").write_text("x")
    for name in ("file", "file/run"):
        with pytest.raises(UserError, match=r"output_dir.*file. is in the way"):
            run_directory.refuse_unwritable(Path(name))
    run_directory.refuse_unwritable(Path("new/deep/run"))
    assert not Path("new").exists()


def test_the_recorded_command_is_quoted_and_hides_secrets():
    argv = ["--dataset_split", "train[:10]", "--hub_token", "hf_x", "--api_key=y", "--pad_to_multiple_of", "8"]
    line = run_directory.command_line(argv)
    assert "'train[:10]'" in line and "hf_x" not in line and "=y" not in line and line.endswith("8")


def test_without_nan_keeps_everything_else():
    value = {"a": [1.5, float("nan"), {"b": float("-inf")}], "c": "x", "d": None, "e": (1, True)}
    assert run_directory.without_nan(value) == {"a": [1.5, None, {"b": None}], "c": "x", "d": None, "e": [1, True]}


def test_finishing_adds_how_it_ended_and_how_long_it_took():
    config = resolve(train_grpo.HYPERPARAMETERS, ["--use_cpu", "true", "--report_to", "none", "--output_dir", "r"])
    run_directory.begin(Path("r"), config, prompt={"system": "Be brief."})
    started = json.loads((Path("r") / "run.json").read_text())
    assert started["status"] == "running" and started["prompt"] == {"system": "Be brief."}
    run_directory.finish(Path("r"), "finished", 12.345)
    assert json.loads((Path("r") / "run.json").read_text()) == {**started, "status": "finished", "seconds": 12.3}


def test_secrets_of_the_environment_are_masked_wherever_they_came_from(monkeypatch):
    planted = {
        "HF_TOKEN": "hf_planted_1",
        "WANDB_API_KEY": "wandb_planted_2",
        "MY_SECRET": "planted_secret_3",
        "DB_PASSWORD": "planted_pass_4",
        "OPENAI_APIKEY": "planted_key_5",
    }
    for name, value in planted.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("QUOTED_PASSWORD", 'with "quotes" and é')
    assert run_directory.mask({"a": ['see with "quotes" and é', 1, None]}) == {"a": ["see ***", 1, None]}
    monkeypatch.setenv("SSH_KEY", str(Path.cwd()))  # a path is no secret
    assert run_directory.mask(str(Path.cwd() / "x")) == str(Path.cwd() / "x")
    monkeypatch.setenv("SOME_KEY", "short")  # nothing so short is a secret; it would blot out words
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "sometimes")
    text = run_directory.mask(f"{' '.join(planted.values())} short sometimes")
    assert text == "*** *** *** *** *** short sometimes"
    config = resolve(
        train_grpo.HYPERPARAMETERS,
        ["--use_cpu", "true", "--report_to", "none", "--output_dir", "r", "--run_name", "hf_planted_1"],
    )
    run_directory.begin(Path("r"), config)
    record = (Path("r") / "run.json").read_text()
    assert (
        not any(value in record for value in planted.values()) and json.loads(record)["settings"]["run_name"] == "***"
    )


def test_a_half_written_line_is_gone_before_the_next_one():
    path = Path("lines.jsonl")
    run_directory.append_line(path, {"step": 1, "loss": float("nan")})
    path.write_text(path.read_text() + '{"step": 2, "lo')
    for step in (2, 3):
        run_directory.append_line(path, {"step": step, "text": "\u2028é"})
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
    assert [line["step"] for line in lines] == [1, 2, 3] and lines[0]["loss"] is None and lines[1]["text"] == "\u2028é"
    path.write_text('{"half')
    run_directory.append_line(path, {"step": 1})
    assert path.read_text() == '{"step": 1}\n'


def test_the_command_to_go_on_with_names_run_and_launcher(monkeypatch):
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    command = run_directory.resume_command(Path("outputs/X"), ["--config", "recipes/demo.yaml"])
    assert command == (
        "python train_grpo.py --config recipes/demo.yaml --resume_from_checkpoint auto --output_dir outputs/X"
    )
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    command = run_directory.resume_command(Path("mine"), ["--output_dir", "mine"])
    assert command == ("torchrun --nproc_per_node=4 train_grpo.py --output_dir mine --resume_from_checkpoint auto")


@pytest.mark.parametrize("model", ["assets/demo/model", "outputs/demo-GRPO", "outputs/demo-GRPO-2"])
def test_a_run_that_goes_on_from_another_is_called_like_it(model):
    assert run_directory.default_names(model, "train.jsonl") == ("outputs/demo-GRPO", "demo-GRPO-train")


def test_an_evaluation_alone_is_called_after_the_whole_model():
    assert run_directory.default_names("outputs/demo-GRPO", "d.jsonl", eval_only=True)[0] == "outputs/demo-GRPO-eval"
    assert run_directory.default_names("a/Qwen2.5-1.5B-Instruct", "d", True)[0] == "outputs/Qwen2.5-1.5B-Instruct-eval"
