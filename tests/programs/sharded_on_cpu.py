"""Runs a script with FSDP2 or DeepSpeed on CPUs, which Accelerate refuses: sharded_on_cpu.py SCRIPT ARGUMENTS.

Accelerate takes its variables (ACCELERATE_USE_FSDP, …) for granted on GPUs only, and trains with DDP on CPUs, without
a word. Nothing else is changed: sharding, gathering and saving are the libraries' own.
"""

import os
import runpy
import sys
from typing import Any

from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType

_stock = AcceleratorState.__init__


def _init(
    self: AcceleratorState, *args: Any, fsdp_plugin: Any = None, deepspeed_plugin: Any = None, **kwargs: Any
) -> None:
    _stock(self, *args, fsdp_plugin=fsdp_plugin, deepspeed_plugin=deepspeed_plugin, **kwargs)
    plugin = fsdp_plugin or deepspeed_plugin
    if plugin is None or self.distributed_type != DistributedType.MULTI_CPU:
        return
    if self._mixed_precision != "no" or deepspeed_plugin:
        plugin.set_mixed_precision(self._mixed_precision)
    if deepspeed_plugin:
        import deepspeed

        deepspeed.init_distributed(dist_backend="gloo")
        plugin.select(_from_accelerator_state=True)
        self.deepspeed_plugins, self._mixed_precision = plugin, "no"
        self.distributed_type = PartialState._shared_state["distributed_type"] = DistributedType.DEEPSPEED
    else:
        self.fsdp_plugin, self.distributed_type = plugin, DistributedType.FSDP


if __name__ == "__main__":
    AcceleratorState.__init__ = _init
    sys.argv = sys.argv[1:]
    sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))
    runpy.run_path(sys.argv[0], run_name="__main__")
