"""`prepare` for the rows of well-known data sets: a row becomes `question` (text or messages) and `answer`.

    python train_grpo.py --dataset_name alpaca.json --prepare examples.rows.from_alpaca --allow_custom_rewards true

Copy one and change it for rows of your own; other columns that it returns are passed to the rewards.
"""


def from_mmlu(row):
    choices = "\n".join(f"{letter}. {text}" for letter, text in zip("ABCDEFGHIJ", row["choices"], strict=False))
    return {"question": f"{row['question']}\n{choices}", "answer": "ABCDEFGHIJ"[row["answer"]]}


def from_alpaca(row):
    return {"question": f"{row['instruction']}\n{row.get('input') or ''}".strip(), "answer": row["output"]}


def from_verl(row):
    return {"question": row["prompt"], "answer": row["reward_model"]["ground_truth"], "source": row.get("data_source")}


def from_sharegpt(row):
    """Conversations, by `from` and `value` or by `role` and `content`; the last message is the gold answer."""
    roles = {"human": "user", "gpt": "assistant"}
    turns = row.get("conversations") or row["messages"]
    said = [(turn.get("from") or turn["role"], turn.get("value") or turn.get("content") or "") for turn in turns]
    *asked, last = [{"role": roles.get(role, role), "content": text} for role, text in said]
    if last["role"] != "assistant":  # nobody answers
        return None
    return {"question": asked, "answer": last["content"]}


def from_numina(row):
    if "\\boxed" not in row["solution"]:  # a proof
        return None
    return {"question": row["problem"], "answer": row["solution"]}
