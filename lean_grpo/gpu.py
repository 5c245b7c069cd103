"""Set torch's switches for computing on a GPU."""

import torch


def prepare(tf32: bool | None = None) -> None:
    """Turn off cuDNN's attention (NaN gradients under masks, pytorch#196678), and allow TF32 for float32 products.

    Call this again after vLLM has started: its worker changes the precision of the process that it shares.

    Args:
        tf32: None leaves the precision as it is.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)
    if tf32 is not None:
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
