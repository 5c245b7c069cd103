"""The task of a run: prompts, how answers are extracted from completions, and the rule for right answers."""

from exact_answers import extract_answer, is_right, last_number
from grpo.task.prompts import PromptFormat
from grpo.task.task import Task

__all__ = ["PromptFormat", "Task", "extract_answer", "is_right", "last_number"]
