"""A resumed run lists the settings that changed, and refuses those that its checkpoint or its data do not allow."""

import json
import shutil
from pathlib import Path

import pytest
from helpers_checkpoints import make_checkpoint
from helpers_runs import LEARNS

import train_grpo
from grpo.core.errors import UserError
from grpo.core.processes import UNSHARDED
from grpo.core.versions import versions
from grpo.policy import loading
from grpo.runs import checkpoints, resume

THEN = {"learning_rate": 1e-5, "num_generations": 8, "seed": 42, "output_dir": "a", "save_steps": 10, "top_p": None}


def note_changes(checkpoint, settings, sources, world_size, sharding):
    now = {"settings": settings, "sources": sources, "sharding": sharding}
    return resume.note_changes(checkpoint, now, world_size)


def differences(run, settings, sources):
    return {one.label: str(one) for one in resume.of_experiment(run, {"settings": settings, "sources": sources})}


def since_end(checkpoint, run, settings, sources):
    return [one.name for one in resume.since_end(checkpoint, run, {"settings": settings, "sources": sources})]


def sealed(world_size=1, **others):
    shutil.rmtree("run", ignore_errors=True)
    directory = make_checkpoint("run", 4, world_size=world_size, sealed=False)
    checkpoints.seal(directory, world_size, **{"settings": THEN, "data": "abc", "versions": versions()} | others)
    return directory


def test_a_change_is_listed():
    (note,) = note_changes(sealed(), {**THEN, "learning_rate": 2e-5, "top_p": 0.9}, {}, 1, UNSHARDED)
    assert "learning_rate 1e-05 → 2e-05, top_p None → 0.9" in note.finding


def test_other_versions_are_listed():
    (note,) = note_changes(sealed(versions={**versions(), "torch": "2.0.0"}), THEN, {}, 1, UNSHARDED)
    assert "torch 2.0.0 → " in note.finding


def test_settings_of_another_version_are_no_change_of_a_finished_run():
    run = sealed().parent
    (run / "model.safetensors").touch()
    record = {"status": "finished", "step": 4, "planned": 4, "settings": {**THEN, "removed": 1}}
    (run / "run.json").write_text(json.dumps(record))
    of_this_version = {**THEN, "added": 2}
    assert since_end(run / "checkpoint-4", run, of_this_version, {}) == []
    assert since_end(run / "checkpoint-4", run, {**of_this_version, "seed": 1}, {}) == ["seed"]


def test_adamw_and_fused_adamw_resume_each_other():
    """They compute the same update of the same state."""
    for then, now in (("adamw_torch", "adamw_torch_fused"), ("adamw_torch_fused", "adamw_torch")):
        checkpoint = sealed(settings={**THEN, "optim": then})
        assert note_changes(checkpoint, {**THEN, "optim": now}, {}, 1, UNSHARDED) == []
        (checkpoint.parent / "model.safetensors").touch()
        record = {"status": "finished", "step": 4, "planned": 4, "settings": {**THEN, "optim": then}}
        (checkpoint.parent / "run.json").write_text(json.dumps(record))
        assert since_end(checkpoint, checkpoint.parent, {**THEN, "optim": now}, {}) == []
    with pytest.raises(UserError, match="use --optim adamw_torch"):
        note_changes(sealed(settings={**THEN, "optim": "adamw_torch"}), {**THEN, "optim": "sgd"}, {}, 1, UNSHARDED)


def test_a_moving_reference_model_begins_again_with_a_note():
    then = {**THEN, "sync_ref_model": True}
    assert len(note_changes(sealed(settings=then), then, {}, 1, UNSHARDED)) == 1


@pytest.mark.parametrize(
    ("key", "then", "now"), [("seed", 42, 4), ("lora_r", 16, 8), ("model_name_or_path", "Qwen/A-1.5B", "Qwen/B-1.5B")]
)
def test_a_change_that_invalidates_it_is_refused(key, then, now):
    directory = sealed(settings={**THEN, key: then})
    with pytest.raises(UserError, match=f"use --{key} {then}"):
        note_changes(directory, {**THEN, key: now}, {}, 1, UNSHARDED)


def test_another_number_of_processes_is_refused():
    with pytest.raises(UserError, match="--nproc_per_node=2"):
        note_changes(sealed(world_size=2), THEN, {}, 1, UNSHARDED)


