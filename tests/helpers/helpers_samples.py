"""Samples as an evaluation saves them, by the keys of their lines; a tokenizer for made-up ones."""

from grpo.scoring.sample import Sample


def answered(question="", answer=None, completion="", read="", **line):
    """A sample of a line of completions_*.jsonl."""
    return Sample.from_json({"question": question, "answer": answer, "completion": completion, "read": read, **line})


class Bytes:
    """A tokenizer with a token for each byte."""

    def encode(self, text, add_special_tokens):
        return list(text.encode())

    def decode(self, ids, skip_special_tokens):
        return bytes(ids).decode()
