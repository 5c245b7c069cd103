"""The phases of a run: its trainer names them, and a full device, a signal and a failure ask for the current one."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Phase:
    """A part of a run's work.

    Attributes:
        name: for messages: out of memory in …
        needs_less: settings with which it needs less memory.
        repeated: what a signal while training gives up, since a resumed run repeats it; "" if it is finished.
    """

    name: str
    needs_less: str
    repeated: str = ""


LOADING = Phase("loading", "a smaller model, load_in_4bit with use_peft, or a smaller vllm_gpu_memory_utilization")
EVALUATION = Phase("the evaluation", "a smaller per_device_eval_batch_size", "this evaluation")
SAMPLING = Phase("generation", "fewer completions at once (steps_per_generation), or a smaller max_completion_length")
REWARDS = Phase("the rewards", "a smaller model in your reward")
TRAINING_STEP = Phase("the training step", "a smaller pack_tokens, gradient_checkpointing true, or use_peft true")
OPTIMIZER_STEP = Phase("the optimizer step", "use_peft true, or optim adamw_bnb_8bit")
READING = Phase("reading the checkpoint", OPTIMIZER_STEP.needs_less)  # of its optimizer's state
SAVING = Phase("saving the checkpoint", "use_peft true")
