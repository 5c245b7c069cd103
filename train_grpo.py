"""Teach a small language model to reason on GSM8K with GRPO, and measure what it learned.

    python train_grpo.py                                  Qwen2.5-1.5B-Instruct on one CUDA GPU
    torchrun --nproc_per_node=4 train_grpo.py             the same on four
    python train_grpo.py --config recipes/demo.yaml       a tiny model on a laptop's CPU, in under a minute
    python train_grpo.py --dry_run true                   check everything that can be checked, and stop
    python train_grpo.py --ask "Lea has 6 boxes with 8 pens in each. How many pens does Lea have?"

The policy samples a group of completions for each prompt, five rewards score them, and each completion's advantage
is its reward relative to its group. TRL's `GRPOTrainer` trains; this file is the experiment: the settings, the prompt,
the data, the model and the order of events. Edit HYPERPARAMETERS, or override any of them, and any other setting of
TRL's GRPOConfig and ModelConfig, by a recipe (`--config`) and by flags (`--learning_rate 1e-5`).

Where this differs from TRL's defaults, and why:
- optim stable_adamw: at learning rate 5e-6 plain AdamW rounds 99 % of its progress away on bf16 weights; see below.
- adam_beta2 0.99, weight_decay 0.1, max_grad_norm 0.1, groups of 16: the values of the 2025 GRPO demo by W. Brown.
- prompts that are too long are dropped and counted, where TRL would train on them whatever their length.

The loss starts near 0 and stays there: on-policy, its value says nothing. Watch the rewards.
"""

import sys
from typing import TYPE_CHECKING, Any

from grpo.config import help
from grpo.core import ending
from grpo.core.errors import UserError
from grpo.core.processes import say
from grpo.core.settings import IN_MEMORY
from grpo.data.prompts import THINK, PromptFormat
from grpo.policy import unsloth
from rewards import GIST_REWARDS, XML_COT_FORMAT

if TYPE_CHECKING:
    from grpo.core.settings import Config

# ------------------------------------------------------------------------------------------------------------------
# Edit here. Names are those of GRPOConfig, ModelConfig (TRL) and ScriptArguments (grpo/core/settings.py).

