"""What makes the tiny models of assets/: a tokenizer and a Qwen2 of 1.7M parameters, trained on demonstrations."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

LEARNING_RATE = 2e-3

Demonstrate = Callable[[], tuple[list[dict[str, str]] | str, str]]  # draws the next (prompt, completion)

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def make_tokenizer(corpus: list[str]):
    """Byte-level BPE of 512 entries, digits one by one, ChatML."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=512, special_tokens=special, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(corpus, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<|endoftext|>",
        eos_token="<|im_end|>",
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=1024,
    )


def new_model(demonstrate: Demonstrate, seed: int):
    """A tokenizer of 4,000 demonstrations, and random weights."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    corpus = []
    for _ in range(4000):
        prompt, completion = demonstrate()
        corpus.extend([prompt] if isinstance(prompt, str) else [message["content"] for message in prompt])
        corpus.append(completion)
    tokenizer = make_tokenizer(corpus)
    torch.manual_seed(seed)
    return tokenizer, Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(tokenizer),
            hidden_size=192,
            intermediate_size=512,
            num_hidden_layers=4,
            num_attention_heads=6,
            num_key_value_heads=2,
            max_position_embeddings=1024,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def make_model(
    demonstrate: Demonstrate, seed: int, steps: int, batch: int, directory: Path, start: Path | None = None
) -> None:
    """Train tokenizer and model on demonstrations that are drawn as they are needed; save both in bf16.

    With `start`, a saved model is trained further instead, at half the learning rate.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if start:
        tokenizer = AutoTokenizer.from_pretrained(start)
        model = AutoModelForCausalLM.from_pretrained(start, dtype=torch.float32)
    else:
        tokenizer, model = new_model(demonstrate, seed)
    print(f"{model.num_parameters():,} parameters, {len(tokenizer)} tokens")
    rate = LEARNING_RATE / 2 if start else LEARNING_RATE
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.99), weight_decay=0.05)
    for step in range(steps):
        progress = step / steps
        scale = min(1.0, (step + 1) / 100) * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * progress)))
        for group in optimizer.param_groups:
            group["lr"] = rate * scale
        rows = []
        for _ in range(batch):
            prompt, completion = demonstrate()
            if not isinstance(prompt, str):
                prompt = tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
            prompt_ids = tokenizer(prompt)["input_ids"]
            rows.append((prompt_ids, [*tokenizer(completion)["input_ids"], tokenizer.eos_token_id]))
        width = max(len(prompt_ids) + len(ids) for prompt_ids, ids in rows)
        input_ids = torch.full((batch, width), tokenizer.pad_token_id)
        labels = torch.full((batch, width), -100)
        for i, (prompt_ids, ids) in enumerate(rows):
            end = len(prompt_ids) + len(ids)
            input_ids[i, :end] = torch.tensor(prompt_ids + ids)
            labels[i, len(prompt_ids) : end] = torch.tensor(ids)
        # right padding and a causal mask: no token sees the padding, so no attention mask is needed
        loss = model(input_ids=input_ids, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 100 == 0 or step == steps - 1:
            print(f"step {step:5d}  loss {loss.item():.4f}", flush=True)
    model.to(torch.bfloat16).save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def write_rows(files: dict[str, list[dict[str, Any]]], directory: Path) -> None:
    """Write `NAME.jsonl` for each name."""
    for name, rows in files.items():
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (directory / f"{name}.jsonl").write_text(text, encoding="utf-8")
