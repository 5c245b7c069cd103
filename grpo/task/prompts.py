"""Prompt formats: how a question is asked, and how a perfect completion of it is written.

A chat model gets messages, a model without a chat template the same as one text. A prompt never holds gold reasoning.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from grpo.core.errors import UserError, did_you_mean
from grpo.task.answers import check_pattern, extract_answer
from rewards import THINK_FORMAT, XML_COT_FORMAT, template_parts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Message = dict[str, str]
SYSTEM = ("system", "developer")  # roles of a first message; few templates know the second
Prompt = list[Message] | str
Shot = tuple[str, str, str]  # question, reasoning, answer


@dataclasses.dataclass(frozen=True)
class PromptFormat:
    """Templates: their placeholders are replaced, and all other text stays as it is.

    >>> plain = dataclasses.replace(THINK, chat=False)
    >>> plain.prompt("2 + 2?")
    '<problem>\\n2 + 2?\\n</problem>\\n'
    """

    system: str  # the system message of a chat
    question: str = "{question}"  # the user's message, with {question}
    completion: str = XML_COT_FORMAT  # a perfect completion, with {reasoning} and {answer}, or {answer} alone
    opening: str = ""  # the beginning of a plain text; replaces a system message
    chat: bool = True  # whether prompts are chat messages; else plain text
    pattern: str = "xml"  # where the answer is in a completion, for `extract_answer`
    prefill: str = ""  # the part of a completion that the rendered prompt ends in: `<think>\\n` of some chat templates
    system_apart: bool = True  # False: the system message is in the first user's (templates without its role)
    shots_apart: bool = True  # False: worked examples are in the user's message (templates that rewrite answers)

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
        has_system = asked[0]["role"] in SYSTEM
        if self.chat:
            content = asked[0]["content"] if has_system else self.system
            system = [{"role": "system", "content": content}] if has_system or content else []
            return self._arranged(system, examples, asked[has_system:])
        lines = [
            f"{message['content'].rstrip()}\n" for message in [*asked[:has_system], *examples, *asked[has_system:]]
        ]
        return ("" if has_system else self.opening) + "".join(lines)

    def _arranged(self, system: list[Message], examples: list[Message], asked: list[Message]) -> list[Message]:
        """The messages of a chat; those that the template does not take apart stand before the first user's text."""
        apart = [*(system if self.system_apart else ()), *(examples if self.shots_apart else ())]
        merged = [*(() if self.system_apart else system), *(() if self.shots_apart else examples)]
        messages = [*apart, *asked]
        if merged:
            first = next(index for index, message in enumerate(messages) if message["role"] == "user")
            texts = [message["content"].strip() for message in merged]
            content = "\n\n".join([*texts, messages[first]["content"]])
            messages[first] = {**messages[first], "content": content}
        return messages

    def answered(self, reasoning: str, answer: str) -> str:
        """A perfect completion."""
        head, *middle, tail = template_parts(self.completion)
        return f"{head}{reasoning}{middle[0]}{answer}{tail}" if middle else f"{head}{answer}{tail}"

    def _asked(self, question: str) -> str:
        return self.question.replace("{question}", question)


def asking_for(completion: str) -> str:
    """The system prompt of the recipe, for a completion template."""
    shown = completion.replace("{reasoning}", "...").replace("{answer}", "...")
    return f"\nRespond in the following format:\n{shown}"


# The recipe's, which the script writes out; and the other format that the demo's model knows, also for models without
# a chat template
XML = PromptFormat(asking_for(XML_COT_FORMAT), opening=asking_for(XML_COT_FORMAT))
THINK = PromptFormat(asking_for(THINK_FORMAT), "<problem>\n{question}\n</problem>\n", THINK_FORMAT)

ASKED_FOR = {"boxed": r"\boxed{{answer}}", "hash": "#### {answer}", "final": "Answer: {answer}"}  # by their patterns
IN_A_RECIPE = ("system", "question", "completion", "opening", "chat", "pattern", "exemplars")
A_SHOT = "{question: What is 2 + 2?, reasoning: 2 + 2 = 4, answer: '4'}"  # of a mapping's `exemplars`


