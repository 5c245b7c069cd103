"""The settings of this project, beside those of TRL's GRPOConfig and ModelConfig."""

from dataclasses import dataclass, field
from typing import Any

from . import UserError, strict


@dataclass
class ScriptArguments:
    """What stands in HYPERPARAMETERS has its value there; a default here means that the setting is off."""

    # Data
    dataset_name: str = field(
        metadata={"help": "A Hub id, a .jsonl, .csv or .parquet file, or a directory written by save_to_disk."}
    )
    dataset_split: str = field(metadata={"help": "Training split; slices allowed: train[:1000], train[:10%%]."})
    eval_split: str = field(metadata={"help": "Split of held-out questions; cut from training rows if there is none."})
    question_column: str = field(metadata={"help": "The column that holds the question."})
    answer_column: str = field(
        metadata={"help": "The column of gold answers: `... #### 72`, or 72 alone, as text or a number."}
    )
    num_shots: int = field(metadata={"help": "Worked examples before each question (0 ... 3)."})
    prompt_format: str = field(metadata={"help": "How questions are asked and answered: xml or think."})
    reward_funcs: list[str] = field(
        metadata={"help": "Names from rewards.REWARD_FUNCS, or my_file.my_function with allow_custom_rewards."}
    )
    packed: bool = field(
        metadata={"help": "The training step without padding: the same gradient in less time; false: TRL's own step."}
    )
    generation: str = field(
        metadata={
            "help": "How completions are sampled: lean (a batch that shrinks as they end), hf (TRL's model.generate), "
            "compiled (the same on a static cache), continuous (transformers' batching), vllm; auto: lean on a CPU, "
            "hf on a GPU."
        },
    )
    dataset_config: str | None = field(default=None, metadata={"help": "Configuration of a Hub dataset."})
    eval_dataset_name: str | None = field(
        default=None, metadata={"help": "Where the held-out questions come from; unset: from dataset_name."}
    )
    max_samples: int | None = field(default=None, metadata={"help": "Use only this many training rows (>= 1)."})
    eval_samples: int | None = field(default=None, metadata={"help": "Evaluate on at most this many questions."})
    eval_num_samples: int = field(
        default=1, metadata={"help": "Above 1: so many samples of each held-out question too, for maj@k and pass@k."}
    )
    max_prompt_length: int | None = field(
        default=None, metadata={"help": "Tokens; training rows with longer prompts are dropped, never cut."}
    )
    filter_pass_rate: list[float] | None = field(
        default=None,
        metadata={
            "help": "Lowest and highest share of right samples (0.1 0.9) of a question that is trained on; they are "
            "drawn once, before training."
        },
    )
    filter_num_samples: int = field(default=8, metadata={"help": "Samples of each question for that share."})
    curriculum: bool = field(default=False, metadata={"help": "Train on questions in the order of that share."})
    # Prompt
    system_prompt: str | None = field(default=None, metadata={"help": "In the place of the format's own."})
    question_template: str | None = field(
        default=None, metadata={"help": "What is asked, with {question}, in the place of the format's own."}
    )
    completion_template: str | None = field(
        default=None,
        metadata={"help": "A perfect completion, with {reasoning} and <answer>{answer}</answer>, likewise."},
    )
    use_chat_template: bool | None = field(
        default=None, metadata={"help": "Prompts as chat messages or plain text; unset: as the tokenizer can."}
    )
    # Rewards
    reward_args: dict[str, Any] | str | None = field(
        default=None, metadata={"help": 'Parameters of rewards: {"length_reward_func": {"low": 50}}.'}
    )
    allow_custom_rewards: bool = field(
        default=False, metadata={"help": "Let reward_funcs name functions of your own files, whose code is then run."}
    )
    max_faulty_rewards: float = field(
        default=0.1,
        metadata={
            "help": "Share of a rollout's completions on which rewards may fail (raise, NaN, infinity); they are left "
            "out; above it the run ends (status 3)."
        },
    )
    stages: list[dict[str, Any]] | None = field(
        default=None,
        metadata={
            "help": "Stages of training: for each a mapping (JSON) of name, reward_funcs, reward_weights, max_steps."
        },
    )
    adaptive_rewards: list[str] | None = field(
        default=None,
        metadata={
            "help": "Rewards whose weight follows their success: after a rollout in which fewer than 30 %% of the "
            "completions earn it × 1.2, more than 80 %% × 0.9; `all` for every one."
        },
    )
    adaptive_threshold: float = field(default=0.0, metadata={"help": "A reward above this is a success."})
    adaptive_bounds: list[float] = field(
        default_factory=lambda: [0.25, 4.0],
        metadata={"help": "Smallest and largest multiple of its own weight that a reward may come to weigh."},
    )
    # The training step
    pack_tokens: int | None = field(
        default=None,
        metadata={
            "help": "Tokens a training step computes at once, at most; unset: 2048 on a CPU, 4096 to 8192 on a GPU"
        },
    )
    # The run
    overwrite_run: bool = field(default=False, metadata={"help": "Write into an output_dir that already holds a run."})
    stop_on_alarm: bool = field(
        default=False, metadata={"help": "End at the first alarm, with a checkpoint (status 3)."}
    )
    use_unsloth: bool = field(
        default=False, metadata={"help": "Load and train through Unsloth, on one GPU (requirements-unsloth.txt)."}
    )
    merge_lora: bool = field(
        default=False, metadata={"help": "After training, save the adapter merged into its model, in merged/."}
    )
    # Instead of a run
    dry_run: bool = field(default=False, metadata={"help": "Stop after preflight: nothing is trained or written."})
    eval_only: bool = field(default=False, metadata={"help": "Evaluate model_name_or_path, without training."})
    ask: str | None = field(default=None, metadata={"help": "Ask model_name_or_path one question, as its run did."})
    merge_only: str | None = field(
        default=None, metadata={"help": "Merge the adapter in this directory into its model, and stop."}
    )

    def __post_init__(self) -> None:
        if isinstance(self.reward_args, str):
            try:
                self.reward_args = strict.from_json(self.reward_args)
            except ValueError as error:
                raise UserError(
                    f"reward_args: {self.reward_args!r} is no mapping ({error}); write "
                    '{"reward": {"parameter": 1}}'
                ) from None
        if not isinstance(self.reward_args, dict | None):
            raise UserError(f'reward_args: {self.reward_args!r} is no mapping; write {{"reward": {{"parameter": 1}}}}')
