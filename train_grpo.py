"""Teach a small language model to reason on GSM8K with GRPO, and measure what it learned.

    python train_grpo.py                                  Qwen2.5-1.5B-Instruct on one CUDA GPU
    torchrun --nproc_per_node=4 train_grpo.py             the same on four
    python train_grpo.py --config recipes/demo.yaml       a tiny model on a laptop's CPU, in under a minute
    python train_grpo.py --dry_run true                   check data, rewards, batch sizes and memory, and stop
    python -m grpo ask "Lea has 6 boxes with 8 pens in each. How many pens does Lea have?"

After "Granular Format Rewards for Eliciting Mathematical Reasoning Capabilities in Small Language Models" (W. Brown,
2025, https://gist.github.com/willccbb/4676755236bb08cab5f4e54a0475d6fb), whose author now maintains `verifiers`.

The policy samples a group of completions for each prompt, five rewards score them, and each completion's advantage
is its reward relative to its group. TRL's `GRPOTrainer` trains; this file is the experiment: the settings, the prompt,
the data, the rewards, the model and the trainer. Edit HYPERPARAMETERS, or override them with a recipe (`--config`) or
with flags (`--learning_rate 1e-5`). Every setting of TRL's GRPOConfig and ModelConfig works, too.

The loss starts near 0 and stays there: on-policy, its value says nothing. Watch the rewards.
"""

import sys

if __name__ == "__main__":  # --help, --version: before libraries that take seconds
    try:
        from grpo import unhandled  # noqa: F401 - failures of the next imports are one line
    except ImportError as error:
        reason = str(error)  # a module beside this file hides another
        if other := getattr(sys.modules.get("grpo"), "__file__", None):
            reason = f"grpo is hidden by {other}: rename that file"
        elif isinstance(error, ModuleNotFoundError):
            reason = "grpo is neither installed nor beside this file; activate the virtual environment, or in the "
            reason += 'clone: pip install ./exact_answers ".[script]"'
        print(f"error: {reason}", file=sys.stderr)
        sys.exit(2)
    from grpo.config.begin import begin

    begin(sys.argv[1:], __file__)

from typing import Any

