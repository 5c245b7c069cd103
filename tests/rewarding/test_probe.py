"""Evaluations call rewards as TRL does."""

import pytest

from grpo.rewarding import probe

ROWS = [{"prompt": "1 + 1?", "question": "1 + 1?", "level": 1}, {"prompt": "2?", "question": "2?", "level": 2}]


@pytest.mark.parametrize("chat", [True, False])
def test_columns_are_those_that_trl_passes(chat):
    columns = probe.columns_of(ROWS, ["a", "b"], [[1], [2, 3]], chat)
    assert columns["prompts"] == ["1 + 1?", "2?"] and columns["level"] == [1, 2] and "prompt" not in columns
    assert columns["completions"][1] == ([{"role": "assistant", "content": "b"}] if chat else "b")
    assert columns["completion_ids"] == [[1], [2, 3]]


def test_a_reward_that_fails_on_a_row_is_excluded_there(capsys):
    def fails(completions, **kwargs):
        return [1.0 if text == "a" else 1 / 0 for text in completions]

    async def twos(completions, **kwargs):
        return [2.0] * len(completions)

    columns = probe.columns_of(ROWS, ["a", "b"], [[1], [2]], chat=False)
    assert probe.scores({"fails": fails, "twos": twos}, columns) == {"fails": [1.0, None], "twos": [2.0, None]}
    assert "1 of 2" in capsys.readouterr().out
