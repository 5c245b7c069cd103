"""Prompt formats: templates of prompts and of perfect completions.

Chat models get messages, models without a chat template the same as one text. No prompt contains gold reasoning.
"""

import dataclasses
import itertools
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from exact_answers.marks import check_pattern, extract_answer
from grpo.core.checklist import Check, warn_if
from grpo.core.errors import UserError, did_you_mean
from grpo.core.text import digest
from rewards import THINK_FORMAT, XML_COT_FORMAT, template_parts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Message = dict[str, str]
SYSTEM = ("system", "developer")  # roles of a system message; few templates know the second
Prompt = list[Message] | str
TOKENIZED_AT_ONCE = 1000  # prompts: a tokenizer keeps tens of kilobytes for each until all are done
Shot = tuple[str, str, str]  # question, reasoning, answer


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


# The recipe's format, which the script repeats; and the second format of the demo's model, which also suits models
# without a chat template
XML = PromptFormat(asking_for(XML_COT_FORMAT), opening=asking_for(XML_COT_FORMAT))
THINK = PromptFormat(asking_for(THINK_FORMAT), "<problem>\n{question}\n</problem>\n", THINK_FORMAT)

# The script as it is shipped: PROMPT_FORMATS (and so SYSTEM_PROMPT) and EXEMPLARS. Recipes that stand alone use these,
# and anything else in the script was edited
SHIPPED = {"xml": XML, "think": THINK}
EXEMPLARS: list[Shot] = [
    (
        "What is the largest single-digit prime number?",
        "9 is divisible by 3 and 8 is divisible by 2, but 7 is prime.",
        "7",
    ),
    (
        "A bakery packs 6 rolls into each bag. It fills 8 bags and keeps 5 rolls. How many rolls did it bake?",
        "The bags hold 6 * 8 = 48 rolls. With the rolls it keeps, that is 48 + 5 = 53.",
        "53",
    ),
    (
        "Lea has $40. She buys 3 tickets for $9 each. How many dollars does she have left?",
        "The tickets cost 3 * 9 = 27 dollars. She has 40 - 27 = 13 dollars left.",
        "13",
    ),
]
ASKED_FOR = {"boxed": r"\boxed{{answer}}", "hash": "#### {answer}", "final": "Answer: {answer}"}  # by their patterns
IN_A_RECIPE = ("system", "question", "completion", "opening", "chat", "pattern", "exemplars")
A_SHOT = "{question: What is 2 + 2?, reasoning: 2 + 2 = 4, answer: '4'}"  # an item of `exemplars` in a recipe


class Chosen(NamedTuple):
    """The prompt format and the worked examples of a run, and a note for each edit or setting that is replaced."""

    prompt: PromptFormat
    shots: Sequence[Shot]
    notes: list[Check]


def choose_prompt(
    formats: Mapping[str, PromptFormat],
    exemplars: Sequence[Shot],
    prompt_format: str | Mapping[str, Any],
    system_prompt: str | None = None,
    answer_pattern: str | None = None,
    num_shots: int = 0,
    origin: Mapping[str, str] | None = None,
) -> Chosen:
    """Choose the prompt format and the worked examples of a run.

    A system prompt that somebody wrote is only replaced by one that somebody wrote for the run: by `system_prompt`,
    or by a format with words of its own. `answer_pattern` asks for answers in its own words where nobody wrote any.

    Args:
        formats: the script's formats, by name.
        exemplars: the script's worked examples.
        prompt_format: a name, or a mapping with fields of PromptFormat and, optionally, `exemplars`.
        system_prompt: replaces the format's system message and opening.
        answer_pattern: replaces the format's pattern, and its completion if the pattern does not read that.
        num_shots: the number of worked examples in each prompt.
        origin: setting → script, recipe or flag; the script by default.

    Raises:
        UserError: a name or field is unknown, a template lacks its placeholder, the pattern does not find the
            answer in a perfect completion, or of two prompts that were written one would be ignored.
    """
    places = {key: (origin or {}).get(key, "script") for key in ("prompt_format", "system_prompt", "num_shots")}
    notes, shots = list[Check](), exemplars
    if isinstance(prompt_format, Mapping):
        chosen, shots = _of_mapping(prompt_format, exemplars)
        has_words = bool(prompt_format.keys() & {"system", "opening"})
        label, place = "prompt_format", places["prompt_format"]
    elif prompt_format in formats:
        chosen, has_words, place = formats[prompt_format], True, "script"
        label = _edited(formats, prompt_format)
    else:
        raise UserError(f"prompt_format: {prompt_format!r} is unknown; use {' or '.join(formats)}")
    written = has_words and not _is_shipped(chosen)
    if system_prompt and os.path.isfile(system_prompt):
        file = shlex.quote(system_prompt)
        raise UserError(
            f'system_prompt: {system_prompt!r} is a file; for its text, use --system_prompt "$(cat {file})"'
        )
    if system_prompt is not None:
        if written and place == places["system_prompt"]:
            raise UserError(f"system_prompt: {label} is another system prompt, of the same {place}; drop one of them")
        if written:
            notes.append(
                Check("ok", "prompt", f"system_prompt ({places['system_prompt']}) replaces {label} ({place})")
            )
    notes += _ignored(formats, prompt_format, places, written or system_prompt is not None)

    pattern = answer_pattern or chosen.pattern
    try:
        check_pattern(pattern)
    except ValueError as error:
        raise UserError(f"answer_pattern: {str(error).removeprefix('answer pattern ')}") from None
    asked, keeps = pattern != chosen.pattern, written or system_prompt is not None
    if asked:
        name = "prompt_format" if isinstance(prompt_format, Mapping) else f"PROMPT_FORMATS[{prompt_format!r}]"
        chosen = _read_by(chosen, pattern, name, keeps)
    if system_prompt is not None:
        label, chosen = "system_prompt", dataclasses.replace(chosen, **_words(system_prompt))
    if asked and keeps:
        finding = f"{label} stays as it is written; answer_pattern {pattern} only says where the answer is"
        hidden = mark_of(pattern) not in chosen.system and not num_shots
        notes.append(warn_if(hidden, "prompt", finding, f"it never shows {mark_of(pattern)}: ask for that in it"))
    elif asked:
        notes.append(Check("ok", "prompt", f"answer_pattern {pattern} asks for answers in its own words"))
    _check(chosen)
    if num_shots > len(shots):
        raise UserError(f"num_shots: {num_shots} is more than the exemplars; use 0 to {len(shots)}")
    notes += _ignored_exemplars(exemplars, shots, num_shots, places)
    return Chosen(chosen, shots[:num_shots], notes)


