"""Prompt formats: how a question is asked, and how a perfect completion of it is written.

A chat model gets messages, a model without a chat template the same as one text. A prompt never holds gold reasoning.
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
SYSTEM = ("system", "developer")  # roles of messages that come first
Prompt = list[Message] | str
Shot = tuple[str, str, str]  # question, reasoning, answer
EXAMPLE = '{"question": "What is 2 + 2?", "reasoning": "2 + 2 = 4", "answer": "4"}'  # of `exemplars`


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

    def prompt(self, question: str | list[Message], shots: Sequence[Shot] = ()) -> Prompt:
        """The prompt of a question, after worked examples.

        Args:
            question: a text, for the template; or a conversation, which is used as it is, after this format's system
                prompt unless it has one of its own.
        """
        asked = [{"role": "user", "content": self._asked(question)}] if isinstance(question, str) else question
        examples = []
        for text, reasoning, answer in shots:
            examples.append({"role": "user", "content": self._asked(text)})
            examples.append({"role": "assistant", "content": self.answered(reasoning, answer)})
        own = asked[0]["role"] in SYSTEM
        if self.chat:
            system = asked[:1] if own else [{"role": "system", "content": self.system}] if self.system else []
            return [*system, *examples, *asked[own:]]
        lines = [f"{message['content'].rstrip()}\n" for message in [*asked[:own], *examples, *asked[own:]]]
        return ("" if own else self.opening) + "".join(lines)

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


MARKS = {"boxed": r"\boxed{{answer}}", "hash": "#### {answer}", "final": "Answer: {answer}"}  # by their patterns


def choose(formats: dict[str, PromptFormat], script: ScriptArguments) -> PromptFormat:
    """The format that `prompt_format` names, with the fields that the settings replace.

    Raises:
        UserError: the name is unknown, a template lacks a placeholder, or `answer_pattern` does not find its answer.
    """
    if script.prompt_format not in formats:
        raise UserError(f"prompt_format: {script.prompt_format!r} is unknown; use {' or '.join(formats)}")
    changes: dict[str, Any] = {"chat": script.use_chat_template is not False, "pattern": script.answer_pattern}
    if script.completion_template is not None:
        changes["completion"] = script.completion_template
    elif script.answer_pattern != "xml":
        mark = MARKS.get(script.answer_pattern, script.answer_pattern)
        ask = f"Think step by step. Then write your final answer in this form:\n{mark.replace('{answer}', '...')}"
        changes |= {"system": ask, "opening": f"{ask}\n\n", "completion": f"{{reasoning}}\n{mark}\n"}
    if script.system_prompt is not None:
        end = "\n" if script.system_prompt.rstrip() == script.system_prompt != "" else ""
        changes |= {"system": script.system_prompt, "opening": script.system_prompt + end}
    if script.question_template is not None:
        if "{question}" not in script.question_template:
            raise UserError(f"question_template: {script.question_template!r} needs {{question}}")
        changes["question"] = script.question_template
    chosen = dataclasses.replace(formats[script.prompt_format], **changes)
    try:
        perfect = chosen.answered("1", "2")
    except ValueError as error:
        raise UserError(f"completion_template: {error}") from None
    if (read := extract_answer(perfect, chosen.pattern)) != "2":
        raise UserError(
            f"completion_template: answer_pattern {chosen.pattern} reads {read!r} in {perfect!r}, where the answer is "
            "2; let it mark {answer}, or set another answer_pattern"
        )
    return chosen


def exemplars(script: ScriptArguments, usual: Sequence[Shot]) -> Sequence[Shot]:
    """The worked examples that `exemplars` lists, or the usual ones; UserError for one that is not complete."""
    if script.exemplars is None:
        return usual
    try:
        return [(str(each["question"]), str(each["reasoning"]), str(each["answer"])) for each in script.exemplars]
    except (KeyError, TypeError):
        raise UserError(f"exemplars: {script.exemplars}; write each with three texts, as {EXAMPLE}") from None


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
