"""Runs a script with FSDP2 on CPUs, which torch can do and Accelerate refuses: sharded_on_cpu.py SCRIPT ARGUMENTS.

Accelerate takes its variables (ACCELERATE_USE_FSDP, …) for granted on GPUs only, and trains with DDP on CPUs, without
a word. Nothing else is changed: sharding, gathering and saving are torch's, Accelerate's and transformers' own.
"""

import os
import runpy
import sys
from typing import Any

from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType

_stock = AcceleratorState.__init__


def _init(self: AcceleratorState, *args: Any, fsdp_plugin: Any = None, **kwargs: Any) -> None:
    _stock(self, *args, fsdp_plugin=fsdp_plugin, **kwargs)
    plugin = fsdp_plugin or self.__dict__.get("fsdp_plugin")
    if plugin is not None and self.distributed_type == DistributedType.MULTI_CPU:
        self.distributed_type = DistributedType.FSDP
        if self._mixed_precision != "no" and "fsdp_plugin" not in self.__dict__:  # once, as on GPUs
            plugin.set_mixed_precision(self._mixed_precision)
        self.fsdp_plugin = plugin


if __name__ == "__main__":
    AcceleratorState.__init__ = _init
    sys.argv = sys.argv[1:]
    sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))
    runpy.run_path(sys.argv[0], run_name="__main__")
