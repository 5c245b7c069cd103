"""Prompt formats: templates of prompts and of perfect completions.

Chat models get messages, models without a chat template the same as one text. No prompt contains gold reasoning.
"""

import dataclasses
import itertools
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from exact_answers.marks import check_pattern, extract_answer
from grpo.core.checklist import Check, warn_if
from grpo.core.errors import UserError, did_you_mean
from grpo.core.text import digest, shorten
from rewards import THINK_FORMAT, XML_COT_FORMAT, template_parts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Message = dict[str, str]
SYSTEM = ("system", "developer")  # roles of a system message; few templates know the second
Prompt = list[Message] | str
TOKENIZED_AT_ONCE = 1000  # prompts: a tokenizer keeps tens of kilobytes for each until all are done
Shot = tuple[str, str, str]  # question, reasoning, answer
PARTS = ("question", "reasoning", "answer")  # of a worked example in a recipe


@dataclasses.dataclass(frozen=True)
class PromptFormat:
    """Templates of the prompt and of a perfect completion. Only their placeholders are replaced.

    >>> plain = dataclasses.replace(THINK, chat=False)
    >>> plain.prompt("2 + 2?")
    '<problem>\\n2 + 2?\\n</problem>\\n'
    """

    system: str  # the system message of a chat
    question: str = "{question}"  # the user's message, with {question}
    completion: str = XML_COT_FORMAT  # a perfect completion, with {reasoning} and {answer}, or {answer} alone
    opening: str = ""  # the beginning of a plain text; replaces a system message
    chat: bool = True  # False: prompts are plain text, not chat messages
    pattern: str = "xml"  # answer pattern for `extract_answer`
    prefill: str = ""  # start of completions that a chat template adds to the prompt, such as `<think>\\n`
    system_apart: bool = True  # False: the first user message contains the system message
    shots_apart: bool = True  # False: the user message contains the worked examples, as templates may rewrite answers

    def prompt(self, question: str | list[Message], shots: Sequence[Shot] = ()) -> Prompt:
        """Build the prompt of a question, with worked examples before it.

        Args:
            question: a text, for the template; or a conversation, which stays as it is. It gets this format's system
                prompt unless it has its own.
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
        """Build the messages of a chat. Put parts without messages of their own before the first user's text."""
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
        """Build a perfect completion."""
        head, *middle, tail = template_parts(self.completion)
        return f"{head}{reasoning}{middle[0]}{answer}{tail}" if middle else f"{head}{answer}{tail}"

    def _asked(self, question: str) -> str:
        return self.question.replace("{question}", question)


def asking_for(completion: str) -> str:
    """Return the recipe's system prompt for a completion template."""
    shown = completion.replace("{reasoning}", "...").replace("{answer}", "...")
    return f"\nRespond in the following format:\n{shown}"


# The recipe's format, which is the script's unless that is edited; and the demo's second one, which also suits models
# without a chat template
XML = PromptFormat(asking_for(XML_COT_FORMAT), opening=asking_for(XML_COT_FORMAT))
THINK = PromptFormat(asking_for(THINK_FORMAT), "<problem>\n{question}\n</problem>\n", THINK_FORMAT)
FORMATS = {"xml": XML, "think": THINK}
ASKED_FOR = {"boxed": r"\boxed{{answer}}", "hash": "#### {answer}", "final": "Answer: {answer}"}  # by their patterns
IN_A_RECIPE = ("system", "question", "completion", "opening", "chat", "pattern")
A_SHOT = "{question: What is 2 + 2?, reasoning: 2 + 2 = 4, answer: '4'}"  # an item of `exemplars` in a recipe


