"""`prepare` for the rows of well-known data sets: a row becomes `question` (text or messages) and `answer`.

    python train_grpo.py --dataset_name alpaca.json --prepare examples.rows.from_alpaca --allow_custom_rewards true

Copy one and change it for rows of your own; other columns that it returns are passed to the rewards.
"""

from grpo.data.files import parsed

LETTERS = "ABCDEFGHIJ"


def from_mmlu(row):
    """Read {question, choices (or options): [text, …], answer: index or letter}, or choices in columns A, B, C, ….

    ARC's {question, choices: {text: […], label: […]}, answerKey: label}, too.
    """
    choices = row.get("choices") or row.get("options") or [row[letter] for letter in LETTERS if row.get(letter)]
    choices = parsed(choices) if isinstance(choices, str) else choices  # a CSV file has lists as text
    answer = row["answer"] if row.get("answer") is not None else row["answerKey"]
    if isinstance(choices, dict):
        choices, answer = choices["text"], choices["label"].index(answer)
    listed = "\n".join(f"{letter}. {text}" for letter, text in zip(LETTERS, choices, strict=False))
    letter = LETTERS[int(answer)] if isinstance(answer, int) or answer.strip().isdigit() else answer.strip().upper()
    return {"question": f"{row['question']}\n{listed}", "answer": letter}


def from_alpaca(row):
    """Read {instruction, input: text or None, output}."""
    return {"question": f"{row['instruction']}\n{row.get('input') or ''}".strip(), "answer": row["output"]}


def from_verl(row):
    """Read {prompt: messages, reward_model: {ground_truth}, data_source}."""
    return {"question": row["prompt"], "answer": row["reward_model"]["ground_truth"], "source": row.get("data_source")}


def from_prompt_completion(row):
    """Read TRL's {prompt, completion}: texts or messages, of which the completion's last one is the answer."""
    answer = row["completion"]
    if isinstance(answer, str) and answer.startswith("[{"):  # a CSV file has lists as text
        answer = parsed(answer)
    return {"question": row["prompt"], "answer": answer if isinstance(answer, str) else answer[-1]["content"]}


def from_sharegpt(row):
    """Read {conversations: [{from, value}, …]} or {messages: [{role, content}, …]}; the last message is the answer."""
    roles = {"human": "user", "gpt": "assistant"}
    turns = row.get("conversations") or row["messages"]
    turns = parsed(turns) if isinstance(turns, str) else turns  # a CSV file has lists as text
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
