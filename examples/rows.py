"""`prepare` for the rows of well-known data sets: a row becomes `question` (text or messages) and `answer`.

    python train_grpo.py --dataset_name alpaca.json --prepare examples.rows.from_alpaca --allow_custom_rewards true

Copy one and change it for rows of your own; other columns that it returns are passed to the rewards.
"""


def from_mmlu(row):
    """Read {question, choices: [text, …], answer: index}."""
    choices = "\n".join(f"{letter}. {text}" for letter, text in zip("ABCDEFGHIJ", row["choices"], strict=False))
    return {"question": f"{row['question']}\n{choices}", "answer": "ABCDEFGHIJ"[row["answer"]]}


def from_alpaca(row):
    """Read {instruction, input: text or None, output}."""
    return {"question": f"{row['instruction']}\n{row.get('input') or ''}".strip(), "answer": row["output"]}


def from_verl(row):
    """Read {prompt: messages, reward_model: {ground_truth}, data_source}."""
    return {"question": row["prompt"], "answer": row["reward_model"]["ground_truth"], "source": row.get("data_source")}


def from_sharegpt(row):
    """Read {conversations: [{from, value}, …]} or {messages: [{role, content}, …]}; the last message is the answer."""
    roles = {"human": "user", "gpt": "assistant"}
    turns = row.get("conversations") or row["messages"]
    said = [(turn.get("from") or turn["role"], turn.get("value") or turn.get("content") or "") for turn in turns]
    *asked, last = [{"role": roles.get(role, role), "content": text} for role, text in said]
    if last["role"] != "assistant":  # without an answer
        return None
    return {"question": asked, "answer": last["content"]}


def from_numina(row):
    r"""Read {problem, solution: text with \boxed{answer}}; drop proofs, which have no box."""
    if "\\boxed" not in row["solution"]:  # a proof
        return None
    return {"question": row["problem"], "answer": row["solution"]}
