"""grpo/runs/checkpoints.py: a checkpoint counts only when it is complete, and no damage goes unnoticed."""

import json
import pickle
import shutil
import zipfile
from pathlib import Path

import pytest
from helpers_checkpoints import cut, make_checkpoint, reseal

from grpo.runs import checkpoints


def test_a_seal_lists_every_other_file_with_its_size():
    directory = make_checkpoint("run", 7)
    assert checkpoints.problem_with(directory) is None
    sealed = json.loads((directory / "complete.json").read_text())
    files = {path.name: path.stat().st_size for path in directory.iterdir() if path.name != "complete.json"}
    assert sealed == {"step": 7, "world_size": 1, "files": files, "note": "hello"}


def test_without_a_seal_it_is_half_written_or_foreign():
    assert "has no complete.json" in checkpoints.problem_with(make_checkpoint("run", 7, sealed=False))


FILES = ["model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"]


@pytest.mark.parametrize("name", FILES)
def test_a_missing_cut_or_grown_file_is_named(name):
    directory = make_checkpoint("run", 7)
    original = (directory / name).read_bytes()
    for damage, told in (
        (lambda: (directory / name).unlink(), f"{name} is missing"),
        (lambda: cut(directory, name), f"{name} has"),
        (lambda: (directory / name).write_bytes(b""), f"{name} has 0 bytes"),
        (lambda: (directory / name).write_bytes(original + b"x"), f"{name} has"),
    ):
        damage()
        assert checkpoints.problem_with(directory).startswith(told)
        (directory / name).write_bytes(original)
    assert checkpoints.problem_with(directory) is None


@pytest.mark.parametrize("name", FILES)
def test_a_file_cut_before_sealing_is_found_inside(name):
    directory = make_checkpoint("run", 7)
    cut(directory, name)
    reseal(directory)
    assert f"{name} is damaged" in checkpoints.problem_with(directory)


def test_one_wrong_bit_in_an_archive_is_found():
    """In its lists zipfile finds methods and encryptions that it does not know, and raises whatever it likes."""
    directory = make_checkpoint("run", 7)
    whole = (directory / "optimizer.pt").read_bytes()
    for place in [len(whole) // 2, *range(0, 64, 8), *range(len(whole) - 700, len(whole), 50)]:
        data = bytearray(whole)
        data[place] ^= 1 << (3 * place % 8)
        (directory / "optimizer.pt").write_bytes(data)
        reason = checkpoints.problem_with(directory)
        assert "optimizer.pt" in (reason or "") or place != len(whole) // 2


def test_nothing_is_unpickled():
    class Bomb:
        def __reduce__(self):
            return (Path.touch, (Path("exploded"),))

    directory = make_checkpoint("run", 7)
    with zipfile.ZipFile(directory / "optimizer.pt", "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(Bomb()))
    (directory / "training_args.bin").write_bytes(pickle.dumps(Bomb()))
    (directory / "scheduler.pt").write_bytes(pickle.dumps(Bomb()))  # no archive at all
    reseal(directory)
    assert checkpoints.problem_with(directory).startswith("scheduler.pt is damaged")
    assert not Path("exploded").exists()


@pytest.mark.parametrize(
    ("name", "told"), [("optimizer.pt", "no optimizer state"), ("rng_state_2.pth", "rng_state_2.pth is missing")]
)
def test_a_part_that_was_never_saved_is_named(name, told):
    """Every process has its own random numbers."""
    directory = make_checkpoint("run", 7, world_size=3)
    assert checkpoints.problem_with(directory) is None
    (directory / name).unlink()
    checkpoints.break_seal(directory)
    checkpoints.seal(directory, 3)
    assert told in checkpoints.problem_with(directory)


def test_other_names_and_broken_seals_are_refused():
    assert checkpoints.problem_with(Path("nowhere")) == "there is no such directory"
    Path("model").mkdir()
    assert "not the name of a checkpoint" in checkpoints.problem_with(Path("model"))
    directory = make_checkpoint("run", 7)
    for text in ("", "[]", '{"files": 3}', "{"):
        (directory / "complete.json").write_text(text)
        assert checkpoints.problem_with(directory) == "complete.json cannot be read"


def test_sharded_checkpoints_need_no_optimizer_file():
    directory = make_checkpoint("run", 7, sealed=False)
    for name in ("optimizer.pt", "scheduler.pt", "model.safetensors"):
        (directory / name).unlink()
    (directory / "optimizer_0").mkdir()
    (directory / "optimizer_0" / "__0_0.distcp").write_bytes(b"shard")
    checkpoints.seal(directory, 1)
    assert checkpoints.problem_with(directory) is None
    (directory / "optimizer_0" / "__0_0.distcp").write_bytes(b"sha")
    assert checkpoints.problem_with(directory) == "optimizer_0/__0_0.distcp has 3 bytes instead of 5"


def test_the_newest_complete_one_is_chosen_by_number():
    for step in (5, 10, 9, 100):
        make_checkpoint("run", step)
    (Path("run") / "checkpoint-later").mkdir()
    assert checkpoints.newest(Path("run")) == (Path("run/checkpoint-100"), [])
    cut(Path("run/checkpoint-100"), "optimizer.pt")
    (Path("run/checkpoint-10") / "complete.json").unlink()
    found, skipped = checkpoints.newest(Path("run"))
    assert found == Path("run/checkpoint-9") and len(skipped) == 2
    assert skipped[0].startswith("run/checkpoint-100: optimizer.pt has") and "no complete.json" in skipped[1]
    assert checkpoints.newest(Path("elsewhere")) == (None, [])


def test_removing_counts_complete_ones_only():
    for step in (1, 2, 3, 4):
        make_checkpoint("run", step)
    make_checkpoint("run", 5, sealed=False)
    checkpoints.remove_old(Path("run"), keep=2, best=str(Path("run/checkpoint-1").resolve()))
    assert [path.name for path in checkpoints.all_of(Path("run"))] == [
        "checkpoint-5", "checkpoint-4", "checkpoint-3", "checkpoint-1",
    ]  # fmt: skip
    checkpoints.remove_old(Path("run"), keep=None)
    assert len(checkpoints.all_of(Path("run"))) == 4


def test_the_last_resumable_one_is_never_removed():
    """As when a run is resumed with save_only_model."""
    for step in (1, 2, 3, 4):
        directory = make_checkpoint("run", step, sealed=False)
        if step > 2:
            (directory / "optimizer.pt").unlink()
        checkpoints.seal(directory, 1)
    checkpoints.remove_old(Path("run"), keep=1)
    assert [path.name for path in checkpoints.all_of(Path("run"))] == ["checkpoint-4", "checkpoint-2"]
    assert checkpoints.newest(Path("run"))[0] == Path("run/checkpoint-2")


def test_one_that_is_being_removed_is_not_complete(monkeypatch):
    seen = []
    monkeypatch.setattr(shutil, "rmtree", lambda path, **_: seen.append(checkpoints.problem_with(path)))
    for step in (1, 2):
        make_checkpoint("run", step)
    checkpoints.remove_old(Path("run"), keep=1)
    assert len(seen) == 1 and "no complete.json" in seen[0]


def test_write_whole_never_leaves_half_a_file(monkeypatch):
    path = Path("value.json")
    checkpoints.write_whole(path, {"a": 1})
    monkeypatch.setattr(
        json, "dump", lambda value, file, **_: (file.write('{"a"'), (_ for _ in ()).throw(OSError(28, "full")))
    )
    with pytest.raises(OSError, match="full"):
        checkpoints.write_whole(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 1}