ZERO_2, FULL, SHARDED = "DeepSpeed ZeRO-2", "FSDP (FULL_STATE_DICT)", "FSDP (SHARDED_STATE_DICT)"
STAGE_3 = "global_step4/zero_pp_rank_0_mp_rank_00_model_states.pt"
# The way that a seal names (None: an older one), its optimizer's file, the ways that resume it, and some that do not
SHARDINGS = [
    (UNSHARDED, "optimizer.pt", {UNSHARDED}, {ZERO_2, FULL}),
    (ZERO_2, "global_step4/any.pt", {ZERO_2}, {UNSHARDED, FULL, "DeepSpeed ZeRO-1", "DeepSpeed ZeRO-3"}),
    (FULL, "optimizer.bin", {FULL}, {UNSHARDED, SHARDED, ZERO_2}),
    (None, "optimizer.pt", {UNSHARDED}, {FULL, ZERO_2}),
    (None, "optimizer.bin", {FULL}, {UNSHARDED, SHARDED}),
    (None, "optimizer_0/any", {SHARDED}, {UNSHARDED, FULL}),
    (None, "global_step4/any.pt", {"DeepSpeed ZeRO-1", ZERO_2}, {UNSHARDED, FULL, "DeepSpeed ZeRO-3"}),
    (None, STAGE_3, {"DeepSpeed ZeRO-3"}, {UNSHARDED, SHARDED, ZERO_2}),
]


@pytest.mark.parametrize(("way", "file", "resuming", "others"), SHARDINGS)
def test_another_way_of_sharding_is_refused_by_name(way, file, resuming, others):
    checkpoint = sealed(**({"sharding": way} if way else {}))
    (checkpoint / "optimizer.pt").unlink()
    (checkpoint / file).parent.mkdir(exist_ok=True)
    (checkpoint / file).touch()
    assert checkpoints.problem_with(checkpoint) is None  # so it is a whole one
    for here in resuming:
        assert note_changes(checkpoint, THEN, {}, 1, here) == []
    for here in others:
        with pytest.raises(UserError) as caught:
            note_changes(checkpoint, THEN, {}, 1, here)
        line = str(caught.value)
        assert f"was written with {' or '.join(sorted(resuming))}, and this run has {here}" in line
        assert "--model_name_or_path run/checkpoint-4" in line and "delete" not in line


def test_a_run_of_another_launcher_is_refused_and_stays(tiny_run, learned, capfd, monkeypatch):
    run = learned.copy()
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    for name, value in {"USE_FSDP": "true", "USE_DEEPSPEED": "false"}.items():
        monkeypatch.setenv(f"ACCELERATE_{name}", value)
    flags = tiny_run(**LEARNS, save_steps="1", resume_from_checkpoint="auto")
    assert train_grpo.main([*flags, "--max_steps", "4"]) == 2
    err = capfd.readouterr().err
    assert "checkpoint-2 was written with no sharding, and this run has FSDP (SHARDED_STATE_DICT)" in err
    assert err.count("\n") == 1 and "delete" not in err
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


PARTS = {"system prompt": "1", "exemplars": "2", "code of date_exact": "3", "rest of the script": "4"}


def test_other_code_is_listed_and_another_prompt_refused():
    checkpoint = sealed(sources=PARTS)
    others = PARTS | {"code of date_exact": "x", "code of new": "y", "rest of the script": "z"}
    (note,) = note_changes(checkpoint, THEN, others, 1, UNSHARDED)
    assert note.finding == "since the checkpoint: the code of date_exact"
    (note,) = note_changes(checkpoint, THEN, PARTS | {"rest of the script": "z"}, 1, UNSHARDED)
    assert note.finding == "since the checkpoint: the rest of the script"
    for part in ("system prompt", "exemplars"):
        with pytest.raises(UserError, match=f"another {part} than"):
            note_changes(sealed(sources=PARTS), THEN, PARTS | {part: "x"}, 1, UNSHARDED)


def test_an_experiment_is_its_settings_data_and_sources():
    """With or without a checkpoint; the script around them does not make another one."""
    settings = THEN | {"dataset_name": "a.csv", "max_steps": 4}
    record = {"settings": settings, "sources": PARTS}
    Path("started").mkdir()
    Path("started/run.json").write_text(json.dumps(record))
    sealed(settings=settings, sources=PARTS)
    for run in map(Path, ("run", "started")):
        same = {"output_dir": "b", "save_steps": 7, "resume_from_checkpoint": "auto"}
        assert differences(run, settings | same, PARTS | {"rest of the script": "z"}) == {}
        found = differences(run, settings | {"dataset_name": "b.csv", "max_steps": 9}, PARTS | {"exemplars": "x"})
        assert found == {
            "dataset_name": "dataset_name a.csv → b.csv",
            "max_steps": "max_steps 4 → 9",
            "exemplars": "the exemplars",
        }


def test_a_model_or_file_that_was_moved_is_the_same():
    Path("new/model").mkdir(parents=True)
    then = {**THEN, "model_name_or_path": "gone/model", "dataset_name": "new"}
    for now in ({"model_name_or_path": "new/model"}, {"dataset_name": str(Path("new").absolute())}):
        assert differences(sealed(settings=then).parent, then | now, {}) == {}
    assert differences(sealed(settings=then).parent, then | {"model_name_or_path": "new"}, {}) != {}
    Path("gone/model").mkdir(parents=True)  # both are there: two models
    assert differences(sealed(settings=then).parent, then | {"model_name_or_path": "new/model"}, {}) != {}


