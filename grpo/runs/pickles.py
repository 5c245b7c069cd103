"""Read the pickles of a sharded checkpoint without running anything, before DeepSpeed and FSDP2 load it.

Both unpickle what lies there without restriction, and a pickle can name any function and call it. Here, an unpickler
that knows the few names which they write builds placeholders from the same bytes, found as their libraries find them.
Any other name is refused. All other pickles of a checkpoint are read by torch's restricted unpickler.
"""

import io
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import torch

from grpo.core.errors import UserError
from grpo.core.text import shorten


class _Refused(Exception):
    """A file, and why it is not read any further."""


class _Built:
    """A placeholder of an object. Subclasses are placeholders of the classes and functions that build one.

    It takes a state as Python's own objects do, into `vars`.

    Attributes:
        given: True if it was built from arguments, which a placeholder does not read.
    """

    __slots__ = ("__dict__", "given")
    given: bool

    def __new__(cls, *args: Any, **kwargs: Any) -> "_Built":
        self = super().__new__(cls)
        self.given = bool(args or kwargs)
        return self

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            self.__dict__.update(state)
        elif isinstance(state, tuple) and len(state) == 2:  # would set attributes one by one, `__class__`, too
            raise TypeError("it sets attributes as if it had slots")

    def __setitem__(self, key: Any, value: Any) -> None:
        """Take an entry of an OrderedDict."""


class _Value:
    """A placeholder of what is neither called nor changed: a dtype, a storage, a class as an argument."""

    __slots__ = ()


def _builders(module: str, *names: str) -> dict[tuple[str, str], Any]:
    return {(module, name): type(name, (_Built,), {"__slots__": ()}) for name in names}


def _values(module: str, *names: str) -> dict[tuple[str, str], Any]:
    return {(module, name): _Value() for name in names}


# What the libraries write, by the name under which a pickle finds it. Each builds data from whatever it is given: it
# opens, imports and evaluates nothing, and returns no class or function. Seen in checkpoints of torch 2.13, accelerate
# 1.15 and DeepSpeed 0.19, or read in their sources where a setting needs a GPU

DTYPES = _values("torch", *(name for name, value in vars(torch).items() if isinstance(value, torch.dtype)))

