"""Rewards that fail in a step, on all processes or on the second, and a judge that notes what it is asked."""

import os


def training(trainer_state):
    return trainer_state.max_steps > 0  # and not preflight's trial


def faulty(completions, trainer_state, **kwargs):
    if training(trainer_state) and trainer_state.global_step == 1:
        raise ZeroDivisionError("planted in vain")
    return [float(len(c[0]["content"])) for c in completions]


def on_the_second(completions, trainer_state, **kwargs):
    if training(trainer_state) and trainer_state.global_step == 0 and os.environ.get("RANK") == "1":
        raise ValueError("planted on the second process")
    return [float(len(c[0]["content"])) for c in completions]


def nothing(completions, **kwargs):
    return [None] * len(completions)


def judge(text, row):
    with open("asked", "a") as asked:
        print(row["question"], file=asked)
    return True
