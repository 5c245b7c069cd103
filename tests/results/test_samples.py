"""The answers to a few held-out questions are kept at each evaluation, and read by question and step."""

import pytest
from helpers_samples import answered

from grpo.core.jsonfiles import append_line, read_lines, write_lines
from grpo.results.samples import WATCHED, file_of, read_watched, save_watched, watched


def answers(text, count=10):
    return [
        answered(f"question {at}", str(at), f"{text} {at}", reward=0.5, rewards={"own": 0.5}) for at in range(count)
    ]


@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 200])
def test_the_watched_questions_are_the_same_whatever_was_answered(count):
    chosen = [[sample.question for sample in watched(answers(text, count))] for text in ("wrong", "right")]
    assert chosen[0] == chosen[1] and len(set(chosen[0])) == min(count, WATCHED)
    if count == 200:
        assert chosen[0] == [f"question {at}" for at in (0, 50, 100, 150)]


def test_a_line_has_the_keys_of_other_completions_and_its_step(tmp_path):
    save_watched(tmp_path, answers("a"), 10, "m")
    lines = read_lines(tmp_path / "completions_during.jsonl")
    assert lines == [{"step": 10, "measure": "m"} | sample.to_json() for sample in watched(answers("a"))]


def texts(directory, evaluations, measure="m"):
    """The texts of the answers to each watched question by step."""
    found = read_watched(directory, evaluations, measure)
    return [{step: sample.text for step, sample in of_question.items()} for of_question in found]


def test_answers_are_read_by_question_and_step(tmp_path):
    for step in (20, 10):
        save_watched(tmp_path, answers(f"at {step}"), step, "m")
    save_watched(tmp_path, answers("again"), 10, "m")  # a run that was resumed there
    save_watched(tmp_path, answers("other"), 15, "other")  # of another measure
    save_watched(tmp_path, answers("gone", 40), 16, "m")  # other questions, but for the first
    found = texts(tmp_path, {0: answers("before"), 30: answers("after")})
    assert [{**of_question, 16: None} for of_question in found[1:]] == [
        {0: f"before {at}", 10: f"again {at}", 16: None, 20: f"at 20 {at}", 30: f"after {at}"} for at in (2, 5, 7)
    ]
    assert [*found[0]] == [0, 10, 16, 20, 30]  # in order


def test_half_a_line_and_no_file_are_no_answers(tmp_path):
    assert texts(tmp_path, {0: answers("before", 2)}) == [{0: "before 0"}, {0: "before 1"}]
    assert texts(tmp_path, {}) == [] and texts(tmp_path, {0: []}) == []
    path = file_of(tmp_path, "during")
    write_lines(path, [{"step": 1, "measure": "m"} | answers("a", 1)[0].to_json()])
    with path.open("a") as file:
        file.write('{"step": 2, "completion": "hal')
    assert texts(tmp_path, {0: answers("before", 1)}) == [{0: "before 0", 1: "a 0"}]
    append_line(path, {"step": 3, "measure": "m"} | answers("b", 1)[0].to_json())
    assert texts(tmp_path, {0: answers("before", 1)}) == [{0: "before 0", 1: "a 0", 3: "b 0"}]
