"""grpo/runs/pickles.py: sharded checkpoints are read without running anything before their libraries load them."""

import copyreg
import importlib
import io
import os
import pickle
import shutil
import sys
import zipfile
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from helpers_pickles import RAN, Payload, plant
from torch.distributed.checkpoint import FileSystemReader, load, save
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex

from grpo.core.errors import UserError
from grpo.runs import pickles

CHECKPOINT = Path("run/checkpoint-2")
ZERO = CHECKPOINT / "global_step2/zero_pp_rank_0_mp_rank_00_optim_states.pt"
FSDP = CHECKPOINT / "optimizer_0"
ITEM = MetadataIndex("optimizer.param_groups.lr")  # not a tensor, so torch.distributed.checkpoint unpickles it


@pytest.fixture(autouse=True)
def made():
    """A checkpoint of both kinds: what one library writes is not looked at by the other."""
    ZERO.parent.mkdir(parents=True)
    (CHECKPOINT / "latest").write_text("global_step2")
    weights = torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    weights.ds_id = "0"
    state = {"module": OrderedDict(w=weights), "shapes": [torch.Size([2])], "half": torch.float16, "step": 2}
    torch.save(state, ZERO)
    optimizer = {"state": {"w": torch.ones(2, 3), "step": torch.tensor(2.0)}, "param_groups": {"lr": 0.1}}
    save({"optimizer": optimizer}, checkpoint_id=FSDP, no_dist=True)


def metadata():
    return FileSystemReader(FSDP).read_metadata()


def write_metadata(value, name=".metadata"):
    (FSDP / name).write_bytes(value if isinstance(value, bytes) else pickle.dumps(value))


