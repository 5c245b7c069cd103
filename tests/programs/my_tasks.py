"""Judges of one's own."""


def even(text, row):
    """Right: an even number of words, and the question is there."""
    return bool(row["question"]) and len(text.split()) % 2 == 0


def broken(text, row):
    return row["nothing"]


def yes(text, row):
    return True


class Even:
    def __call__(self, text, row):
        return even(text, row)


either = Even()
