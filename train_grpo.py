"""Teach a small language model to reason on GSM8K with GRPO, and measure what it learned.

    python train_grpo.py                                  Qwen2.5-1.5B-Instruct on one CUDA GPU
    torchrun --nproc_per_node=4 train_grpo.py             the same on four
    python train_grpo.py --config recipes/demo.yaml       a tiny model on a laptop's CPU, in minutes
    python train_grpo.py --dry_run true                   check everything that can be checked, and stop
    python train_grpo.py --model_name_or_path outputs/demo-GRPO --ask "What is 15 + 27?"

The policy samples a group of completions for each prompt, five rewards score them, and each completion's advantage
is its reward relative to its group. TRL's `GRPOTrainer` trains; this file is the experiment: the settings, the prompt,
the data, the model and the order of events. Edit HYPERPARAMETERS, or override any of them, and any other setting of
TRL's GRPOConfig and ModelConfig, by a recipe (`--config`) and by flags (`--learning_rate 1e-5`).

Where this differs from TRL's defaults, and why:
- optim stable_adamw: at learning rate 5e-6 plain AdamW rounds 96 % of its progress away on bf16 weights; see below.
- adam_beta2 0.99, weight_decay 0.1, max_grad_norm 0.1, groups of 16: the values of the 2025 GRPO demo by W. Brown.
- prompts that are too long are dropped and counted, where TRL would train on them whatever their length.

The loss starts near 0 and stays there: on-policy, its value says nothing. Watch the rewards.
"""

import functools
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo.core import processes
from grpo.core.errors import UserError
from grpo.core.processes import is_first_process, say
from grpo.data.prompts import THINK, PromptFormat, choose
from grpo.policy import advice, unsloth
from rewards import GIST_REWARDS, XML_COT_FORMAT

if TYPE_CHECKING:  # what is heavy is imported where it is used, so that --help and mistakes answer in seconds
    from transformers import PreTrainedTokenizerBase

    from grpo.core.settings import Config
    from grpo.data.dataset import Data
    from grpo.training.stopping import Stopping

# ------------------------------------------------------------------------------------------------------------------
# Edit here. Names are those of GRPOConfig, ModelConfig (TRL) and ScriptArguments (grpo/arguments.py).