HYPERPARAMETERS: dict[str, Any] = dict(
    # Model
    model_name_or_path="Qwen/Qwen2.5-1.5B-Instruct",  # a Hub id, a local directory, or a saved run to train further
    dtype="bfloat16",  # of the weights; float32 takes twice the memory and any optimizer
    attn_implementation="sdpa",  # packs: torch's own FlashAttention; or flash_attention_2, flex_attention, eager
    use_peft=False,  # true trains a LoRA adapter of the size below instead of all weights
    lora_r=16,
    lora_alpha=64,
    lora_dropout=0.05,
    lora_target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj", "gate_proj"],
    # Data
    dataset_name="openai/gsm8k",  # Hub ids, .jsonl, .json, .csv or .parquet files, save_to_disk directories
    dataset_config="main",  # Hub data sets only
    dataset_split="train",  # slices: train[:1000], train[:10%]
    eval_dataset_name=None,  # None: from dataset_name
    eval_split="test",  # where the source has none, a tenth of the training rows (at most eval_samples) is held out
    eval_samples=200,  # held-out questions, answered before and after training; None: all
    eval_every=None,  # optimizer steps after which they are answered while it trains, too
    eval_num_samples=1,  # above 1: so many samples of each besides, for maj@k and pass@k
    question_column="question",  # text, or lists of messages; `prompt` is read where there is no `question`
    answer_column="answer",  # the gold answer follows `####`, or is all that the column holds
    max_samples=None,  # train on so many rows only; 20 makes a smoke test
    # Prompt
    prompt_format="xml",  # or think, or one of your own: PROMPT_FORMATS below
    answer_pattern="xml",  # where the answer is: <answer>, or boxed, hash (####), final (Answer: ...), or a template
    num_shots=0,  # worked examples in each prompt; 1 helps models that never show the format by themselves
    max_prompt_length=256,  # tokens; longer training prompts are dropped
    # Rewards
    reward_funcs=GIST_REWARDS,  # the five of the 2025 GRPO demo; rewards.py has more
    reward_weights=None,  # one for each; None: all 1
    judge=None,  # what is right: my_file.my_function(text, row); None: the gold answer, however it is written
    # GRPO
    num_generations=16,  # completions per prompt: the group that advantages are relative to
    max_completion_length=786,  # tokens; longer completions are cut off and rarely earn anything
    temperature=1.0,
    generation="auto",  # what samples: on a GPU vLLM where it is installed, otherwise lean; or hf
    beta=0.0,  # weight of the KL penalty; 0 needs no reference model (2025's default was 0.04)
    # Optimization
    per_device_train_batch_size=16,  # completions (2025's TRL counted prompts: 1 / 4 / 16 then is 16 / 4 / 16 now)
    gradient_accumulation_steps=4,  # 16 * 4 = 64 completions per optimizer step and GPU
    gradient_checkpointing=True,  # half the memory; False: a quarter faster where the memory allows
    packed=True,  # the training step without padding, the same gradient in less time; false: TRL's own step
    learning_rate=5e-6,  # of all weights; an adapter (use_peft) wants about ten times as much
    lr_scheduler_type="cosine",
    warmup_steps=0.1,  # below 1: a share of all steps
    adam_beta1=0.9,
    adam_beta2=0.99,
    weight_decay=0.1,  # of float32 weights and adapters; times 5e-6 it is below what a bf16 weight can show
    max_grad_norm=0.1,
    # A step of 5e-6 is below half the spacing of bf16 weights of usual size, so AdamW's updates round to nothing: they
    # take bf16 weights 1 % as far as float32 ones (benchmarks/bf16_updates.py). This AdamW carries the rounding errors
    # along, for 2 bytes a weight: nine tenths as far, from the first step. It also clips large updates.
    optim="stable_adamw",
    num_train_epochs=1,
    bf16=True,
    per_device_eval_batch_size=64,  # questions at once in the evaluation before and after
    seed=42,
    # Logging
    output_dir=None,  # None: outputs/<Model>-<size>-GRPO
    run_name=None,  # None: <Model>-<size>-GRPO-<data>
    report_to="wandb",  # none, wandb, tensorboard, swanlab, trackio; offline where W&B is not logged in
    logging_steps=1,
    log_on_each_node=False,
    log_completions=True,  # show sampled completions, some ten times a run
    num_completions_to_print=2,
    stop_on_alarm=False,  # true ends the run at its first alarm, with a checkpoint
    save_steps=100,
    save_total_limit=2,  # a checkpoint holds weights and optimizer state: 12 GB for 1.5B
)

# ------------------------------------------------------------------------------------------------------------------
# The prompt

SYSTEM_PROMPT = """
Respond in the following format:
<reasoning>
...
</reasoning>
<answer>
...
</answer>
"""

PROMPT_FORMATS = {  # a model without a chat template gets the opening and the question as one text
    "xml": PromptFormat(system=SYSTEM_PROMPT, question="{question}", completion=XML_COT_FORMAT, opening=SYSTEM_PROMPT),
    "think": THINK,
}

EXEMPLARS = [  # num_shots takes the first so many: (question, reasoning, answer); a recipe may list its own
    (
        "What is the largest single-digit prime number?",
        "The single-digit numbers from the top are 9, 8 and 7. 9 is divisible by 3 and 8 by 2, but 7 is prime.",
        "7",
    ),
    (
        "A bakery packs 6 rolls into each bag. It fills 8 bags and keeps 5 rolls. How many rolls did it bake?",
        "The bags hold 6 * 8 = 48 rolls. With the rolls it keeps, that is 48 + 5 = 53.",
        "53",
    ),
    (
        "Lea has $40. She buys 3 tickets for $9 each. How many dollars does she have left?",
        "The tickets cost 3 * 9 = 27 dollars. She has 40 - 27 = 13 dollars left.",
        "13",
    ),
]


# ------------------------------------------------------------------------------------------------------------------
# The experiment


