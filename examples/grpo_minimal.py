"""GRPO on one page: a tiny model learns to solve word problems on a laptop's CPU, in a minute or two.

    python examples/grpo_minimal.py

GRPO (Group Relative Policy Optimization, https://arxiv.org/abs/2402.03300) repeats four steps:

    1. sample    The model, called the policy, answers each question several times: a group of completions.
    2. score     Plain functions reward each completion: for its format, and for the right answer.
    3. compare   A completion's advantage is how much better it is than the average of its group. That average is the
                 baseline, so no second network has to learn how hard each question is.
    4. update    The tokens of better completions become more likely, those of worse ones less likely.

train_grpo.py does the same with TRL, for any model and data; a test shows that both compute the same gradient.
"""

import json
import os
import sys
from pathlib import Path

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # read by torch: idle threads sleep, and leave the CPU to others
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from rewards import REWARD_FUNCS, XML_COT_FORMAT, extract_hash_answer  # noqa: E402

STEPS = 40
QUESTIONS = 8  # in each step
GROUP_SIZE = 8  # completions of each question; a group whose rewards are all equal teaches nothing
MAX_TOKENS = 48  # longer completions are cut off
UPDATES = 2  # optimizer steps on the same completions; with 1, which is common too, the ratio below is always 1
CLIP = 0.2
LEARNING_RATE = 1e-4  # for this tiny model; one of a billion parameters takes about 5e-6
SYSTEM_PROMPT = "\nRespond in the following format:\n" + XML_COT_FORMAT.format(reasoning="...", answer="...")


@torch.no_grad()
def sample(model, tokenizer, questions):
    """Step 1: GROUP_SIZE completions of each question, each after its prompt.

    Returns the token ids, their attention mask (0: padding), and the completion mask: True for what the model wrote.
    Its end-of-sequence token is part of that, or it would never learn when to stop.
    """
    system = {"role": "system", "content": SYSTEM_PROMPT}
    chats = [[system, {"role": "user", "content": question}] for question in questions]
    prompts = tokenizer.apply_chat_template(chats, add_generation_prompt=True, padding=True, return_tensors="pt")
    # Temperature 1 and no top_k: the probabilities that are sampled from are exactly those that are trained below.
    ids = model.generate(
        **prompts, num_return_sequences=GROUP_SIZE, max_new_tokens=MAX_TOKENS, do_sample=True, temperature=1.0, top_k=0
    )
    is_end = (ids[:, prompts["input_ids"].shape[1] :] == tokenizer.eos_token_id).int()
    completion_mask = is_end.cumsum(dim=1) - is_end == 0  # no end before this token
    prompt_mask = prompts["attention_mask"].repeat_interleave(GROUP_SIZE, dim=0)
    return ids, torch.cat([prompt_mask, completion_mask], dim=1), completion_mask


def score(texts, answers):
    """Step 2: all five rewards of each completion, shape (5, completions). The last is 2 for the right answer."""
    return torch.tensor([reward(texts, answer=answers) for reward in REWARD_FUNCS.values()])


def compare(rewards):
    """Step 3: advantages from rewards of shape (questions, group size), in standard deviations of the group."""
    rewards = rewards - rewards[:, :1]  # 0 where a whole group earned the same; float32's mean of 0.7s is not 0.7
    return (rewards - rewards.mean(dim=1, keepdim=True)) / (rewards.std(dim=1, keepdim=True) + 1e-4)


def log_probs_of(model, ids, attention_mask, length):
    """Log-probability of each of the last `length` ids, which the logits one position before it predict."""
    positions = (attention_mask.cumsum(dim=1) - 1).clamp(min=0)  # padding on the left does not count
    logits = model(ids, attention_mask=attention_mask, position_ids=positions).logits
    return logits[:, -length - 1 : -1].log_softmax(dim=-1).gather(2, ids[:, -length:, None]).squeeze(2)


def loss_of(log_probs, old_log_probs, advantages, completion_mask):
    """Step 4: the loss whose gradient updates the policy; `old_log_probs` are those of the policy that sampled.

    In the first update the ratio is 1 and the gradient is the plain policy gradient, that of -advantage * log_probs.
    Later the policy is no longer the one that sampled: the ratio corrects for that, and a token that is already 20 %
    more likely (or less likely, where the advantage is negative) gets no further gradient.
    """
    ratio = (log_probs - old_log_probs).exp()
    advantages = advantages.view(-1, 1)  # all tokens of a completion share its advantage
    gain = torch.min(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)
    return -(gain * completion_mask).sum() / completion_mask.sum()  # mean over all tokens of the batch


def main(steps=STEPS, seed=0):
    """Train the demo's model, print a line for each step, and return each step's mean reward."""
    torch.manual_seed(seed)
    # With padding on the left, all prompts end, and all completions begin, at the same position.
    tokenizer = AutoTokenizer.from_pretrained(ROOT / "assets/demo/model", padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(ROOT / "assets/demo/model", dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    history, rows = [], [json.loads(line) for line in (ROOT / "assets/demo/train.jsonl").read_text().splitlines()]
    for step in range(1, steps + 1):
        batch = [rows[index] for index in torch.randperm(len(rows))[:QUESTIONS]]
        ids, attention_mask, completion_mask = sample(model, tokenizer, [row["question"] for row in batch])
        length = completion_mask.shape[1]
        texts = tokenizer.batch_decode(ids[:, -length:], skip_special_tokens=True)
        rewards = score(texts, [extract_hash_answer(row["answer"]) for row in batch for _ in range(GROUP_SIZE)])
        total = rewards.sum(dim=0)
        advantages = compare(total.view(QUESTIONS, GROUP_SIZE))
        for update in range(UPDATES):
            log_probs = log_probs_of(model, ids, attention_mask, length)
            if update == 0:
                old_log_probs = log_probs.detach()
            optimizer.zero_grad()
            loss_of(log_probs, old_log_probs, advantages, completion_mask).backward()
            optimizer.step()
        history.append(total.mean().item())
        right, tokens = (rewards[-1] > 0).float().mean(), completion_mask.sum() / len(ids)
        print(f"step {step:3}   reward {history[-1]:5.2f} of 4   right {right:4.0%}   tokens {tokens:4.1f}")
    return history


if __name__ == "__main__":
    main()