# `.metadata`: torch/distributed/checkpoint/metadata.py and filesystem.py; its checkpoint_id is a path
METADATA = DTYPES | {
    **_builders("torch", "Size"),
    **_builders("torch.serialization", "_get_layout"),
    **_builders(
        "torch.distributed.checkpoint.metadata",
        *("Metadata", "MetadataIndex", "StorageMeta", "BytesStorageMetadata", "ChunkStorageMetadata"),
        *("TensorStorageMetadata", "TensorProperties", "_MEM_FORMAT_ENCODING"),
    ),
    **_builders("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    **_builders("pathlib", "PosixPath"),
    **_builders("pathlib._local", "PosixPath"),  # of Python 3.13
}

# Archives of torch.save: items of `*.distcp`, and DeepSpeed's `*.pt`
ARCHIVES = DTYPES | {
    # tensors: torch/_utils.py, torch/_tensor.py; FP32 partitions of ZeRO-3 have attributes
    **_values("torch", "Tensor", *(name for name in vars(torch) if re.fullmatch("[A-Z][A-Za-z0-9]*Storage", name))),
    **_values("torch.storage", "UntypedStorage"),
    **_values("torch.nn.parameter", "Parameter"),
    **_builders("torch._utils", "_rebuild_tensor_v2", "_rebuild_tensor_v3"),
    **_builders("torch._utils", "_rebuild_parameter", "_rebuild_parameter_with_state"),
    **_builders("torch._tensor", "_rebuild_from_type_v2"),
    **_builders("torch", "Size"),
    **_builders("collections", "OrderedDict"),
    # ZeRO: state_dict() of deepspeed/runtime/zero/stage*.py and bf16_optimizer.py; fp16 has a dynamic scale
    **_builders("deepspeed.runtime.fp16.loss_scaler", "LossScaler", "DynamicLossScaler"),
    **_builders("deepspeed.runtime.zero.config", "ZeroStageEnum"),
    **_builders("deepspeed.utils.tensor_fragment", "fragment_address"),
}


class _Reader(pickle.Unpickler):
    """Unpickle placeholders of known names; refuse any other."""

    def __init__(self, data: bytes, known: dict[tuple[str, str], Any], file: Path) -> None:
        super().__init__(io.BytesIO(data), encoding="utf-8")  # as torch.load
        self.known, self.file = known, file

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.known:
            found = shorten(f"{module}.{name}", 100)
            raise _Refused(f"{self.file} names {found}, which is not known as data of DeepSpeed or FSDP2")
        return self.known[module, name]

    def persistent_load(self, pid: Any) -> Any:
        return _Value()  # a tensor's data


def check(checkpoint: Path) -> None:
    """Refuse a checkpoint from which DeepSpeed or FSDP2 would unpickle anything but data. No tensor's data is read.

    Raises:
        UserError: one of its pickles names something else, or its library would read files elsewhere.
        Exception: a file is broken.
    """
    try:
        for file in _files_of_deepspeed(checkpoint):
            with file.open("rb") as stream:
                _read_archive(stream, file)
        for file in sorted(checkpoint.glob("*/*.metadata")):  # and `__N.metadata`, which replace a broken one
            _read_distributed(file)
    except _Refused as refused:
        weights = any(checkpoint.glob("*.safetensors"))
        remedy = (
            f"start a new run from its weights (--model_name_or_path {checkpoint})" if weights else "start a new run"
        )
        raise UserError(f"resume_from_checkpoint: {refused}; none of it was run; {remedy}") from None


def _read_archive(stream: IO[bytes], file: Path) -> None:
    """Read the pickle of an archive of torch.save by torch's own reader, so that it is the one which torch.load reads.

    Args:
        file: for messages.
    """
    start = stream.read(4)
    stream.seek(0)
    if start != b"PK\x03\x04":  # torch.load would take it for another format, with several pickles
        raise _Refused(f"{file} is not a zip archive (if it is yours, DeepSpeed's checkpoint_serialization was false)")
    archive = torch._C.PyTorchFileReader(stream)
    if "constants.pkl" in archive.get_all_records():
        raise _Refused(f"{file} is TorchScript, which is code")
    _Reader(archive.get_record("data.pkl"), ARCHIVES, file).load()


def _files_of_deepspeed(checkpoint: Path) -> Iterator[Path]:
    """Yield the archives in the directories that DeepSpeed's tags name."""
    for name in ("latest", "latest_universal"):
        if not (path := checkpoint / name).exists():
            continue
        tag = path.read_text().strip()
        if not re.fullmatch(r"global_step\d+(_universal)?", tag):
            raise _Refused(f"{path} names {shorten(tag, 100)!r}, which is not a directory of DeepSpeed's")
        for file in sorted((checkpoint / tag).rglob("*")):
            if file.is_symlink() and file.is_dir():  # its files would not be listed
                raise _Refused(f"{file} is a link to a directory")
            if file.suffix == ".pt":
                yield file


def _read_distributed(file: Path) -> None:
    """Read the metadata of torch.distributed.checkpoint, and the items that it unpickles: all but tensors."""
    metadata = _Reader(file.read_bytes(), METADATA, file).load()
    items = vars(metadata).get("storage_data") if _is(metadata, "Metadata") else None
    if type(items) is not dict:
        raise _Refused(f"{file} does not say where its data are")
    for index, item in items.items():
        place = vars(item) if _is(item, "_StorageInfo") and not item.given else {}
        name, offset, length = (place.get(key) for key in ("relative_path", "offset", "length"))
        if not (type(name) is str and type(offset) is int and type(length) is int and min(offset, length) >= 0):
            raise _Refused(f"{file} does not say where its data are")
        if Path(name).name != name or name == ".." or place.get("transform_descriptors"):
            raise _Refused(f"{file} names {shorten(name, 100)!r}, which is not a file beside it, as FSDP2 writes them")
        if _is(index, "MetadataIndex") and _is(vars(index).get("offset"), "Size"):
            continue  # a tensor, which the library reads by torch's restricted unpickler
        with (file.parent / name).open("rb") as stream:
            stream.seek(offset)
            _read_archive(io.BytesIO(stream.read(length)), file.parent / name)


def _is(placeholder: Any, name: str) -> bool:
    """True if this is a placeholder of a class of `.metadata`."""
    return type(placeholder).__name__ == name and isinstance(placeholder, _Built)
