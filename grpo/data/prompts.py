"""Prompt formats: how a question is asked, and how a perfect completion of it is written.

A chat model gets messages, a model without a chat template the same as one text. Gold reasoning never is in a prompt.
"""

import dataclasses
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from grpo.core.errors import UserError
from grpo.core.settings import ScriptArguments
from rewards import THINK_FORMAT, extract_answer, template_parts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Message = dict[str, str]
Prompt = list[Message] | str
Shot = tuple[str, str, str]  # question, reasoning, answer


@dataclasses.dataclass(frozen=True)
class PromptFormat:
    """Templates: what stands in braces is replaced, and all other text stays as it is.

    >>> plain = dataclasses.replace(THINK, chat=False)
    >>> plain.prompt("2 + 2?")
    '<problem>\\n2 + 2?\\n</problem>\\n'
    """

    system: str  # the system message of a chat
    question: str  # the user's message, with {question}
    completion: str  # a perfect completion, with {reasoning} and {answer}
    opening: str = ""  # what a plain text begins with; replaces a system message
    chat: bool = True  # whether prompts are chat messages; else plain text
    pattern: str = "xml"  # where the answer is in a completion, for `rewards.extract_answer`
    prefill: str = ""  # the part of a completion that the rendered prompt ends in: `<think>\\n` of some chat templates

    def prompt(self, question: str, shots: Sequence[Shot] = ()) -> Prompt:
        """The prompt of a question, after worked examples."""
        pairs = [(self._asked(question), self.answered(why, gold)) for question, why, gold in shots]
        last = self._asked(question)
        if not self.chat:
            examples = "".join(f"{asked.rstrip()}\n{answer}" for asked, answer in pairs)
            return f"{self.opening}{examples}{last.rstrip()}\n"
        messages = [{"role": "system", "content": self.system}] if self.system else []
        for asked, answer in pairs:
            messages += [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]
        return [*messages, {"role": "user", "content": last}]

    def answered(self, reasoning: str, answer: str) -> str:
        """A perfect completion."""
        head, middle, tail = template_parts(self.completion)
        return f"{head}{reasoning}{middle}{answer}{tail}"

    def _asked(self, question: str) -> str:
        return self.question.replace("{question}", question)


# For models without a chat template too, and the other format that the demo's model knows.
THINK = PromptFormat(
    system="\nRespond in the following format:\n<think>\n...\n</think>\n<answer>...</answer>\n",
    question="<problem>\n{question}\n</problem>\n",
    completion=THINK_FORMAT,
)


def choose(formats: dict[str, PromptFormat], script: ScriptArguments) -> PromptFormat:
    """The format that `prompt_format` names, with the fields that the settings replace."""
    if script.prompt_format not in formats:
        raise UserError(f"prompt_format: {script.prompt_format!r} is unknown; use {' or '.join(formats)}")
    chosen = dataclasses.replace(formats[script.prompt_format], chat=script.use_chat_template is not False)
    chosen = dataclasses.replace(chosen, pattern=script.answer_pattern)
    if script.answer_pattern != "xml" and script.completion_template is None:
        mark = MARKS.get(script.answer_pattern, script.answer_pattern)
        ask = f"Think step by step. Then write your final answer in this form:\n{mark.replace('{answer}', '...')}"
        chosen = dataclasses.replace(chosen, system=ask, opening=f"{ask}\n\n", completion=f"{{reasoning}}\n{mark}\n")
    if script.system_prompt is not None:
        chosen = dataclasses.replace(chosen, system=script.system_prompt, opening=script.system_prompt)
    if script.question_template is not None:
        _check_template("question_template", script.question_template, "question")
        chosen = dataclasses.replace(chosen, question=script.question_template)
    if script.completion_template is not None:
        _check_template("completion_template", script.completion_template, "reasoning", "answer")
        chosen = dataclasses.replace(chosen, completion=script.completion_template)
    if (read := extract_answer(chosen.answered("1", "2"), chosen.pattern)) != "2":
        raise UserError(
            f"completion_template: answer_pattern {chosen.pattern} reads {read!r} in {chosen.answered('1', '2')!r}, "
            "where the answer is 2; let it mark {answer}, or set another answer_pattern"
        )
    return chosen


MARKS = {"boxed": r"\boxed{{answer}}", "hash": "#### {answer}", "final": "Answer: {answer}"}  # by their patterns


def _check_template(key: str, template: str, *fields: str) -> None:
    if any(template.count(f"{{{name}}}") != 1 for name in fields):
        known = " and ".join(f"{{{name}}}" for name in fields)
        raise UserError(f"{key}: {template!r} needs {known} exactly once")
    if "reasoning" in fields:
        try:
            template_parts(template)
        except ValueError as error:
            raise UserError(f"{key}: {error}") from None


def prefilled(prompt: str, completion: str) -> str:
    """The tags of a completion template that a rendered prompt ends in, so that no completion writes them itself.

    >>> prefilled("<|assistant|>\\n<think>\\n", THINK_FORMAT), prefilled("2 + 2?\\n<b>", THINK_FORMAT)
    ('<think>\\n', '')
    """
    tags = "|".join(map(re.escape, dict.fromkeys(re.findall(r"</?\w+>", completion))))
    found = re.search(rf"(?:(?:{tags})\s*)+$", prompt) if tags else None
    return found[0] if found else ""


def rendered(prompt: Prompt, tokenizer: "PreTrainedTokenizerBase", kwargs: dict | None = None) -> str:
    """A prompt as text, of a chat with the template's special tokens, up to where the assistant begins."""
    if isinstance(prompt, str):
        return prompt
    return str(tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False, **(kwargs or {})))


def tokenize(
    prompts: Sequence[Prompt], tokenizer: "PreTrainedTokenizerBase", kwargs: dict | None = None
) -> list[list[int]]:
    """Token ids of prompts, of chats up to where the assistant begins: the same ids that TRL generates from.

    `kwargs` are GRPOConfig's `chat_template_kwargs`.
    """
    if isinstance(prompts[0], str):
        encoded: Any = tokenizer(text=list(prompts))
    else:
        chats: Any = list(prompts)
        options: dict[str, Any] = {"add_generation_prompt": True, "tokenize": True, "return_dict": True}
        encoded = tokenizer.apply_chat_template(chats, **options, **(kwargs or {}))
    return encoded["input_ids"]