def experiment(config: "Config", rows: Any = None) -> int:
    """Data, rewards, trainer, train; the exit status. `rows` as `dataset` in `main`."""
    # What is heavy is imported here, so that --help and mistakes answer in seconds
    from grpo.data import prompts
    from grpo.evaluation import inference

    # 1. The task: rows become prompts, and rewards say what a completion is worth
    prompt_format = prompts.choose(PROMPT_FORMATS, config.script)
    exemplars = prompts.exemplars(config.script, EXEMPLARS)
    if config.script.ask or config.script.merge_only:  # a saved run is used, and none begins
        return inference.use_saved(config, prompt_format, exemplars)

    from grpo.config import preflight
    from grpo.data import dataset
    from grpo.policy import loading
    from grpo.rewarding import registry

    reward_funcs, judge = registry.of_run(config, prompt_format)
    architecture = loading.read_configs(config)
    tokenizer, prompt_format = loading.load_tokenizer(config, prompt_format)
    needs_gold = registry.needing_gold(config, reward_funcs, judge)
    data = dataset.build(config, tokenizer, prompt_format, exemplars, rows, needs_gold)  # no question is in both parts
    preflight.run(config, tokenizer, architecture, data, reward_funcs, judge)  # prints the table, raises at an error
    if config.script.dry_run:
        return 0

    from grpo.evaluation import before_after, curve
    from grpo.runs.run import open_run

    if config.script.eval_only:
        return before_after.measure_alone(config, tokenizer, data, judge, reward_funcs)

    from grpo.training.setup import make_trainer

    with open_run(config) as run:  # its directory, lock, signals, readable errors, and how it ends
        # 2. The policy, and the trainer: TRL's GRPOTrainer, with the same gradient for less work
        policy = loading.load(config)
        trainer = make_trainer(
            config,
            run,
            judge,
            data.prompt_format.prefill,
            model=policy,
            reward_funcs=list(reward_funcs.values()),
            train_dataset=data.train,
            eval_dataset=data.held_out,
            processing_class=tokenizer,
        )
        run.begin(**data.facts())
        before = before_after.measure_before(config, trainer, tokenizer, data, judge)
        accuracy = curve.follow(config, run, trainer, tokenizer, data, before)  # eval_every, if set
        # 3. Training. One optimizer step:
        #      sample num_generations completions of each prompt    grpo/policy/generation.py
        #      score each with every reward                         rewards.py
        #      advantage = (reward - group mean) / group std        TRL
        #      loss = -mean(advantage * ratio) + beta * KL          TRL
        #      backward in packs without padding, same gradient     grpo/training/trainer.py, packing.py
        say("Training (a loss near 0 is normal: watch the rewards)")
        trainer.train(resume_from_checkpoint=config.training.resume_from_checkpoint)
        # 4. What was learned: the same held-out questions again
        if not run.stopped:
            trainer.save_model(_internal_call=True)  # otherwise push_to_hub would upload a run without its report
            before_after.measure_after(config, trainer, tokenizer, data, judge, before, accuracy)
        run.end()
        if not run.stopped:
            inference.share(config, trainer)  # merge_lora and push_to_hub, if they are set
    return run.exit_status


def main(argv: list[str] | None = None, dataset: Any = None) -> int:
    """Run the experiment; the user's mistakes end in one line and exit status 2, Ctrl-C in one and 130.

    Args:
        argv: the command line without the program's name; None reads sys.argv.
        dataset: a pandas DataFrame or a Dataset, which replaces `dataset_name`.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    typed = [word for word in words if word.partition("=")[0] == "--dataset_name"]
    words += [] if dataset is None else ["--dataset_name", IN_MEMORY]

    def run() -> int:
        if typed and dataset is not None:
            raise UserError(
                "dataset_name: it would not be read beside `dataset`, the rows in memory; drop one of them"
            )
        if help.answer_at_once(words):
            return 0
        unsloth.import_if_asked(HYPERPARAMETERS, words)  # before anything imports what it patches
        from grpo.config.resolve import configure

        return experiment(configure(HYPERPARAMETERS, words), dataset)

    return ending.status_of(run)


if __name__ == "__main__":
    sys.exit(main())
