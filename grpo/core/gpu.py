"""Switches of torch that hold for all that this process computes on a GPU."""


def prepare(tf32: bool | None = None) -> None:
    """Keep cuDNN's attention off, and let float32 matrix products use TF32, or not; may be called again.

    cuDNN comes first for sdpa on H100 and B200 since cuDNN 9.15, where it returns NaN gradients under a mask
    (pytorch#196678) and makes a plan for every new length. `set_float32_matmul_precision` sets what both of torch's
    interfaces read; after `torch.backends.fp32_precision` alone, as transformers sets it for `tf32`, the older getters
    raise. vLLM's worker sets "highest" in the process that it shares with a trainer.

    Args:
        tf32: None leaves the precision as it is.
    """
    import torch

    torch.backends.cuda.enable_cudnn_sdp(False)
    if tf32 is not None:
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