def resolve(
    prompt_format: PromptFormat | Mapping[str, Any] | str,
    system_prompt: str | None = None,
    answer_pattern: str | None = None,
    shots: Sequence[Shot] = (),
) -> tuple[PromptFormat, list[Check]]:
    """Return the prompt format that a run's settings describe, with a note for words that stay or are replaced.

    Args:
        prompt_format: a format, its fields, or a name in FORMATS.
        system_prompt: replaces the format's system message and opening.
        answer_pattern: replaces the format's pattern, and its completion if the pattern does not read that. It also
            asks for answers in its own words, unless somebody wrote the format's: those of FORMATS are nobody's.
        shots: the worked examples in each prompt.

    Raises:
        UserError: a name or field is unknown, a template lacks its placeholder, or the pattern does not find the
            answer in a perfect completion.
    """
    if isinstance(prompt_format, str):
        if prompt_format not in FORMATS:
            raise UserError(f"prompt_format: {prompt_format!r} is unknown; use {' or '.join(FORMATS)}")
        chosen = FORMATS[prompt_format]
    else:
        chosen = prompt_format if isinstance(prompt_format, PromptFormat) else _of_mapping(prompt_format)
    has_words = not isinstance(prompt_format, Mapping) or bool(prompt_format.keys() & {"system", "opening"})
    nobodys = {shipped.system for shipped in FORMATS.values()}
    written = has_words and not (chosen.system in nobodys and chosen.opening in {*nobodys, ""})
    pattern = answer_pattern or chosen.pattern
    try:
        check_pattern(pattern)
    except ValueError as error:
        raise UserError(f"answer_pattern: {str(error).removeprefix('answer pattern ')}") from None
    if system_prompt and os.path.isfile(system_prompt):
        file = shlex.quote(system_prompt)
        raise UserError(
            f'system_prompt: {system_prompt!r} is a file; for its text, use --system_prompt "$(cat {file})"'
        )
    notes, asked, keeps = list[Check](), pattern != chosen.pattern, written or system_prompt is not None
    label = "prompt_format" if system_prompt is None else "system_prompt"
    if written and system_prompt is not None:
        notes.append(Check("ok", "prompt", f"system_prompt replaces that of prompt_format: {words_of(chosen)}"))
    if asked:
        chosen = _read_by(chosen, pattern, keeps)
    if system_prompt is not None:
        chosen = dataclasses.replace(chosen, **_words(system_prompt))
    if asked and keeps:
        finding = f"{label} stays as it is written; answer_pattern {pattern} only says where the answer is"
        hidden = mark_of(pattern) not in chosen.system and not shots
        notes.append(warn_if(hidden, "prompt", finding, f"it never shows {mark_of(pattern)}: ask for that in it"))
    elif asked:
        notes.append(Check("ok", "prompt", f"answer_pattern {pattern} asks for answers in its own words"))
    _check(chosen)
    return chosen, notes


def shots_of(exemplars: Any, num_shots: int) -> list[Shot]:
    """Return the first `num_shots` worked examples of the setting `exemplars`.

    Args:
        exemplars: a list of (question, reasoning, answer), or of mappings with these keys.

    Raises:
        UserError: an exemplar lacks a part, or there are fewer.
    """
    shots: list[Shot] = []
    for shot in exemplars if isinstance(exemplars, list | tuple) else [exemplars]:
        parts = [shot.get(part) for part in PARTS] if isinstance(shot, Mapping) else shot
        if not isinstance(parts, list | tuple) or len(parts) != len(PARTS) or None in parts:
            raise UserError(f"exemplars: {shot!r} is not a worked example; write texts such as {A_SHOT}")
        question, reasoning, answer = map(str, parts)
        shots.append((question, reasoning, answer))
    if num_shots > len(shots):
        raise UserError(f"num_shots: {num_shots} is more than the exemplars; use 0 to {len(shots)}")
    return shots[:num_shots]


def words_of(prompt: PromptFormat) -> str:
    """Return the beginning of a format's words, for a line of preflight's table."""
    return shorten(prompt.system or prompt.opening or prompt.question, 60)


def _read_by(prompt: PromptFormat, pattern: str, keep_words: bool) -> PromptFormat:
    """Return a format whose answers have this pattern, in a completion that it reads; with its words or the pattern's.

    Raises:
        UserError: somebody wrote a completion that the pattern does not read.
    """
    asking = _asking_for_pattern(pattern)
    if _reads(prompt, pattern):
        asking["completion"] = prompt.completion
    elif prompt.completion not in {shipped.completion for shipped in FORMATS.values()}:
        raise UserError(
            f"answer_pattern: {pattern} does not find the answer in the completion of prompt_format "
            f"({prompt.completion!r}); change one of the two"
        )
    if keep_words:
        asking |= {"system": prompt.system, "opening": prompt.opening}
    return dataclasses.replace(prompt, **asking)


def hashes(prompt: PromptFormat, shots: Sequence[Shot]) -> dict[str, str]:
    """Hash each part of the prompt, by a label for people: no setting has its text."""
    return {
        "system prompt": digest(prompt.system, prompt.opening),
        "question template": digest(prompt.question),
        "completion template": digest(prompt.completion, prompt.pattern),
        "exemplars": digest(*(text for shot in shots for text in shot)),
    }


