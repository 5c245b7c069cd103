"""Is this answer right? An exact judge of numbers, mathematics, units, choices and text, without torch."""

from exact_answers.marks import extract_answer
from exact_answers.reward import exact_reward
from exact_answers.verdict import Verdict, grade, is_right, last_number, same_answer

__all__ = ["Verdict", "exact_reward", "extract_answer", "grade", "is_right", "last_number", "same_answer"]
