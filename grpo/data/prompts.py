"""Prompt formats: how a question is asked, and how a perfect completion of it is written.

A chat model gets messages, a model without a chat template the same as one text. Gold reasoning never is in a prompt.
"""

import dataclasses
import string
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from grpo.core.errors import UserError
from grpo.core.settings import ScriptArguments
from rewards import THINK_FORMAT, extract_xml_answer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Message = dict[str, str]
Prompt = list[Message] | str
Shot = tuple[str, str, str]  # question, reasoning, answer


@dataclasses.dataclass(frozen=True)
class PromptFormat:
    """Templates in the notation of `str.format`.

    >>> plain = dataclasses.replace(THINK, chat=False)
    >>> plain.prompt("2 + 2?")
    '<problem>\\n2 + 2?\\n</problem>\\n'
    """

    system: str  # the system message of a chat
    question: str  # the user's message, with {question}
    completion: str  # a perfect completion, with {reasoning} and {answer}
    opening: str = ""  # what a plain text begins with; replaces a system message
    chat: bool = True  # whether prompts are chat messages; else plain text

    def prompt(self, question: str, shots: Sequence[Shot] = ()) -> Prompt:
        """The prompt of a question, after worked examples."""
        pairs = [(self.question.format(question=asked), self.answered(why, gold)) for asked, why, gold in shots]
        last = self.question.format(question=question)
        if not self.chat:
            examples = "".join(f"{asked.rstrip()}\n{answer}" for asked, answer in pairs)
            return f"{self.opening}{examples}{last.rstrip()}\n"
        messages = [{"role": "system", "content": self.system}] if self.system else []
        for asked, answer in pairs:
            messages += [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]
        return [*messages, {"role": "user", "content": last}]

    def answered(self, reasoning: str, answer: str) -> str:
        """A perfect completion."""
        return self.completion.format(reasoning=reasoning, answer=answer)


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
    if script.system_prompt is not None:
        chosen = dataclasses.replace(chosen, system=script.system_prompt, opening=script.system_prompt)
    if script.question_template is not None:
        _check_template("question_template", script.question_template, "question")
        chosen = dataclasses.replace(chosen, question=script.question_template)
    if script.completion_template is not None:
        _check_template("completion_template", script.completion_template, "reasoning", "answer")
        chosen = dataclasses.replace(chosen, completion=script.completion_template)
        if extract_xml_answer(chosen.answered("1", "2")) != "2":
            raise UserError("completion_template: {answer} must be alone between <answer> and </answer>")
    return chosen


def _check_template(key: str, template: str, *fields: str) -> None:
    try:
        found = [name for _, name, *_ in string.Formatter().parse(template) if name is not None]
    except ValueError:  # a brace without its other half
        found = []
    if sorted(found) != sorted(fields) or "{{" in template or "}}" in template:
        known = " and ".join(f"{{{name}}}" for name in fields)
        raise UserError(f"{key}: {template!r} needs {known} exactly once, and no other braces")


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