def archive(data, names=("data.pkl",)):
    """An archive as torch.save writes it, with this pickle (or several)."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as written:
        for name, one in zip(names, [data] * len(names) if isinstance(data, bytes) else data, strict=True):
            written.writestr(f"archive/{name}", one)
        written.writestr("archive/version", "3")
    return file.getvalue()


def refusal():
    with pytest.raises(UserError) as refused:
        pickles.check(CHECKPOINT)
    assert not RAN.exists() and "\n" not in str(refused.value) and len(str(refused.value)) < 600
    return str(refused.value)


def test_what_the_libraries_write_passes():
    pickles.check(CHECKPOINT)
    loaded = {"optimizer": {"param_groups": {"lr": 0.0}}}
    load(loaded, checkpoint_id=FSDP, no_dist=True)
    assert loaded["optimizer"]["param_groups"]["lr"] == 0.1 and ITEM in metadata().storage_data


def test_a_checkpoint_of_one_process_needs_no_check():
    shutil.rmtree(CHECKPOINT)
    CHECKPOINT.mkdir()
    torch.save(Payload(), CHECKPOINT / "optimizer.pt")  # torch's restricted unpickler reads it
    pickles.check(CHECKPOINT)
    assert not RAN.exists()


def plant_in_item():
    found = metadata()
    where = FSDP / found.storage_data[ITEM].relative_path
    planted = io.BytesIO()
    torch.save(Payload(), planted)
    found.storage_data[ITEM] = _StorageInfo(where.name, where.stat().st_size, len(planted.getvalue()))
    where.write_bytes(where.read_bytes() + planted.getvalue())
    write_metadata(found)


def plant_in_rank_metadata():
    (FSDP / ".metadata").unlink()  # torch.distributed.checkpoint then reads each process' own
    write_metadata(Payload(), "__0.metadata")


PLANTED = {  # a name and what unpickles it
    "ZeRO": (lambda: plant(ZERO), lambda: torch.load(ZERO, weights_only=False)),
    "FSDP2's metadata": (lambda: write_metadata(Payload()), lambda: FileSystemReader(FSDP).read_metadata()),
    "metadata of one process": (plant_in_rank_metadata, lambda: FileSystemReader(FSDP).read_metadata(rank=0)),
    "FSDP2's data": (
        plant_in_item,
        lambda: load({"optimizer": {"param_groups": {"lr": 0.0}}}, checkpoint_id=FSDP, no_dist=True),
    ),
}


@pytest.mark.parametrize("place", PLANTED)
def test_a_payload_that_its_library_would_run_is_not_run(place):
    plant, unpickle = PLANTED[place]
    plant()
    line = refusal()
    assert str(CHECKPOINT) in line and "names io.open" in line and "none of it was run" in line
    try:
        unpickle()
    except Exception as error:  # of what the payload returned: the library expects a dictionary
        assert RAN.exists(), error
    assert RAN.exists()


def test_the_remedy_is_one_that_works():
    plant(ZERO)
    assert refusal().endswith("start a new run")
    (CHECKPOINT / "model.safetensors").touch()
    assert f"--model_name_or_path {CHECKPOINT}" in refusal()


RUN = b"\x8c" + bytes([len(str(RAN))]) + str(RAN).encode() + b"\x8c\x01w"  # pushes the arguments of open()
OPCODES = {
    "GLOBAL": b"cio\nopen\n(" + RUN + b"tR.",
    "STACK_GLOBAL": b"\x80\x04\x8c\x02io\x8c\x04open\x93(" + RUN + b"tR.",
    "a dotted name": b"\x80\x04\x8c\x05torch\x8c\x09os.system\x93.",
    "an attribute of a known class": b"\x80\x04\x8c\x0bcollections\x8c\x14OrderedDict.fromkeys\x93.",
    "INST": b"(" + RUN + b"iio\nopen\n.",
    "OBJ": b"(cio\nopen\n" + RUN + b"o.",
    "NEWOBJ": b"\x80\x02cio\nFileIO\n(" + RUN + b"t\x81.",
    "a module of Python 2": b"c__builtin__\nopen\n(" + RUN + b"tR.",
    "names that look like a storage": b"cos\nFloatStorage\n.",
    "control characters": b"cos\n\x1b[31m" + b"x" * 100_000 + b"\n.",
}


@pytest.mark.parametrize("where", ["ZeRO", "FSDP2"])
@pytest.mark.parametrize("trick", OPCODES)
def test_no_opcode_runs_anything(trick, where):
    if where == "ZeRO":
        ZERO.write_bytes(archive(OPCODES[trick]))
    else:
        write_metadata(OPCODES[trick])
    refusal()


DEEP = {
    "tuples": b")" + b"\x85" * 1_000_000,
    "lists": b"](" * 1_000_000 + b"e" * 1_000_000,
    "objects": b"\x80\x02ccollections\nOrderedDict\nq\x00)\x81"
    + b"}X\x01\x00\x00\x00ah\x00)\x81" * 100_000
    + b"sb" * 100_000,
}


@pytest.mark.parametrize("kind", DEEP)
def test_objects_deep_in_each_other_are_read(kind):
    ZERO.write_bytes(archive(DEEP[kind] + b"."))
    pickles.check(CHECKPOINT)


def test_each_name_is_one_of_the_libraries_and_found_as_it_is_written():
    for module, name in pickles.METADATA.keys() | pickles.ARCHIVES.keys():
        assert "." not in name and (module, name) not in NAME_MAPPING and module not in IMPORT_MAPPING
        if module.startswith("deepspeed"):
            pytest.importorskip("deepspeed")
        if module != "pathlib._local" or sys.version_info[:2] == (3, 13):
            assert hasattr(importlib.import_module(module), name), name


BROKEN = {
    "an extension": b"\x80\x02\x82\x01.",
    "a known class with another state": b"ctorch\nfloat32\n}b.",
    "a class that is changed": b"\x80\x02ccollections\nOrderedDict\n}b.",
    "attributes that are set one by one": b"\x80\x02ccollections\nOrderedDict\n)\x81N}X\x01\x00\x00\x00aK\x01s\x86b.",
    "a value that is called": b"\x80\x02ctorch\nFloatStorage\n)R.",
    "nothing": b"",
    "half of it": b"\x80\x02}(",
}


@pytest.mark.parametrize("trick", BROKEN)
def test_what_cannot_be_read_is_an_exception(trick):
    """Of which a run makes one line: it does not load."""
    ZERO.write_bytes(archive(BROKEN[trick]))
    with pytest.raises(Exception) as raised:
        pickles.check(CHECKPOINT)
    assert not isinstance(raised.value, MemoryError) and not RAN.exists()


def test_an_extension_that_python_knows_is_a_name_like_others(monkeypatch):
    copyreg.add_extension("io", "open", 240)
    try:
        ZERO.write_bytes(archive(b"\x80\x02\x82\xf0(" + RUN + b"tR."))
        assert "io.open" in refusal()
    finally:
        copyreg.remove_extension("io", "open", 240)


def test_of_two_pickles_in_an_archive_the_one_that_torch_reads_is_checked():
    good = pickle.dumps({}, 2)
    bad = OPCODES["GLOBAL"]
    for data in ((good, bad), (bad, good)):
        RAN.unlink(missing_ok=True)
        with pytest.warns(UserWarning, match="Duplicate name"):
            ZERO.write_bytes(archive(data, ("data.pkl", "data.pkl")))
        try:
            pickles.check(CHECKPOINT)
            passed = True
        except UserError:
            passed = False
        assert not RAN.exists()
        torch.load(ZERO, weights_only=False)
        assert passed == (not RAN.exists())


def test_a_second_pickle_of_a_file_is_never_reached():
    write_metadata((FSDP / ".metadata").read_bytes() + pickle.dumps(Payload()))
    pickles.check(CHECKPOINT)
    FileSystemReader(FSDP).read_metadata()
    assert not RAN.exists()


def test_what_is_no_archive_of_torch_save_is_refused():
    torch.save({}, ZERO, _use_new_zipfile_serialization=False)  # which has four pickles
    assert "checkpoint_serialization" in refusal()
    ZERO.write_bytes(archive([pickle.dumps({}, 2)] * 2, ("data.pkl", "constants.pkl")))  # TorchScript's
    assert "TorchScript" in refusal()


@pytest.mark.parametrize("name", ["latest", "latest_universal"])
@pytest.mark.parametrize("tag", ["../elsewhere", "{absolute}", "..", "", ".", "global_step2/..", "global_step*"])
def test_a_tag_that_leaves_the_checkpoint_is_refused(name, tag):
    plant(Path(shutil.copytree(ZERO.parent, "run/elsewhere"), ZERO.name))
    (CHECKPOINT / name).write_text(tag.format(absolute=Path("run/elsewhere").absolute()))
    assert f"checkpoint-2/{name} names" in refusal()


def test_each_file_of_a_universal_checkpoint_is_read():
    (CHECKPOINT / "latest_universal").write_text("global_step2_universal\n")
    folder = CHECKPOINT / "global_step2_universal/zero/w"
    folder.mkdir(parents=True)
    torch.save({"param": torch.ones(2)}, folder / "fp32.pt")
    pickles.check(CHECKPOINT)
    plant(folder / "exp_avg.pt")
    assert "exp_avg.pt names" in refusal()
    shutil.move(folder, "run/elsewhere")
    folder.symlink_to(Path("run/elsewhere").absolute())
    assert "is a link" in refusal()


def other(**changes):
    """The metadata with another place of one item."""
    found = metadata()
    place = found.storage_data[ITEM]
    for key, value in changes.items():
        setattr(place, key, value)
    return found


class Disguised(_StorageInfo):
    """Reduced to a call of the real class, whose arguments an unpickler of placeholders does not see."""

    def __reduce__(self):
        state = {"relative_path": self.relative_path, "offset": self.offset, "length": self.length}
        return _StorageInfo, ("x", 0, 1, ["zstd"]), state


def disguised():
    found = metadata()
    place = found.storage_data[ITEM]
    found.storage_data[ITEM] = Disguised(place.relative_path, place.offset, place.length)
    return found


@pytest.mark.parametrize(
    "found",
    [
        lambda: other(relative_path="../__0_0.distcp"),
        lambda: other(relative_path=str(Path("run/__0_0.distcp").absolute())),
        lambda: other(relative_path=".."),
        lambda: other(relative_path=Path("__0_0.distcp")),
        lambda: other(offset=-1),
        lambda: other(length=2.5),
        lambda: other(transform_descriptors=["zstd"]),
        disguised,
        lambda: Metadata({}, storage_data=None),
        lambda: Metadata({}, storage_data=[1]),
        lambda: Metadata({}, storage_data={ITEM: MetadataIndex("x")}),
        lambda: {"storage_data": {}},
    ],
)
def test_metadata_whose_items_cannot_be_found_are_refused(found):
    write_metadata(found())
    assert ".metadata" in refusal()


def test_an_item_counts_as_a_tensor_only_if_the_library_must_read_it_as_one():
    """An index without an offset is what it looks up for everything else."""
    found = metadata()
    tensors = [index for index in found.storage_data if index.offset is not None]
    assert tensors and all(isinstance(index.offset, torch.Size) for index in tensors)
    for index in (ITEM, *tensors):
        place = found.storage_data[index]
        with (FSDP / place.relative_path).open("r+b") as file:
            file.seek(place.offset)
            file.write(b"x" * 4)  # no archive any more
        if index == ITEM:
            assert "__0_0.distcp" in refusal()
            write_metadata(metadata())
            del found.storage_data[ITEM]
            write_metadata(found)
    pickles.check(CHECKPOINT)


def test_no_data_of_tensors_are_read():
    torch.save({"w": torch.ones(1_000_000)}, ZERO)
    read = 0

    class Counting(io.FileIO):
        def readinto(self, buffer):
            nonlocal read
            read += (count := super().readinto(buffer))
            return count

    with Counting(ZERO) as file:
        pickles._read_archive(file, ZERO)
    assert 0 < read < 100_000 < os.path.getsize(ZERO)
