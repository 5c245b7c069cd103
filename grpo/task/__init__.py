"""What a run asks, where a completion has its answer, and what is right."""

from grpo.task.answers import extract_answer, is_right, last_number
from grpo.task.prompts import PromptFormat
from grpo.task.task import Task

__all__ = ["PromptFormat", "Task", "extract_answer", "is_right", "last_number"]