from grpo.config.configure import configure
from grpo.core.errors import one_line, run_main
from grpo.core.processes import say
from grpo.core.settings import Config
from grpo.data.dataset import load_data
from grpo.evaluate_only import evaluate_only
from grpo.policy.loading import load_model, load_tokenizer
from grpo.policy.templates import fit_to_template
from grpo.preflight import preflight
from grpo.preflight.plan import TrainingPlan
from grpo.report import hub
from grpo.runs.run import choose_run
from grpo.scoring.registry import load_rewards, make_task, needing_gold, weights_of
from grpo.scoring.scorer import Scorer, judge_reward_func  # noqa: F401 - for reward_funcs, with a judge
from grpo.task.prompts import PromptFormat
from grpo.training import optimizer
from grpo.training.accuracy import AccuracyCurve
from grpo.training.callbacks import begin_record, callbacks_of
from grpo.training.run_trainer import RunTrainer
from rewards import (
    XML_COT_FORMAT,
    correctness_reward_func,
    int_reward_func,
    soft_format_reward_func,
    strict_format_reward_func,
    xmlcount_reward_func,
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

EXEMPLARS = [  # (question, reasoning, answer); num_shots=1 takes the first
    (
        "What is the largest single-digit prime number?",
        "9 is divisible by 3 and 8 is divisible by 2, but 7 is prime.",
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
# Edit here. Names are those of GRPOConfig, ModelConfig (TRL) and ScriptArguments (grpo/core/settings.py).

HYPERPARAMETERS: dict[str, Any] = dict(
    # The settings of the 2025 demo, in its order
    model_name_or_path="Qwen/Qwen2.5-1.5B-Instruct",  # or "meta-llama/Llama-3.2-1B-Instruct", a directory, a saved run
    dataset_name="openai/gsm8k",  # a Hub id, a .jsonl, .json, .csv or .parquet file, a directory, a Dataset, …
    dataset_config="main",
    dataset_split="train",  # or a slice: train[:1000], train[:10%]
    reward_funcs=[  # or judge_reward_func, functions like those in rewards.py, or names in examples/more_rewards.py
        xmlcount_reward_func,
        soft_format_reward_func,
        strict_format_reward_func,
        int_reward_func,
        correctness_reward_func,
    ],
    output_dir=None,  # None: outputs/Qwen-1.5B-GRPO, and with my.csv outputs/Qwen-1.5B-GRPO-my
    run_name=None,  # None: Qwen-1.5B-GRPO-gsm8k
    learning_rate=5e-6,  # of all weights of a 1.5B model; smaller models and adapters (use_peft) need more
    adam_beta1=0.9,
    adam_beta2=0.99,
    weight_decay=0.1,
    warmup_steps=0.1,  # below 1 it is a share of all steps
    lr_scheduler_type="cosine",
    logging_steps=1,
    bf16=True,
    per_device_train_batch_size=16,  # completions; the TRL of 2025 counted prompts, so its 1 is 16 today
    gradient_accumulation_steps=4,  # 16 * 4 = 64 completions per optimizer step and GPU
    num_generations=16,  # completions per prompt: the group that advantages are relative to
    max_prompt_length=256,  # tokens; longer training prompts are dropped
    max_completion_length=786,  # tokens; longer completions are cut off, and rarely earn anything
    num_train_epochs=1,
    save_steps=100,
    max_grad_norm=0.1,
    report_to="wandb",  # or another tracker, or none; W&B logs offline if it is not logged in
    log_on_each_node=False,
    use_peft=False,  # True trains a LoRA adapter of the size below instead of all weights
    lora_r=16,
    lora_alpha=64,
    lora_target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj", "gate_proj"],
    lora_dropout=0.05,
    dtype="bfloat16",  # of the weights
    attn_implementation="flash_attention_2",  # in training: flash-attn's, or else torch's own; sampling uses sdpa
    # AdamW's updates of bf16 weights are mostly lost to rounding. dtype="float32" keeps them; so does, in less memory,
    # optim="adamw_torch_8bit" with optim_args="bf16_stochastic_round=true" (pip install torchao).
    optim="adamw_torch",
    num_shots=0,  # worked examples in each prompt; 1 helps a model that never writes the format
    # Added since
    seed=42,
    beta=0.0,  # weight of the KL penalty; 0 needs no reference model (2025's default was 0.04)
    temperature=1.0,
    use_vllm=None,  # None: vLLM samples if it is installed and there is a CUDA GPU
    vllm_enable_sleep_mode=True,  # training gets vLLM's memory back between rollouts
    gradient_checkpointing=None,  # None: on if the run would not fit in memory without it; off is faster
    dynamic_sampling=0,  # 2: groups whose rewards are all equal are replaced, in up to 2 more rounds of a rollout
    eval_samples=200,  # held-out questions, answered before and after training; 0: none, None: all
    eval_every=None,  # 10 also evaluates after every 10 optimizer steps
    prompt_format=PromptFormat(  # or "think"; without a chat template the prompt is `opening` and the question
        system=SYSTEM_PROMPT, question="{question}", completion=XML_COT_FORMAT, opening=SYSTEM_PROMPT
    ),
    exemplars=EXEMPLARS,
    answer_pattern=None,  # None: the prompt format's; or "boxed", "hash" (####), "final" (Answer: ...), "text", ...
    judge=None,  # your function of text and row, or my_file.f, that grades answers; None: the gold answer decides
    max_samples=None,  # use only the first rows of the data; 20 makes a smoke test
    stop_on_alarm=False,  # True ends the run at its first alarm, with a checkpoint
    # Seldom changed
    prepare=None,  # your function of a row (a dict) -> {"question": ..., "answer": ...}; None: the columns
    question_column="question",  # text or lists of messages; without this column, `prompt` is read
    answer_column="answer",  # 72 alone, or marked in all rows: #### 72, \boxed{72}, Answer: 72, <answer>72</answer>
    eval_dataset_name=None,  # None: from dataset_name
    eval_split="test",  # without this split, a tenth of the rows, or a quarter of few, is held out
    eval_num_samples=1,  # 8 also samples 8 answers to each question, for maj@8 and pass@8
    eval_by=None,  # a column of the data, such as "subject": accuracy for each of its values, too
    per_device_eval_batch_size=256,  # questions at once
    reward_weights=None,  # one for each reward; None: all 1
    packed=True,  # train without padding: TRL's gradient in less time; False takes TRL's own step
    ddp_find_unused_parameters=False,
    save_total_limit=2,  # a checkpoint holds weights and optimizer state: 9 GB for 1.5B in bfloat16
    log_completions=True,  # prints sampled completions, up to five times a run
    num_completions_to_print=2,  # the best and the worst of a group
)

# ------------------------------------------------------------------------------------------------------------------
# The experiment


def experiment(config: Config) -> int:
    """Load rewards, data and model, train, compare before and after. Return the exit status."""
    # 1. The task (prompt, answer pattern, rule for right answers) and the rewards
    task = make_task(config)
    reward_funcs = load_rewards(config, task)
    run = choose_run(config, task, reward_funcs)  # its directory, and the checkpoint to resume from
    if run is None:
        return 0  # it has finished already

    if config.script.eval_only:
        return evaluate_only(run, task, reward_funcs)  # answers the held-out questions, and trains nothing

    # 2. Data: each row becomes a chat prompt and a gold answer; some questions are held out from training
    tokenizer = load_tokenizer(config)  # AutoTokenizer, padding on the left
    task, tokenizer = fit_to_template(task, tokenizer, config.template_kwargs)
    data = load_data(config, task, tokenizer, needing_gold(config, reward_funcs, task))
    plan = TrainingPlan(run, tokenizer, task, data, reward_funcs)
    preflight.check(plan)  # raises at an error
    if config.script.dry_run:
        return 0

    with run.open(data):  # its directory, lock, signals, readable errors, and how it ends
        # 3. Model and trainer: TRL's GRPOTrainer, with the same gradient for less work
        model, peft_config = load_model(config)  # AutoModelForCausalLM in bf16, and a LoraConfig if use_peft
        scorer = Scorer(task, reward_funcs, weights_of(config, reward_funcs))  # a completion's verdict and rewards
        accuracy = AccuracyCurve(run, scorer, data)  # on the held-out questions; also while training, with eval_every
        with one_line(kinds=(ValueError, NotImplementedError, ImportError, OSError)):  # TRL's refusals
            trainer = RunTrainer(
                run,
                scorer,
                model=model,
                processing_class=tokenizer,
                args=run.args,
                train_dataset=data.train,
                eval_dataset=data.held_out,
                peft_config=peft_config,
                callbacks=[*callbacks_of(run, scorer, data), accuracy],  # metrics, alarms, the report, …
                measure=accuracy.measure,
                perfect=plan.perfect,  # what rewards pay for a perfect completion: alarms compare with it
                **config.step_options,
            )
            optimizer.build(trainer)  # AdamW
        begin_record(trainer, data)  # its record and its tracker
        accuracy.measure_before()

        # 4. Train: sample a group for each prompt, score it, make completions above the group's mean more likely
        say("Training (a loss near 0 is normal: watch the rewards)")
        trainer.train(resume_from_checkpoint=run.args.resume_from_checkpoint)
        if not run.stop.is_asked:
            trainer.save_model(_internal_call=True)  # otherwise push_to_hub would upload a run without its report
            accuracy.measure_after()  # the same questions again
        run.end()
        trainer.create_model_card(run.output.name)  # TRL's, with the comparison, the rewards and the prompt
    if run.args.push_to_hub and not run.stop.is_asked:  # after the run's end: a failed upload is not a failed run
        hub.push(trainer)
    return run.exit_status


def main(argv: list[str] | None = None, dataset: Any = None) -> int:
    """Run the experiment. A user's mistake prints one line and returns 2; Ctrl-C prints one line and returns 130.

    Args:
        argv: the command line without the program's name; None reads sys.argv.
        dataset: a pandas DataFrame, a Dataset or a list of dictionaries, which replaces `dataset_name`.
    """
    words = sys.argv[1:] if argv is None else argv
    return run_main(lambda: experiment(configure(HYPERPARAMETERS, words, dataset, __file__)))


if __name__ == "__main__":
    sys.exit(main())