@pytest.mark.parametrize("key", ["learning_rate", "lr_scheduler_kwargs", "lr_scheduler_type"])
def test_a_schedule_that_a_checkpoint_contains_is_not_changed(key):
    then = THEN | {"lr_scheduler_type": "reduce_lr_on_plateau", "lr_scheduler_kwargs": None, "learning_rate": 1e-5}
    other = {"learning_rate": 2e-5, "lr_scheduler_kwargs": {"factor": 0.5}, "lr_scheduler_type": "cosine"}
    with pytest.raises(UserError, match=f"^{key}: .* makes it unusable"):
        note_changes(sealed(settings=then), then | {key: other[key]}, {}, 1, UNSHARDED)
    assert note_changes(sealed(settings=then), then, {}, 1, UNSHARDED) == []


def test_a_resumed_run_keeps_its_data_and_its_place(tiny_run, learned, capfd, write_jsonl):
    flags, run = tiny_run(**LEARNS, save_steps="1"), learned.copy()
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    lines = Path(LEARNS["dataset_name"]).read_text().splitlines()
    other = write_jsonl([json.loads(line) for line in lines[1:]])
    for change, told in {
        ("--dataset_name", other): "run/checkpoint-2",
        ("--seed", "1"): "seed: ",
    }.items():
        assert train_grpo.main([*flags, "--resume_from_checkpoint", "auto", *change]) == 2
        err = capfd.readouterr().err
        assert told in err and err.count("\n") == 1
        assert train_grpo.main([*flags, "--resume_from_checkpoint", "auto", *change, "--dry_run", "true"]) == 2
        assert told in capfd.readouterr().err
        assert {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()} == before
    # the same rows from another place, and more steps: reported, and done
    copy = write_jsonl([json.loads(line) for line in lines], "copy.jsonl")
    change = ("--dataset_name", copy, "--max_steps", "3")
    assert train_grpo.main([*flags, "--resume_from_checkpoint", "auto", *change]) == 0
    out = " ".join(capfd.readouterr().out.split())
    assert "changed since the checkpoint: max_steps 2 → 3" in out and (run / "checkpoint-3").exists()


@pytest.mark.parametrize("shorter", ["--max_steps 1", "--max_steps -1 --num_train_epochs 0.05"])
def test_a_run_is_not_resumed_to_fewer_steps_than_it_has(shorter, tiny_run, learned, capfd):
    run = learned.copy()
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    flags = tiny_run(**{**LEARNS, "max_steps": None}, save_steps="1", resume_from_checkpoint="auto")
    for more in ([], ["--dry_run", "true"]):
        assert train_grpo.main([*flags, *shorter.split(), *more]) == 2
        err = capfd.readouterr().err
        assert "1 optimizer step, fewer than the 2 of run/checkpoint-2; use --max_steps 2 or more" in err
        assert err.count("\n") == 1
        assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_another_chat_template_is_said_before_a_run_is_resumed_with_it(tiny_run, learned, capfd, monkeypatch):
    """The rows are the same, what the model reads is not: an edited template, or one that holds today's date."""
    learned.copy()
    resumed = [*tiny_run(**LEARNS, save_steps="1"), "--max_steps", "3", "--resume_from_checkpoint", "auto"]
    assert train_grpo.main([*resumed, "--dry_run", "true"]) == 0
    assert "the tokens of the prompts" not in " ".join(capfd.readouterr().out.split())

    def dated(*given, **options):
        tokenizer = load(*given, **options)
        tokenizer.chat_template = "{{ '2026-11-26' }}" + tokenizer.chat_template
        return tokenizer

    load = loading.AutoTokenizer.from_pretrained
    monkeypatch.setattr(loading.AutoTokenizer, "from_pretrained", dated)
    assert train_grpo.main(resumed) == 0
    said = " ".join(capfd.readouterr().out.split())
    assert "since the checkpoint: the tokens of the prompts (an edited or dated chat template" in said
    assert "the tokens of the prompts" in json.loads(Path("run/run.json").read_text())["sessions"][-1]["changed"]


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt", "rng_state.pth", "trainer_state.json"])
def test_a_damaged_file_is_one_line(name, tiny_run, learned, capfd):
    run = learned.copy()
    shutil.rmtree(run / "checkpoint-2")  # which has no step to go
    damaged = run / "checkpoint-1" / name
    damaged.write_bytes(damaged.read_bytes()[: damaged.stat().st_size // 2])
    flags = tiny_run(**LEARNS, save_steps="1", resume_from_checkpoint="auto")
    assert train_grpo.main(flags) == 2
    err = capfd.readouterr().err
    (line,) = [line for line in err.splitlines() if line.startswith("error: ")]
    assert line.startswith("error: resume_from_checkpoint: ") and "checkpoint-1" in line and "Traceback" not in err
    assert json.loads((run / "run.json").read_text())["status"].startswith("failed: resume_from_checkpoint")
