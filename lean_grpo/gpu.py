"""torch's switches for everything that this process computes on a GPU."""

import torch


def prepare(tf32: bool | None = None) -> None:
    """Turn off cuDNN's attention (NaN gradients under a mask, pytorch#196678), and let float32 products use TF32.

    vLLM's worker sets the precision in the process that it shares with a trainer, so call this again after it.

    Args:
        tf32: None leaves the precision as it is.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)
    if tf32 is not None:
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
