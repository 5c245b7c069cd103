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


def with_history(row, asked):
    """Return the row's `system` text and `history` (pairs of texts, or messages) before the messages `asked`.

    A text alone, without any, stays a text, which the run's own prompt format surrounds.
    """
    system, history = row.get("system") or row.get("system_prompt"), row.get("history") or []
    history = parsed(history) if isinstance(history, str) else history  # a CSV file has lists as text
    before = [{"role": "system", "content": system}] if system else []
    for turn in history:
        if isinstance(turn, dict):
            before.append(message(turn))
        else:
            before += [{"role": "user", "content": turn[0]}, {"role": "assistant", "content": turn[1]}]
    if isinstance(asked, str):
        return [*before, {"role": "user", "content": asked}] if before else asked
    has_its_own = asked and asked[0]["role"] == "system"
    return [*asked[:1], *before[bool(system) :], *asked[1:]] if has_its_own else [*before, *asked]


def message(turn):
    """Return a message of {from, value} or {role, content}, with the names that chat templates know."""
    role = turn.get("from") or turn["role"]
    role = {"human": "user", "gpt": "assistant"}.get(role, role)
    return {"role": role, "content": turn.get("value") or turn.get("content") or ""}


def from_alpaca(row):
    """Read {instruction, input: text or None, output}, with `system` and `history` if the row has them."""
    asked = f"{row['instruction']}\n{row.get('input') or ''}".strip()
    return {"question": with_history(row, asked), "answer": row["output"]}


def from_verl(row):
    """Read {prompt: messages, reward_model: {ground_truth}, data_source}."""
    return {"question": row["prompt"], "answer": row["reward_model"]["ground_truth"], "source": row.get("data_source")}


def from_prompt_completion(row):
    """Read TRL's {prompt, completion}: texts or messages, of which the completion's last one is the answer."""
    answer = row["completion"]
    if isinstance(answer, str) and answer.startswith("[{"):  # a CSV file has lists as text
        answer = parsed(answer)
    asked = with_history(row, row["prompt"])
    return {"question": asked, "answer": answer if isinstance(answer, str) else answer[-1]["content"]}


def from_sharegpt(row):
    """Read {conversations: [{from, value}, …]} or {messages: [{role, content}, …]}; the last message is the answer.

    The row's `system` and `history`, if it has them, stand before them.
    """
    turns = row.get("conversations") or row["messages"]
    *asked, last = map(message, parsed(turns) if isinstance(turns, str) else turns)  # a CSV file has lists as text
    if last["role"] != "assistant":  # without an answer
        return None
    return {"question": with_history(row, asked), "answer": last["content"]}


def from_numina(row):
    r"""Read {problem, solution: text with \boxed{answer}}; drop proofs, which have no box."""
    if "\\boxed" not in row["solution"]:  # a proof
        return None
    return {"question": row["problem"], "answer": row["solution"]}