def _read_by(prompt: PromptFormat, pattern: str, name: str, keep_words: bool) -> PromptFormat:
    """Return a format whose answers have this pattern, in a completion that it reads; with its words or the pattern's.

    Raises:
        UserError: somebody wrote a completion that the pattern does not read.
    """
    asking = _asking_for_pattern(pattern)
    if _reads(prompt, pattern):
        asking["completion"] = prompt.completion
    elif prompt.completion not in {shipped.completion for shipped in SHIPPED.values()}:
        raise UserError(
            f"answer_pattern: {pattern} does not find the answer in the completion of {name} ({prompt.completion!r}); "
            "change one of the two"
        )
    if keep_words:
        asking |= {"system": prompt.system, "opening": prompt.opening}
    return dataclasses.replace(prompt, **asking)


def _is_shipped(prompt: PromptFormat) -> bool:
    """True if a format's words are those of a shipped format."""
    words = {shipped.system for shipped in SHIPPED.values()}
    return prompt.system in words and prompt.opening in {*words, ""}


def _edited(formats: Mapping[str, PromptFormat], name: str) -> str:
    """Return what was edited of a format in the script: SYSTEM_PROMPT or PROMPT_FORMATS[name]; "" if nothing was."""
    shipped = SHIPPED.get(name)
    if formats[name] == shipped:
        return ""
    words = dataclasses.replace(formats[name], system=XML.system, opening=XML.opening)
    return "SYSTEM_PROMPT" if name == "xml" and words == shipped else f"PROMPT_FORMATS[{name!r}]"


def edits(formats: Mapping[str, PromptFormat], exemplars: Sequence[Shot]) -> list[str]:
    """Return the names of the script's formats and worked examples that were edited."""
    edited = [label for name in formats if (label := _edited(formats, name))]
    return edited if list(exemplars) == EXEMPLARS else [*edited, "EXEMPLARS"]


def _ignored(
    formats: Mapping[str, PromptFormat], chosen: str | Mapping[str, Any], places: Mapping[str, str], written: bool
) -> list[Check]:
    """Note the script's edited formats that this run does not use.

    Args:
        written: True if the run's own words replace them.

    Raises:
        UserError: a shipped format would replace an edited SYSTEM_PROMPT.
    """
    used = formats.get(chosen) if isinstance(chosen, str) else None
    unused = [name for name in formats if name != chosen and (used is None or formats[name].system != used.system)]
    edited = [label for name in unused if (label := _edited(formats, name))]
    place, name = places["prompt_format"], chosen if isinstance(chosen, str) else "a mapping without system"
    if edited and place != "recipe" and not written and "SYSTEM_PROMPT" in edited:
        raise UserError(
            f"prompt_format: {name} ({place}) would replace the edited SYSTEM_PROMPT; use --prompt_format xml, "
            "write the words as system_prompt, or restore SYSTEM_PROMPT"
        )
    name = f"prompt_format {chosen}" if isinstance(chosen, str) else "prompt_format"
    return [Check("ok", "prompt", f"{name} ({place}) replaces {' and '.join(edited)}")] if edited else []


def _ignored_exemplars(
    exemplars: Sequence[Shot], shots: Sequence[Shot], num_shots: int, places: Mapping[str, str]
) -> list[Check]:
    """Note edited worked examples that no prompt shows. Raise UserError if HYPERPARAMETERS has others, too."""
    if not exemplars or list(exemplars) == EXEMPLARS:
        return []
    if not num_shots:
        finding = f"EXEMPLARS is edited, and num_shots 0 ({places['num_shots']}) shows none of them"
        return [Check("warning", "exemplars", finding, "set num_shots")]
    if shots is exemplars:
        return []
    if places["prompt_format"] == "script":
        raise UserError("prompt_format: it has exemplars, and EXEMPLARS is edited; drop one of them")
    return [Check("ok", "exemplars", f"those of prompt_format ({places['prompt_format']}) replace EXEMPLARS")]


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


def _of_mapping(fields: Mapping[str, Any], exemplars: Sequence[Shot]) -> tuple[PromptFormat, Sequence[Shot]]:
    for key, value in fields.items():
        if key not in IN_A_RECIPE:
            raise UserError(f"prompt_format: {key!r} is not a field{did_you_mean(str(key), IN_A_RECIPE)}")
        if key not in ("chat", "exemplars") and not isinstance(value, str):
            raise UserError(f"prompt_format: {key}: {value!r} is not a text; write it in quotes")
    templates = {key: value for key, value in fields.items() if key != "exemplars"}
    templates.setdefault("system", "")
    templates = _words(templates["system"]) | templates
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
