"""Runs a script with FSDP2 or DeepSpeed on CPUs, which Accelerate refuses: sharded_on_cpu.py SCRIPT ARGUMENTS.

Accelerate takes its variables (ACCELERATE_USE_FSDP, …) for granted on GPUs only, and trains with DDP on CPUs, without
a word. Nothing else is changed: sharding, gathering and saving are the libraries' own.
"""

import importlib
import os
import runpy
import sys
from typing import Any

from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType

_stock_partial, _stock = PartialState.__init__, AcceleratorState.__init__


def _init_partial(self: PartialState, *args: Any, **kwargs: Any) -> None:
    _stock_partial(self, *args, **kwargs)
    if os.environ.get("ACCELERATE_USE_DEEPSPEED") == "true":
        import deepspeed

        backend: Any = importlib.import_module("deepspeed.comm.torch")
        backend.build_shm_op = lambda: None  # for CPUs alone, and compiling it takes a minute
        deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False)


def _init(
    self: AcceleratorState, *args: Any, fsdp_plugin: Any = None, deepspeed_plugin: Any = None, **kwargs: Any
) -> None:
    _stock(self, *args, fsdp_plugin=fsdp_plugin, deepspeed_plugin=deepspeed_plugin, **kwargs)
    if self.distributed_type != DistributedType.MULTI_CPU or not (fsdp_plugin or deepspeed_plugin):
        return
    if deepspeed_plugin:
        deepspeed_plugin.set_mixed_precision(self._mixed_precision)
        deepspeed_plugin.select(_from_accelerator_state=True)
        self.deepspeed_plugins, self._mixed_precision = deepspeed_plugin, "no"
        self.distributed_type = DistributedType.DEEPSPEED
    else:
        if self._mixed_precision != "no":
            fsdp_plugin.set_mixed_precision(self._mixed_precision)
        self.fsdp_plugin, self.distributed_type = fsdp_plugin, DistributedType.FSDP
    PartialState._shared_state["distributed_type"] = self.distributed_type


if __name__ == "__main__":
    os.environ["DS_ACCELERATOR"] = "cpu"
    PartialState.__init__, AcceleratorState.__init__ = _init_partial, _init
    sys.argv = sys.argv[1:]
    sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))
    runpy.run_path(sys.argv[0], run_name="__main__")
