"""CUDA graphs without a GPU: a recording of operations with the tensors that they read and write."""

import contextlib
from types import SimpleNamespace

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lean_grpo import models


def tensors(tree):
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


class FakeGraph(TorchDispatchMode):
    """Records what is computed and takes it back; replays it on the same tensors, with the same Python numbers.

    As of CUDA's, nothing of a recording is computed until it is replayed, and addresses must not change.
    """

    recorded = replayed = 0  # of all graphs
    recording = False

    def __init__(self):
        super().__init__()
        self.calls, self.addresses, self.before, self.made = [], {}, {}, set()
        self.random_state = torch.get_rng_state()

    @classmethod
    def ignore_compile_internals(cls):
        """Let compiled functions run under this mode; it records what they compute."""
        return True

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        inputs = tensors((args, kwargs))
        self.addresses |= {id(tensor): (tensor, tensor.data_ptr()) for tensor in inputs}
        for place, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write and place < len(args):
                key = args[place].untyped_storage().data_ptr()
                if key not in self.made and key not in self.before:
                    self.before[key] = args[place], args[place].clone()
        out = func(*args, **kwargs)
        alive = {tensor.untyped_storage().data_ptr() for tensor in inputs}
        new = [tensor for tensor in tensors(out) if tensor.untyped_storage().data_ptr() not in alive]
        self.made |= {tensor.untyped_storage().data_ptr() for tensor in new}
        self.calls.append((func, args, kwargs, out))
        return out

    def end(self):
        """Take back what was computed."""
        FakeGraph.recorded += 1
        for tensor, value in self.before.values():
            tensor.copy_(value)
        torch.set_rng_state(self.random_state)

    def replay(self):
        FakeGraph.replayed += 1
        moved = [tensor.shape for tensor, address in self.addresses.values() if tensor.data_ptr() != address]
        assert not moved, f"tensors of a graph have moved: {moved}"
        for func, args, kwargs, out in self.calls:
            if not func.is_view:
                for old, value in zip(tensors(out), tensors(func(*args, **kwargs)), strict=True):
                    if old is not value:
                        old.copy_(value)


@contextlib.contextmanager
def record(graph, **given):
    FakeGraph.recording = True
    try:
        with graph:
            yield
    finally:
        FakeGraph.recording = False
        graph.end()


def on_a_fake_gpu(monkeypatch):
    """Sample as on a GPU, though on the CPU. Return FakeGraph, which counts."""
    FakeGraph.recorded = FakeGraph.replayed = 0
    stream = SimpleNamespace(wait_stream=lambda other: None)
    stand_ins = {
        "CUDAGraph": FakeGraph, "graph": record, "graph_pool_handle": lambda: (0, 0), "Stream": lambda: stream,
        "stream": lambda stream: contextlib.nullcontext(), "current_stream": lambda: stream, "default_generators": (),
    }  # fmt: skip
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(models, "on_gpu", lambda model: True)
    return FakeGraph