def _words(system: str) -> dict[str, Any]:
    """Return a system prompt as the fields of a format: the message, and the beginning of a plain text."""
    return {"system": system, "opening": f"{system}\n" if system.rstrip() == system != "" else system}


def _of_mapping(fields: Mapping[str, Any]) -> PromptFormat:
    for key, value in fields.items():
        if key not in IN_A_RECIPE:
            raise UserError(f"prompt_format: {key!r} is not a field{did_you_mean(str(key), IN_A_RECIPE)}")
        if key != "chat" and not isinstance(value, str):
            raise UserError(f"prompt_format: {key}: {value!r} is not a text; write it in quotes")
    templates = {"system": "", **fields}
    templates = _words(templates["system"]) | templates
    if not isinstance(templates.get("chat", True), bool):
        raise UserError(f"prompt_format: chat: {templates['chat']!r} is not true or false")
    return PromptFormat(**templates)


def _asking_for_pattern(pattern: str) -> dict[str, Any]:
    """Return the fields of a format whose prompt asks for answers with this pattern."""
    if pattern == "xml":
        return {field: getattr(XML, field) for field in ("system", "opening", "completion", "pattern")}
    if pattern == "text":
        system = "Reply with the answer only."
        return {"system": system, "opening": f"{system}\n\n", "completion": "{answer}", "pattern": pattern}
    mark = ASKED_FOR.get(pattern, pattern)
    system = f"Think step by step. Then write your final answer in this form:\n{mark.replace('{answer}', '...')}"
    completion = f"{{reasoning}}\n{mark}\n"
    return {"system": system, "opening": f"{system}\n\n", "completion": completion, "pattern": pattern}


def mark_of(pattern: str) -> str:
    """Return the mark before an answer that a prompt has to ask for.

    >>> [mark_of(pattern) for pattern in ("xml", "boxed", "hash", "final", "Result: {answer}", "text")]
    ['<answer>', '\\\\boxed{', '####', 'Answer:', 'Result:', '']
    """
    template = {"xml": "<answer>{answer}", "text": "{answer}", **ASKED_FOR}.get(pattern, pattern)
    return template.partition("{answer}")[0].strip()


def _reads(prompt: PromptFormat, pattern: str) -> bool:
    """True if a pattern finds the answer in a format's perfect completion."""
    try:
        return extract_answer(prompt.answered("1", "2"), pattern) == "2"
    except ValueError:  # a template without its placeholders, which `_check` refuses
        return True


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
    """Return the part of a completion template with which a rendered prompt ends, so that completions lack it.

    >>> prefilled("<|assistant|>\\n<think>\\n", THINK_FORMAT), prefilled("2 + 2?\\n<b>", THINK_FORMAT)
    ('<think>\\n', '')
    """
    tags = "|".join(map(re.escape, dict.fromkeys(re.findall(r"</?\w+>", completion))))
    ending = re.search(rf"(?:(?:{tags})\s*)+$", prompt) if tags else None
    return ending[0] if ending else ""


def last_text(prompt: Prompt) -> str:
    """Return the text of a prompt, or of a conversation's last message."""
    return prompt if isinstance(prompt, str) else prompt[-1]["content"]


def rendered(prompt: Prompt, tokenizer: "PreTrainedTokenizerBase", kwargs: dict | None = None) -> str:
    """Render a prompt as text; a chat with the template's special tokens, up to the start of the assistant's turn."""
    if isinstance(prompt, str):
        return prompt
    return str(tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False, **(kwargs or {})))


def tokenized(
    prompts: Iterable[Prompt], tokenizer: "PreTrainedTokenizerBase", kwargs: dict | None = None
) -> Iterator[list[int]]:
    """Yield the ids of each prompt, a chat's up to the start of the assistant's turn: those that TRL generates from.

    `kwargs` are GRPOConfig's `chat_template_kwargs`.
    """
    rest = iter(prompts)
    while batch := list(itertools.islice(rest, TOKENIZED_AT_ONCE)):
        if isinstance(batch[0], str):
            encoded: Any = tokenizer(text=batch, verbose=False)  # preflight warns of long prompts
        else:
            chats: Any = batch
            options: dict[str, Any] = {"add_generation_prompt": True, "tokenize": True, "return_dict": True}
            options["tokenizer_kwargs"] = {"verbose": False}
            encoded = tokenizer.apply_chat_template(chats, **options, **(kwargs or {}))
        yield from encoded["input_ids"]
