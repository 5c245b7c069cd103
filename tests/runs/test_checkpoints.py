"""A checkpoint counts only when all of it was on the disk before its seal, and a half-written one replaces none."""

import json
import shutil
from pathlib import Path

import pytest
from helpers_checkpoints import make_checkpoint

from grpo.core import writing
from grpo.runs import checkpoints


def test_a_seal_holds_the_step_the_processes_and_the_facts():
    directory = make_checkpoint("run", 7)
    assert checkpoints.problem_with(directory) is None
    sealed = json.loads((directory / "complete.json").read_text())
    assert sealed == {"step": 7, "world_size": 1, "note": "hello"}


def test_the_seal_is_written_last_and_flushed(monkeypatch):
    """Everything in the checkpoint is on the disk before its seal appears."""
    directory, flushed = make_checkpoint("run", 7, sealed=False), []
    (directory / "optimizer_0").mkdir()
    (directory / "optimizer_0/shard").touch()
    inside, flush = set(directory.rglob("*")) | {directory}, checkpoints.flush

    def noting(path):
        flush(path)
        flushed.append((path, (directory / "complete.json").exists()))

    for module in (checkpoints, writing):
        monkeypatch.setattr(module, "flush", noting)
    checkpoints.seal(directory, 1)
    assert {path for path, sealed in flushed if not sealed} == inside
    assert [path for path, sealed in flushed if sealed] == [directory, directory.parent]


@pytest.mark.parametrize("name", ["optimizer.pt", "rng_state_2.pth", "trainer_state.json", "complete.json"])
def test_a_missing_part_of_the_state_is_named(name):
    """transformers would resume without it in silence. Every process has its own random state."""
    directory = make_checkpoint("run", 7, world_size=3)
    assert checkpoints.problem_with(directory) is None
    (directory / name).unlink()
    assert name.partition(".")[0] in checkpoints.problem_with(directory)


def test_other_names_and_broken_seals_are_refused():
    Path("model").mkdir()
    assert checkpoints.problem_with(Path("nowhere")) and checkpoints.problem_with(Path("model"))
    directory = make_checkpoint("run", 7)
    for text in ("", "[]", "{"):
        (directory / "complete.json").write_text(text)
        assert "complete.json" in checkpoints.problem_with(directory)


@pytest.mark.parametrize("number", [10**9, "2", 0, -1, 1.5, True, None, [2]])
def test_a_number_of_processes_costs_nothing_whatever_it_is(number):
    directory = make_checkpoint("run", 7, world_size=2)
    sealed = json.loads((directory / "complete.json").read_text())
    (directory / "complete.json").write_text(json.dumps(sealed | {"world_size": number}))
    expected = "rng_state_2.pth is missing" if number == 10**9 else "complete.json cannot be read"
    assert checkpoints.problem_with(directory) == expected


@pytest.mark.parametrize("shards", ["optimizer_0", "global_step7"])
def test_sharded_checkpoints_need_no_optimizer_file(shards):
    """Checkpoints of FSDP, and of DeepSpeed."""
    directory = make_checkpoint("run", 7)
    for name in ("optimizer.pt", "scheduler.pt", "model.safetensors"):
        (directory / name).unlink()
    assert checkpoints.problem_with(directory)
    (directory / shards).mkdir()
    assert checkpoints.problem_with(directory) is None


def test_the_newest_complete_one_is_chosen_by_number():
    for step in (5, 10, 9, 100):
        make_checkpoint("run", step)
    (Path("run") / "checkpoint-later").mkdir()
    assert checkpoints.newest(Path("run")) == (Path("run/checkpoint-100"), [])
    Path("run/checkpoint-100/optimizer.pt").unlink()
    Path("run/checkpoint-10/complete.json").unlink()
    found, skipped = checkpoints.newest(Path("run"))
    assert found == Path("run/checkpoint-9")
    assert [line.partition(":")[0] for line in skipped] == ["run/checkpoint-100", "run/checkpoint-10"]
    assert checkpoints.newest(Path("elsewhere")) == (None, [])


def names():
    return [path.name for path in checkpoints.list_all(Path("run"))]


def test_rotation_counts_complete_ones_only():
    for step in (1, 2, 3, 4):
        make_checkpoint("run", step)
    make_checkpoint("run", 5, sealed=False)
    checkpoints.rotate(Path("run"), keep=2, best=str(Path("run/checkpoint-1").resolve()))
    assert names() == ["checkpoint-5", "checkpoint-4", "checkpoint-3", "checkpoint-1"]
    checkpoints.rotate(Path("run"), keep=None)
    assert len(names()) == 4


def test_one_that_is_being_deleted_is_not_complete(monkeypatch):
    seen = []
    monkeypatch.setattr(shutil, "rmtree", lambda path, **_: seen.append(checkpoints.problem_with(path)))
    for step in (1, 2):
        make_checkpoint("run", step)
    checkpoints.rotate(Path("run"), keep=1)
    assert len(seen) == 1 and "no complete.json" in seen[0]


def test_rotation_leaves_checkpoints_of_other_runs():
    """Somebody linked one, to branch off a run without a copy."""
    for step in (3, 4):
        make_checkpoint("mine", step)
    for step in (1, 2, 9):
        make_checkpoint("other", step)
        Path(f"mine/checkpoint-{step}").symlink_to(Path(f"other/checkpoint-{step}").absolute())
    checkpoints.rotate(Path("mine"), 1)
    assert sorted(path.name for path in Path("mine").iterdir()) == [f"checkpoint-{step}" for step in (1, 2, 4, 9)]
    checkpoints.delete(Path("mine/checkpoint-1"))
    assert not Path("mine/checkpoint-1").is_symlink()
    assert all(checkpoints.problem_with(Path(f"other/checkpoint-{step}")) is None for step in (1, 2, 9))