def choose(
    formats: Mapping[str, PromptFormat],
    exemplars: Sequence[Shot],
    prompt_format: str | Mapping[str, Any],
    system_prompt: str | None = None,
    answer_pattern: str | None = None,
    num_shots: int = 0,
) -> tuple[PromptFormat, Sequence[Shot]]:
    """The prompt format and the worked examples of a run.

    Args:
        formats: the script's, by name.
        exemplars: the script's worked examples.
        prompt_format: a name, or a mapping of a recipe with fields of PromptFormat and, if it likes, `exemplars`.
        system_prompt: replaces the format's system message and opening.
        answer_pattern: replaces the format's pattern, and its system prompt and completion with ones that ask for it.
        num_shots: how many of the worked examples each prompt holds.

    Raises:
        UserError: an unknown name or field, a template without its placeholder, or a pattern that does not find the
            answer of a perfect completion.
    """
    if isinstance(prompt_format, Mapping):
        chosen, exemplars = _of_mapping(prompt_format, exemplars)
    elif prompt_format in formats:
        chosen = formats[prompt_format]
    else:
        raise UserError(f"prompt_format: {prompt_format!r} is unknown; use {' or '.join(formats)}")
    pattern = answer_pattern or chosen.pattern
    try:
        check_pattern(pattern)
    except ValueError as error:
        raise UserError(f"answer_pattern: {str(error).removeprefix('answer pattern ')}") from None
    if pattern != chosen.pattern:
        chosen = dataclasses.replace(chosen, **_asking_for_pattern(pattern))
    if system_prompt is not None:
        chosen = dataclasses.replace(chosen, system=system_prompt, opening=_opening(system_prompt))
    _check(chosen)
    if num_shots > len(exemplars):
        raise UserError(f"num_shots: {num_shots} is more than the exemplars; use 0 to {len(exemplars)}")
    return chosen, exemplars[:num_shots]


def _opening(system: str) -> str:
    """A system prompt as the beginning of a plain text."""
    return f"{system}\n" if system.rstrip() == system != "" else system


def _of_mapping(fields: Mapping[str, Any], exemplars: Sequence[Shot]) -> tuple[PromptFormat, Sequence[Shot]]:
    for key, value in fields.items():
        if key not in IN_A_RECIPE:
            raise UserError(f"prompt_format: {key!r} is not a field of it{did_you_mean(str(key), IN_A_RECIPE)}")
        if key not in ("chat", "exemplars") and not isinstance(value, str):
            raise UserError(f"prompt_format: {key}: {value!r} is not a text; write it in quotes")
    templates = {key: value for key, value in fields.items() if key != "exemplars"}
    templates.setdefault("system", "")
    templates.setdefault("opening", _opening(templates["system"]))
    if not isinstance(templates.get("chat", True), bool):
        raise UserError(f"prompt_format: chat: {templates['chat']!r} is not true or false")
    if "exemplars" in fields:
        try:
            exemplars = [
                (str(shot["question"]), str(shot["reasoning"]), str(shot["answer"])) for shot in fields["exemplars"]
            ]
        except (KeyError, TypeError):
            shots = fields["exemplars"]
            raise UserError(f"prompt_format: exemplars: {shots}; write a list of texts such as {A_SHOT}") from None
    return PromptFormat(**templates), exemplars


def _asking_for_pattern(pattern: str) -> dict[str, Any]:
    """The fields of a format whose prompt asks for an answer of this pattern."""
    if pattern == "xml":
        return {field: getattr(XML, field) for field in ("system", "opening", "completion", "pattern")}
    if pattern == "text":
        system = "Reply with the answer only."
        return {"system": system, "opening": f"{system}\n\n", "completion": "{answer}", "pattern": pattern}
    mark = ASKED_FOR.get(pattern, pattern)
    system = f"Think step by step. Then write your final answer in this form:\n{mark.replace('{answer}', '...')}"
    completion = f"{{reasoning}}\n{mark}\n"
    return {"system": system, "opening": f"{system}\n\n", "completion": completion, "pattern": pattern}


def _check(chosen: PromptFormat) -> None:
    if "{question}" not in chosen.question:
        raise UserError(f"prompt_format: question {chosen.question!r} needs {{question}}")
    try:
        perfect = chosen.answered("1", "2")
    except ValueError as error:
        raise UserError(f"prompt_format: completion: {error}") from None
    if (read := extract_answer(perfect, chosen.pattern)) != "2":
        raise UserError(
            f"prompt_format: the pattern {chosen.pattern} reads {read!r} in the completion {perfect!r}, where the "
            "answer is 2; let it mark {answer}, or use another answer_pattern"
        )


def prefilled(prompt: str, completion: str) -> str:
    """The tags of a completion template that a rendered prompt ends in, so that no completion writes them itself.

    >>> prefilled("<|assistant|>\\n<think>\\n", THINK_FORMAT), prefilled("2 + 2?\\n<b>", THINK_FORMAT)
    ('<think>\\n', '')
    """
    tags = "|".join(map(re.escape, dict.fromkeys(re.findall(r"</?\w+>", completion))))
    ending = re.search(rf"(?:(?:{tags})\s*)+$", prompt) if tags else None
    return ending[0] if ending else ""


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