HYPERPARAMETERS: dict[str, Any] = dict(
    # Model
    model_name_or_path="Qwen/Qwen2.5-1.5B-Instruct",  # a Hub id, a local directory, or a saved run to go on from
    dtype="bfloat16",  # of the weights; float32 takes twice the memory and any optimizer
    attn_implementation="flash_attention_2",  # sdpa where flash-attn is not installed (a line says so)
    use_peft=False,  # true trains a LoRA adapter of the size below instead of all weights
    lora_r=16,
    lora_alpha=64,
    lora_dropout=0.05,
    lora_target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj", "gate_proj"],
    # Data
    dataset_name="openai/gsm8k",  # a Hub id, a .jsonl, .csv or .parquet file, or a save_to_disk directory
    dataset_config="main",  # Hub data sets only
    dataset_split="train",  # slices: train[:1000], train[:10%]
    eval_dataset_name=None,  # None: from dataset_name
    eval_split="test",  # where the source has none, a tenth of the training rows (at most eval_samples) is held out
    eval_samples=200,  # held-out questions, answered before and after training; None: all
    eval_num_samples=1,  # above 1: so many samples of each besides, for maj@k and pass@k
    question_column="question",
    answer_column="answer",  # the gold answer follows `####`, or is all that the column holds
    max_samples=None,  # train on so many rows only; 20 makes a smoke test
    filter_pass_rate=None,  # [0.1, 0.9]: sample each question first, train on those that are right so often
    # Prompt
    prompt_format="xml",  # or think, or one of your own: PROMPT_FORMATS below
    num_shots=0,  # worked examples in each prompt; 1 helps models that never show the format by themselves
    max_prompt_length=256,  # tokens; longer training prompts are dropped
    # Rewards
    reward_funcs=GIST_REWARDS,  # the five of the 2025 GRPO demo; rewards.py has more
    reward_weights=None,  # one for each; None: all 1
    # GRPO
    num_generations=16,  # completions per prompt: the group that advantages are relative to
    max_completion_length=786,  # tokens; longer completions are cut off and rarely earn anything
    temperature=1.0,
    generation="auto",  # what samples: lean on a CPU, hf (model.generate) on a GPU; or compiled, continuous, vllm
    beta=0.0,  # weight of the KL penalty; 0 needs no reference model (2025's default was 0.04)
    # Optimization
    per_device_train_batch_size=16,  # completions (2025's TRL counted prompts: 1 / 4 / 16 then is 16 / 4 / 16 now)
    gradient_accumulation_steps=4,  # 16 * 4 = 64 completions per optimizer step and GPU
    packed=True,  # the training step without padding, the same gradient in less time; false: TRL's own step
    learning_rate=5e-6,
    lr_scheduler_type="cosine",
    warmup_steps=0.1,  # below 1: a share of all steps
    adam_beta1=0.9,
    adam_beta2=0.99,
    weight_decay=0.1,
    max_grad_norm=0.1,
    # A step of 5e-6 is below half the spacing of bf16 weights of usual size, so AdamW's updates round to nothing:
    # after 200 steps the weights have moved 4 % of what float32 weights move (benchmarks/bf16_updates.py). This AdamW
    # carries the rounding errors along (Kahan summation): 100 %, for 2 bytes a weight. It also clips large updates.
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

EXEMPLARS = [  # num_shots takes the first so many: (question, reasoning, answer)
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
# Data


def build_datasets(
    config: "Config", tokenizer: "PreTrainedTokenizerBase", style: PromptFormat, dataset: Any = None
) -> "Data":
    """Training and held-out rows, both with `prompt` and `answer`, sharing no question; `dataset` as in `main`."""
    from accelerate import PartialState

    from grpo.data import dataset as data
    from grpo.data import prompts, sources

    script = config.script
    if script.num_shots > len(EXEMPLARS):
        raise UserError(f"num_shots: {script.num_shots} is more than there are exemplars; give 0 to {len(EXEMPLARS)}")
    with PartialState().main_process_first():  # the others find the main process' download in the cache
        other = script.eval_dataset_name
        alone = script.eval_only and other  # then nothing else is needed
        name = script.dataset_name if dataset is None else dataset
        source = {} if alone else sources.load_source(name, script.dataset_config)
        eval_source = sources.load_source(other, script.dataset_config) if other else None
    tokenize = functools.partial(prompts.tokenize, tokenizer=tokenizer, kwargs=config.training.chat_template_kwargs)
    shots = EXEMPLARS[: script.num_shots]
    return data.prepare(source, eval_source, script, style, shots, tokenize, config.training.seed)


# ------------------------------------------------------------------------------------------------------------------
# The experiment


@processes.readable_errors
def run(argv: list[str] | None, dataset: Any = None) -> int:
    """Configure, check, then train or evaluate; the exit status."""
    start = time.perf_counter()
    argv = list(sys.argv[1:] if argv is None else argv)
    argv += [] if dataset is None else ["--dataset_name", "rows in memory"]
    unsloth.import_if_asked(HYPERPARAMETERS, argv)
    from grpo.config.resolve import resolve

    config = resolve(HYPERPARAMETERS, argv)  # checks everything that needs neither data nor model
    style = choose(PROMPT_FORMATS, config.script)
    if config.script.merge_only or config.script.ask:  # a saved run is used, and none begins
        return use_saved(config, style)

    from grpo.config import preflight
    from grpo.core.check import stop_at_errors
    from grpo.policy import loading
    from grpo.rewarding import registry
    from grpo.runs import directory as run_directory

    rewards = registry.of_run(config, style)
    model_config, peft_config = loading.read_configs(config)
    tokenizer, style = loading.load_tokenizer(config, style)
    data = build_datasets(config, tokenizer, style, dataset)
    checks = preflight.check(config, tokenizer, model_config, peft_config, data, rewards)
    if is_first_process():
        preflight.print_checks(checks, preflight.example(config, tokenizer, data))
    stop_at_errors(checks)
    if config.script.dry_run:
        say("Dry run: preflight found no error; nothing was trained or written")
        return 0
    if config.script.eval_only:
        return evaluate_alone(config, tokenizer, data, start)
    with run_directory.held(Path(config.training.output_dir), config.claimed):
        return train(config, tokenizer, data, rewards, start)


def use_saved(config: "Config", style: PromptFormat) -> int:
    """`--ask` a saved run or any other model, or `--merge_only` an adapter."""
    from grpo.evaluation import inference
    from grpo.policy import loading

    if config.script.merge_only:
        print(f"Saved in {inference.merge(config, config.script.merge_only)}")
        return 0
    trained = inference.prompting(config.model.model_name_or_path)  # a run is asked as it was trained
    style, shots = trained or (style, EXEMPLARS[: config.script.num_shots])
    tokenizer, style = loading.load_tokenizer(config, style)
    print(inference.answer(config, loading.load(config), tokenizer, style, shots))
    return 0


@advice.advised
def evaluate_alone(config: "Config", tokenizer: "PreTrainedTokenizerBase", data: "Data", start: float) -> int:
    """`--eval_only`: measure the model as it is."""
    from grpo.evaluation import evaluate
    from grpo.policy import loading
    from grpo.runs import record as records
    from grpo.runs import report

    output = Path(config.training.output_dir)
    summary, answers = evaluate.measure(config, loading.load(config), tokenizer, data)
    if is_first_process():
        records.begin(output, config, **data.facts())
        evaluate.save(output, "only", summary, answers)
        evaluate.print_evaluations({Path(config.model.model_name_or_path).name: summary})
        records.finish(output, "evaluated", time.perf_counter() - start)
        print(f"Saved in {output}; the report is {report.write(output)}")
    return 0


@advice.advised
def train(
    config: "Config",
    tokenizer: "PreTrainedTokenizerBase",
    data: "Data",
    rewards: dict[str, Callable[..., list[float]]],
    start: float,
) -> int:
    """Build the trainer and all that watches it, and let it learn."""
    from peft import PeftModel
    from trl import get_peft_config

    from grpo.evaluation import difficulty
    from grpo.policy import loading
    from grpo.runs import directory as run_directory
    from grpo.runs import disk, hub, resume, trackers
    from grpo.training import callbacks, console
    from grpo.training.trainer import trainer_class

    training, output = config.training, Path(config.training.output_dir)
    model = loading.load(config)
    data = difficulty.apply(config, model, tokenizer, data)
    facts = resume.facts(config, data.train)
    with run_directory.readable_refusals(), hub.readable_errors("give a hub_model_id that you may write"):
        trainer = trainer_class(config.script)(  # TRL's GRPOTrainer, with the same gradient for less work
            model=model,
            reward_funcs=list(rewards.values()),
            args=training,
            train_dataset=data.train,
            eval_dataset=data.held_out if training.eval_strategy != "no" else None,
            processing_class=tokenizer,
            peft_config=None if isinstance(model, PeftModel) else get_peft_config(config.model),
        )
        trackers.start(training)
    trainer.checkpoint_facts = facts
    stop = callbacks.attach(trainer, config)  # metrics, alarms, the weights of rewards, signals
    console.make_readable(trainer, config.geometry.steps_per_epoch(len(data.train)), [s.name for s in config.stages])
    say(f"Run: {training.run_name}, in {output}")
    with stop.signals(), disk.readable_errors(output, config.argv):
        learn(config, trainer, tokenizer, data, stop, start)
    processes.leave(trainer.accelerator)
    return stop.status if trainer.is_world_process_zero() else 0  # torchrun ends all at the first one's failure


def learn(
    config: "Config", trainer: Any, tokenizer: "PreTrainedTokenizerBase", data: "Data", stop: "Stopping", start: float
) -> None:
    """Evaluate, train, save, evaluate, compare, report."""
    from grpo.evaluation import comparison, evaluate, inference
    from grpo.policy import sharding
    from grpo.runs import hub, report
    from grpo.runs import record as records

    training, output = config.training, Path(config.training.output_dir)
    main_process = trainer.is_world_process_zero()
    if main_process:
        trainer.create_model_card = functools.partial(report.write_model_card, output)  # TRL calls it at each save
        records.begin(output, config, **data.facts())
    with sharding.whole(trainer) as policy:
        before, answers_before = evaluate.measure_before(config, policy, tokenizer, data)
    if main_process:
        evaluate.save(output, "before", before, answers_before)
        evaluate.print_answers("before training", answers_before)
    say("Training (a loss near 0 is normal: watch the rewards)")
    trainer.train(resume_from_checkpoint=training.resume_from_checkpoint)
    if not stop.reason:
        trainer.save_model(_internal_call=True)  # otherwise push_to_hub would upload a run without its report
        with sharding.whole(trainer) as policy:
            after, answers_after = evaluate.measure(config, policy, tokenizer, data)
        if main_process:
            evaluate.save(output, "after", after, answers_after)
            comparison.save(output, compared := comparison.compare(answers_before, answers_after))
            evaluate.print_answers("after training", answers_after)
            evaluate.print_evaluations({"before": before, "after": after}, compared["sentence"])
    if main_process:
        status = f"stopped by {stop.reason}" if stop.reason else "finished"
        records.finish(output, status, time.perf_counter() - start)
        report.write_model_card(output)
        say(f"Saved in {output}; the report is {report.write(output)}")
        if config.script.merge_lora and not stop.reason:
            say(f"The adapter, merged into its model: {inference.merge(config, output, replace=True)}")
        if stop.reason:
            say(f"S{status[1:]}. {stop.way_on()}")
    if training.push_to_hub and not stop.reason:
        hub.push(trainer)


def main(argv: list[str] | None = None, dataset: Any = None) -> int:
    """Run the experiment; the user's mistakes end in one line and exit status 2, Ctrl-C in one and 130.

    Args:
        argv: the command line without the program's name; None reads sys.argv.
        dataset: a pandas DataFrame or a Dataset, to be used in the place of `dataset_name`.
    """
    try:
        return run(argv, dataset)
    except KeyboardInterrupt as error:
        print(f"Interrupted{error}", file=sys.stderr, flush=True)
        if "LOCAL_RANK" in os.environ:
            sys.stdout.flush()
            os._exit(143)  # its partners may wait for it in vain
        return getattr(error, "status", 130)
    except UserError as error:
        if not is_first_process():
            time.sleep(10)  # torchrun ends all processes when one does, and the first may still be about to say it
        print(processes.speaker(), error, file=sys.stderr, flush=True)
        if isinstance(error, processes.Gone):
            sys.stdout.flush()
            os._exit(2)  # gloo's threads might wait for the one that is gone
        return 2


if __name__ == "__main__":
    sys.exit(main())
