"""Adapt a run's prompts to its tokenizer and chat template, so that the model and the rewards see all of the text.

Preflight's table lists each change.
"""

import copy
import dataclasses
import json
import re
from collections.abc import Collection
from typing import Any

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from grpo.core.checklist import Check
from grpo.core.errors import UserError, one_line, reason_of
from grpo.core.text import shorten
from grpo.task import prompts
from grpo.task.prompts import PromptFormat
from grpo.task.task import Task

QUESTION, SYSTEM, ANSWER = "What is 2 + 2?", "Be brief.", "It is 4."
ADD_END = "make that an end token (eos_token in tokenizer_config.json, or one more eos_token_id in "
ADD_END += "generation_config.json), or let the template write one"  # if `unended`


def fit_to_template(
    task: Task, tokenizer: PreTrainedTokenizerBase, kwargs: dict
) -> tuple[Task, PreTrainedTokenizerBase]:
    """Return the task with prompts for this chat template and a note for each change, and a tokenizer that keeps tags.

    Args:
        kwargs: GRPOConfig's chat_template_kwargs.

    Raises:
        UserError: the template raises for every question, or drops it.
    """
    notes, name = list(task.notes), tokenizer.name_or_path
    if (end := str(tokenizer.eos_token)) in task.perfect("", ""):
        finding = f"{end} is the tokenizer's end token, which decoding drops, so that rewards never see it"
        notes.append(
            Check("warning", "tags", finding, "use another prompt_format, or a tokenizer with another eos_token")
        )
    tokenizer, tags = keeping_tags(tokenizer, task.perfect("", ""))
    if tags:
        finding = f"{', '.join(tags)} are special tokens of the tokenizer, which decoding would drop"
        notes.append(Check("ok", "tags", f"{finding}; here they are ordinary ones, so that rewards see them"))
    if unread := [key for key in kwargs if not re.search(rf"\b{re.escape(key)}\b", str(tokenizer.chat_template))]:
        finding = f"the chat template of {name} does not read {', '.join(unread)}"
        notes.append(Check("warning", "chat_template_kwargs", finding, "drop it, or use the template's own name"))
    chosen = task.prompt
    if tokenizer.chat_template is None:
        chosen = dataclasses.replace(chosen, chat=False)
    where = f"model_name_or_path: the chat template of {name!r}"
    where += f" with chat_template_kwargs {kwargs}" if kwargs else ""
    if chosen.chat and (why := _refusal(chosen, tokenizer, kwargs)):
        apart = dataclasses.replace(chosen, system_apart=False)
        if not _refusal(apart, tokenizer, kwargs):
            chosen = apart
            finding = f"the chat template has no system message ({why}): it is part of the first user message"
            notes.append(Check("ok", "system prompt", finding))
    remedy = "fix its chat_template.jinja, or use plain text (a prompt_format with chat: false)"
    with one_line(f"{where} refuses a question (", f"); {remedy}"):
        rendered = prompts.rendered(chosen.prompt(QUESTION), tokenizer, kwargs)
    if QUESTION not in rendered:
        raise UserError(f"{where} leaves the question out; {remedy}")
    if chosen.chat and task.shots and not _shows(chosen, task, tokenizer, kwargs):
        chosen = dataclasses.replace(chosen, shots_apart=False)
        finding = "the chat template rewrites earlier answers: worked examples are part of the user message"
        if not _shows(chosen, task, tokenizer, kwargs):
            raise UserError(f"{where} changes the worked examples, even in the user message; use num_shots 0")
        notes.append(Check("ok", "worked examples", finding))
    chosen = dataclasses.replace(chosen, prefill=prompts.prefilled(rendered, chosen.completion))
    return dataclasses.replace(task, prompt=chosen, notes=notes), tokenizer


def _refusal(chosen: PromptFormat, tokenizer: PreTrainedTokenizerBase, kwargs: dict) -> str:
    """Return why a template does not accept a system message, or that it drops it; "" if it accepts one."""
    chosen = dataclasses.replace(chosen, system=chosen.system or SYSTEM)  # rows may have one
    try:
        rendered = prompts.rendered(chosen.prompt(QUESTION), tokenizer, kwargs)
    except Exception as error:  # a template may raise anything
        return reason_of(error)
    return "" if _words(chosen.system) in _words(rendered) else "it drops it"


def _shows(chosen: PromptFormat, task: Task, tokenizer: PreTrainedTokenizerBase, kwargs: dict) -> bool:
    """True if a rendered prompt contains every worked example unchanged."""
    try:
        rendered = _words(prompts.rendered(chosen.prompt(QUESTION, task.shots), tokenizer, kwargs))
    except Exception:  # it may raise for an unexpected conversation
        return False
    return all(_words(chosen.answered(reasoning, answer)) in rendered for _, reasoning, answer in task.shots)


def _words(text: str) -> str:
    return " ".join(text.split())


def unended(tokenizer: PreTrainedTokenizerBase, ends: Collection[int], kwargs: dict) -> str:
    """Describe how the chat template ends an answer, if no token there ends a completion; "" if one does.

    Args:
        ends: the tokens that end a completion.
        kwargs: GRPOConfig's chat_template_kwargs.
    """
    if tokenizer.chat_template is None:
        return ""
    chat = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": ANSWER}]
    try:
        rendered = str(tokenizer.apply_chat_template(chat, tokenize=False, **kwargs))
    except Exception:  # it may raise for an unexpected conversation
        return ""
    _, written, end = rendered.rpartition(ANSWER)
    if not written or set(tokenizer.encode(end, add_special_tokens=False)) & set(ends):
        return ""
    tokens = " or ".join(repr(tokenizer.decode(token)) for token in ends)
    return (
        f"the chat template ends an answer with {repr(shorten(end)) if end.strip() else 'nothing'}, not with {tokens}"
    )


def keeping_tags(tokenizer: PreTrainedTokenizerBase, completion: str) -> tuple[PreTrainedTokenizerBase, list[str]]:
    """Return a tokenizer for which special tokens of a perfect completion are ordinary, and their names.

    Decoding drops special ones: the model's tags would vanish before rewards, evaluation and `ask` see them. Ids stay
    the same; the end token and the padding token stay special. A tokenizer without a tokenizer.json is returned as it
    is, and preflight's test completions show the tags that decoding drops.
    """
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    ends = (tokenizer.eos_token, tokenizer.pad_token, tokenizer.bos_token)
    tags = [token for token in tokenizer.all_special_tokens if token in completion and token not in ends]
    if not tags or backend is None:
        return tokenizer, []
    state = json.loads(backend.to_str())
    for token in state["added_tokens"]:
        token["special"] &= token["content"] not in tags
    changed: Any = copy.copy(tokenizer)
    changed._tokenizer = Tokenizer.from_str(json.dumps(state))  # it has no setter
    return changed, tags
