"""Prompt formats: how a question is asked, and how a perfect completion of it is written.

A chat model gets messages, a model without a chat template the same as one text. Gold reasoning never is in a prompt.
"""

import dataclasses
import itertools
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
            question: as text, for the template; or a whole conversation, which is used as it is. One that neither has
                a system message nor shows the format gets this format's.
        """
        pairs = [(self._asked(text), self.answered(why, gold)) for text, why, gold in shots]
        messages = [{"role": "user", "content": self._asked(question)}] if isinstance(question, str) else question
        head = list(itertools.takewhile(lambda message: message["role"] in SYSTEM, messages))
        rest = messages[len(head) :]
        added = isinstance(question, str) or self.adds_system(messages)
        if not self.chat:
            opening = self.opening if added else _as_lines(head)
            examples = "".join(f"{asked.rstrip()}\n{answer}" for asked, answer in pairs)
            return opening + examples + _as_lines(rest)
        if added and self.system:
            head = [{"role": "system", "content": self.system}]
        for asked, answer in pairs:
            head += [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]
        return [*head, *rest]

    def adds_system(self, messages: Sequence[Message]) -> bool:
        """Whether a conversation gets this format's system prompt: it has none, and does not show the format."""
        marks = [*re.findall(r"<\w+>", self.completion), template_parts(self.completion)[1].split()[-1]]
        shown = "".join(message["content"] for message in messages)
        return messages[0]["role"] not in SYSTEM and not all(mark in shown for mark in marks)

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
        end = "\n" if script.system_prompt.rstrip() == script.system_prompt != "" else ""
        chosen = dataclasses.replace(chosen, system=script.system_prompt, opening=script.system_prompt + end)
    if script.question_template is not None:
        if "{question}" not in script.question_template:
            raise UserError(f"question_template: {script.question_template!r} needs {{question}}")
        chosen = dataclasses.replace(chosen, question=script.question_template)
    if script.completion_template is not None:
        try:
            template_parts(script.completion_template)
        except ValueError as error:
            raise UserError(f"completion_template: {error}") from None
        chosen = dataclasses.replace(chosen, completion=script.completion_template)
    patterns = [script.answer_pattern, *([] if script.answer_pattern != "xml" else _patterns_of(chosen.completion))]
    perfect = chosen.answered("1", "2")
    for pattern in patterns:
        if extract_answer(perfect, pattern) == "2":
            return dataclasses.replace(chosen, pattern=pattern)
    read = extract_answer(perfect, script.answer_pattern)
    raise UserError(
        f"completion_template: answer_pattern {script.answer_pattern} reads {read!r} in {perfect!r}, where the answer "
        "is 2; let it mark {answer}, or set another answer_pattern"
    )


def _patterns_of(completion: str) -> list[str]:
    r"""Patterns that may find the answer in a completion template that has no `<answer>`, the usual ones first.

    >>> _patterns_of("{reasoning}\nThe result: {answer}!\n")[-1], len(_patterns_of("{reasoning} so {answer}"))
    ('The result: {answer}!', 3)
    """
    _, middle, tail = template_parts(completion)
    mark, end = middle.strip().splitlines()[-1].strip(), tail.strip().partition("\n")[0]
    own = [f"{mark} {{answer}}{end}"] if re.search(r"[^\w\s]$", mark) else []  # a word alone may be anywhere
    return ["boxed", "hash", "final", *own]


MARKS = {"boxed": r"\boxed{{answer}}", "hash": "#### {answer}", "final": "Answer: {answer}"}  # by their patterns


def exemplars(script: ScriptArguments, usual: Sequence[Shot]) -> Sequence[Shot]:
    """The worked examples that `exemplars` lists, or the usual ones; UserError for one that is not complete."""
    if script.exemplars is None:
        return usual
    keys, found = ("question", "reasoning", "answer"), []
    for number, each in enumerate(script.exemplars, start=1):
        values = [each.get(key) for key in keys] if isinstance(each, dict) and set(each) == set(keys) else []
        asked, why, gold = (str(value) if type(value) in (int, float, str) else "" for value in values or [None] * 3)
        if not (asked.strip() and why.strip() and gold.strip()):
            raise UserError(
                f"exemplars: the {number}. is {each!r}; write question, reasoning and answer, as {EXAMPLE}"
            )
        found.append((asked, why, gold))
    return found


def messages_of(cell: Any) -> list[Message] | None:
    """The conversation that a cell holds, roles and texts alone; None for what holds no question.

    Raises:
        ValueError: it is a list, but not of messages that end with the user's.
    """
    if isinstance(cell, dict) and isinstance(cell.get("role"), list):  # as datasets reads a Sequence of messages
        cell = [dict(zip(cell, values, strict=True)) for values in zip(*cell.values(), strict=True)]
    if not isinstance(cell, list) or not cell:
        return None
    for message in cell:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise ValueError(f"{str(message)[:60]!r} is not a message; write {{role: user, content: …}}")
        if not isinstance(_text_of(message.get("content")), str):
            raise ValueError(f"a message's content is {str(message.get('content'))[:60]!r}; it must be text")
    if (role := cell[-1]["role"]) != "user":
        raise ValueError(f"the last message is of the role {role!r}, where the model begins; end with the user's")
    return [{"role": message["role"], "content": _text_of(message["content"])} for message in cell]


def _text_of(content: Any) -> Any:
    """A message's content; that of parts, where all of them are text, as one text."""
    parts = content if isinstance(content, list) and content else [None]
    texts = [part.get("text") for part in parts if isinstance(part, dict) and part.get("type") == "text"]
    written = [text for text in texts if isinstance(text, str)]
    return "".join(written) if len(written) == len(parts) else content


def _as_lines(messages: Sequence[Message]) -> str:
    return "".join(f"{message['content'].rstrip()}\n" for message in messages)


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
