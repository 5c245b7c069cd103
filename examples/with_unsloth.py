"""GSM8K with Unsloth: it loads the model in 4 bits, trains an adapter, and samples with vLLM, on one CUDA GPU.

In an environment of its own, from the folder of train_grpo.py:

    pip install -r requirements-unsloth.txt
    python -m examples.with_unsloth

TRL's GRPOTrainer, which Unsloth patches, pays the five rewards. The judge is a sixth with weight 0: it measures, also
on held-out questions before and after training. They are sampled as in training; for greedy answers and a report, run
`python train_grpo.py --eval_only true --model_name_or_path outputs/Gemma-1B-GRPO-unsloth` with requirements.txt.
"""

import sys
from pathlib import Path
from typing import Any

from datasets import load_dataset

from exact_answers import exact_reward
from rewards import REWARD_FUNCS, XML_COT_FORMAT, extract_hash_answer

MODEL = "unsloth/gemma-3-1b-it"  # google/gemma-3-1b-it without its gate
MAX_PROMPT_LENGTH, MAX_COMPLETION_LENGTH = 256, 768  # tokens, 1,024 in all
HELD_OUT = 200  # questions of the test split
RANK = 32  # of the adapter
SYSTEM_PROMPT = "\nRespond in the following format:\n" + XML_COT_FORMAT.format(reasoning="...", answer="...")
REWARDS: list[Any] = list(REWARD_FUNCS.values())

SETTINGS: dict[str, Any] = dict(
    output_dir="outputs/Gemma-1B-GRPO-unsloth",
    learning_rate=5e-5,  # the deep guide has 5e-6, which teaches an adapter next to nothing
    adam_beta2=0.99,
    weight_decay=0.1,
    warmup_steps=0.1,  # a share of all steps
    lr_scheduler_type="cosine",
    optim="adamw_8bit",  # of the adapter, which Unsloth keeps in float32
    max_grad_norm=0.1,
    bf16=True,
    per_device_train_batch_size=16,  # completions
    gradient_accumulation_steps=4,
    num_generations=16,
    max_completion_length=MAX_COMPLETION_LENGTH,
    use_vllm=True,  # Unsloth's fast_inference: vLLM reads the weights that are trained
    reward_weights=[1.0, 1.0, 1.0, 1.0, 1.0, 0.0],
    num_generations_eval=1,
    per_device_eval_batch_size=50,  # divides HELD_OUT, since TRL averages over batches
    num_train_epochs=1,
    logging_steps=1,
    save_steps=100,
    seed=42,
    report_to="none",  # or "wandb"
)


def to_prompt(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row's chat prompt and its gold answer, as the rewards and the judge take it."""
    system, user = {"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": row["question"]}
    return {"prompt": [system, user], "answer": extract_hash_answer(row["answer"])}


def main() -> tuple[float, float]:
    """Train an adapter. Return the share of right held-out answers before and after training."""
    if Path(SETTINGS["output_dir"]).exists():
        sys.exit(f"output_dir: {SETTINGS['output_dir']} exists; use another one, or delete it")
    from unsloth import FastLanguageModel  # before TRL, which it patches

    from trl import GRPOConfig, GRPOTrainer  # isort: skip

    model, tokenizer = FastLanguageModel.from_pretrained(
        model_name=MODEL,
        max_seq_length=MAX_PROMPT_LENGTH + MAX_COMPLETION_LENGTH,
        load_in_4bit=True,
        fast_inference=SETTINGS["use_vllm"],
        gpu_memory_utilization=0.5,
        max_lora_rank=RANK,
    )
    model = FastLanguageModel.get_peft_model(
        model,
        r=RANK,
        lora_alpha=RANK,
        lora_dropout=0.0,  # Unsloth is fastest without
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj", "gate_proj"],
        use_gradient_checkpointing="unsloth",
        random_state=SETTINGS["seed"],
    )

    def fits(row: dict[str, Any]) -> bool:
        prompt = tokenizer.apply_chat_template(row["prompt"], tokenize=False, add_generation_prompt=True)
        return len(tokenizer(text=prompt, add_special_tokens=False)["input_ids"]) <= MAX_PROMPT_LENGTH

    rows = load_dataset("openai/gsm8k", "main").map(to_prompt).filter(fits)
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=[*REWARDS, exact_reward],
        args=GRPOConfig(**SETTINGS),
        train_dataset=rows["train"],
        eval_dataset=rows["test"].select(range(HELD_OUT)),
    )
    before = trainer.evaluate()["eval_rewards/exact_reward/mean"]
    trainer.train()
    after = trainer.evaluate()["eval_rewards/exact_reward/mean"]
    trainer.save_model()
    print(f"right of {HELD_OUT} held-out answers: {before:.1%} before training, {after:.1%} after")
    return before, after


if __name__ == "__main__":
    main()
