r"""Does somebody else's judge find right what a run calls right? EleutherAI's lm-evaluation-harness judges it again.

    python benchmarks/independent_judge.py RUN [RUN …]            the answers that finished runs have saved
    python benchmarks/independent_judge.py --model RUN            also lets the harness itself ask the saved model
    python benchmarks/independent_judge.py --solutions FILE.jsonl GSM8K's own solutions, as if they were completions

It needs the harness (pip install lm-eval==0.4.13), in an environment of its own with requirements.txt. The rules are
those of the harness's task gsm8k: strict-match takes the number after the first `#### `, flexible-extract the last
number of the text; both compare it as text. Ours are strict and lenient (docs/evaluation.md).

A run in another format than --answer_pattern hash learns to write another mark, so that strict-match finds nothing in
it. Where a completion has the run's mark, strict-match gets the answer that is there, written as `#### …`: the column
"of #### answer", which is held against our strict rule.

Each disagreement gets a reason that has been checked: a change of the text after which both judges agree.
"""

import argparse
import contextlib
import importlib.util
import io
import itertools
import json
import logging
import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from bench_common import print_table

import rewards
from grpo.core.errors import MISTAKE, UserError
from grpo.core.redaction import printable
from grpo.data import prompts
from grpo.data.gold import gold_answers
from grpo.evaluation.inference import prompting
from grpo.rewarding.answers import gold_of, kind_of
from grpo.runs import report

# By filter, for each text: what the filter takes for the answer, and whether that is the gold answer
Verdicts = dict[str, list[tuple[str, bool]]]
Harness = Callable[[Sequence[str], Sequence[str]], Verdicts]  # of texts and gold answers


@dataclass(frozen=True)
class Answers:
    """The saved answers of a run to its held-out questions, `before` or `after` training, or of an evaluation `only`.

    Attributes:
        records: with `question`, `answer`, `completion`, `strict`, `lenient` and `truncated`.
        pattern: where the answer is in a completion.
    """

    name: str
    when: str
    records: list[dict[str, Any]]
    pattern: str

    def column(self, key: str) -> list[Any]:
        return [record[key] for record in self.records]


# --- Reading what is judged ---------------------------------------------------------------------------------------


def read_run(path: Path) -> list[Answers]:
    """The answers in a run directory; UserError where there are none that the harness's rules are made for."""
    facts = report.read_facts(path)
    pattern = (facts["record"].get("prompt") or {}).get("pattern", "xml")
    found = []
    for when, summary in facts["evaluations"].items():
        records = report.read_lines(path / f"completions_{when}.jsonl")
        if judge := summary.get("judge"):
            raise UserError(f"{str(path)!r} was judged by {judge}; only rewards.is_right is compared with the harness")
        for record in records:
            if "lenient" not in record:
                raise UserError(
                    f"{str(path)!r} holds no verdicts, since its rows have no gold answers; use one that does"
                )
            if kind_of(gold := record["answer"]) != "number":
                raise UserError(f"{str(path)!r} has the gold answer {gold!r}; the harness's gsm8k judges numbers only")
        if records:
            found.append(Answers(path.resolve().name, when, records, pattern))
    if not found:
        raise UserError(f"{str(path)!r} holds no answers (completions_*.jsonl); train or evaluate it first")
    return found


def read_solutions(path: Path) -> Answers:
    """A file of GSM8K with each gold solution as a completion."""
    texts = [str(row.get("answer")) for row in report.read_lines(path)]
    records = []
    for text, gold in zip(texts, gold_answers(texts), strict=True):
        if gold is None or "####" not in text:
            raise UserError(f"{str(path)!r} is not GSM8K's: the answer {text[-60:]!r} has no ####")
        verdicts = {name: rule.ours(text, gold, "hash") for name, rule in RULES.items()}
        records.append({"question": "", "answer": gold, "completion": text, "truncated": False, **verdicts})
    return Answers(path.name, "gold", records, "hash")


# --- The two judges -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rule:
    """A rule of ours (text, gold, pattern → right) and the harness's filter beside it, with the text that it gets."""

    ours: Callable[[str, str, str], bool]
    filter: str
    view: Callable[[str, str], str]


def _marked(text: str, pattern: str) -> str:
    answer = None if pattern == "hash" else rewards.find_answer(text, pattern)
    return text if answer is None else f"#### {answer}"


RULES = {  # by the column of the records
    "strict": Rule(lambda text, gold, pattern: rewards.extract_answer(text, pattern) == gold, "strict-match", _marked),
    "lenient": Rule(rewards.is_right, "flexible-extract", lambda text, _: text),
}


def gsm8k(rows: Sequence[dict[str, Any]], **own: Any) -> dict[str, Any]:
    """The installed harness's own task gsm8k, on these rows (`question`, `answer` with ####) instead of the Hub's."""
    import lm_eval.tasks
    import yaml
    from datasets import Dataset

    path = Path(lm_eval.tasks.__file__).parent / "gsm8k" / "gsm8k.yaml"
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    data = {"test": Dataset.from_list(list(rows))}
    # its examples come from the training split, which is not here
    local = {"custom_dataset": lambda **_: data, "training_split": None, "fewshot_split": None, "num_fewshot": 0}
    return config | local | own


def evaluate(model: Any, task: dict[str, Any], **arguments: Any) -> tuple[Verdicts, list[str]]:
    """What the harness finds, question by question, and the completions that the model gave it."""
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_defaults=False)  # so that it reads only this task
    found = simple_evaluate(model, tasks=[task], task_manager=manager, bootstrap_iters=0, **arguments)
    samples = sorted(found["samples"][task["task"]], key=lambda sample: sample["doc_id"])
    verdicts: Verdicts = {}
    for sample in samples:
        verdict = sample["filtered_resps"][0], sample["exact_match"] == 1
        verdicts.setdefault(sample["filter"], []).append(verdict)
    return verdicts, [sample["resps"][0][0] for sample in samples[:: len(verdicts)]]


def harness(texts: Sequence[str], golds: Sequence[str]) -> Verdicts:
    """The harness's verdicts on these texts: it runs as always, with a model that repeats them."""
    from lm_eval.models.dummy import DummyLM

    model = DummyLM()
    model.generate_until = lambda requests, **_: [texts[request.doc_id] for request in requests]
    rows = [{"question": "-", "answer": f"#### {gold}"} for gold in golds]
    with contextlib.redirect_stderr(io.StringIO()):  # its progress bars
        return evaluate(model, gsm8k(rows))[0]


# --- Comparing them -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Disagreement:
    """One text, on which a rule of ours and the harness's filter beside it disagree."""

    answers: Answers
    index: int  # of its record
    rule: str
    right: bool  # by our rule
    taken: str  # by the harness's filter

    @property
    def record(self) -> dict[str, Any]:
        return self.answers.records[self.index]


@dataclass(frozen=True)
class Compared:
    """The verdicts on some answers: ours as saved, the harness's on the same texts, and where they disagree."""

    answers: Answers
    as_written: Verdicts
    theirs: dict[str, list[bool]]  # by our rule, what its filter finds
    disagreements: list[Disagreement]


def compare(answers: Answers, harness: Harness) -> Compared:
    """Our verdicts and the harness's, on the same texts."""
    texts, golds = answers.column("completion"), answers.column("answer")
    as_written = harness(texts, golds)
    theirs, disagreements = {}, []
    for name, rule in RULES.items():
        views = [rule.view(text, answers.pattern) for text in texts]
        found = (as_written if views == texts else harness(views, golds))[rule.filter]
        theirs[name] = [right for _, right in found]
        for index, (ours, (taken, right)) in enumerate(zip(answers.column(name), found, strict=True)):
            if bool(ours) != right:
                disagreements.append(Disagreement(answers, index, name, bool(ours), taken))
    return Compared(answers, as_written, theirs, disagreements)


def kappa(ours: Sequence[bool], theirs: Sequence[bool]) -> float | None:
    """Cohen's kappa; None where both judges say the same of all, so that chance would agree as well."""
    from sklearn.metrics import cohen_kappa_score  # comes with the harness

    return float(cohen_kappa_score(ours, theirs)) if len({*ours, *theirs}) > 1 else None


# --- Why they disagree --------------------------------------------------------------------------------------------


def _until_answer(text: str, pattern: str) -> str:
    answer = rewards.find_answer(text, pattern)
    return text[: text.rfind(answer) + len(answer)] if answer else text


def _first_number(text: str, pattern: str) -> str:
    answer = rewards.extract_answer(text, pattern)
    number, at = re.match(r"-?[0-9](?:[0-9.,]*[0-9])?", answer), text.rfind(answer)
    return text[: at + number.end()] + text[at + len(answer) :] if number and at >= 0 else text


def _with_mark(text: str, pattern: str) -> str:
    mark = "<answer>{answer}</answer>" if pattern == "xml" else prompts.MARKS.get(pattern, pattern)
    return mark.replace("{answer}", text.strip()) if rewards.find_answer(text, pattern) is None else text


def _last_number(text: str, _: str) -> str:
    *_, number = "", *(found[0] for found in rewards.NUMBER.finditer(text))
    return number or text


def _computed(text: str, pattern: str) -> str:
    def value(found: re.Match[str]) -> str:
        number = rewards.number_value(found)
        return str(number) if found["below"] and number.denominator == 1 else found[0]

    answer = rewards.find_answer(text, pattern) or ""
    meaning = gold_of(answer)
    written = str(meaning.meaning.values[0]) if meaning.number else rewards.NUMBER.sub(value, answer or text)
    return text.replace(answer, written) if answer else written


def _as_share(text: str, _: str) -> str:
    return re.sub(r"([0-9]+(?:\.[0-9]+)?) ?%", lambda found: str(float(Fraction(found[1]) / 100)), text)


@dataclass(frozen=True)
class Reason:
    """Why the judges disagree by a rule, and a change of (text, pattern) that removes it."""

    rule: str
    says: str
    change: Callable[[str, str], str]
    changes_ours: bool = False  # our verdict becomes right; else the harness's becomes ours


def _sub(pattern: str, replacement: str) -> Callable[[str, str], str]:
    return lambda text, _: re.sub(pattern, replacement, text)


REASONS = [
    Reason(
        "lenient",
        "zeros: 5.0, 05 and 5 are one number to ours, three texts to the harness",
        _sub(r"(?<=[0-9])(?:\.0+|(\.[0-9]*[1-9])0+)(?![0-9])|(?<![0-9.,])0+(?=[1-9])", r"\1"),
    ),
    Reason("lenient", "a percentage, which only ours divides by 100", _as_share),
    Reason(
        "lenient",
        "punctuation that the harness takes for a number, or for a part of one",
        _sub(r"(?<![0-9])[$.,]+(?![0-9])|(?<=[0-9])[$.,]+(?![0-9])", " "),
    ),
    Reason(
        "lenient",
        "a comma that separates no thousands, which the harness removes",
        _sub(r"(?<=[0-9]),(?=[0-9])(?![0-9]{3}(?![0-9]))", " "),
    ),
    Reason(
        "lenient",
        "a minus behind a number or a word: a subtraction to ours, a sign to the harness",
        _sub(r"(?<=[0-9A-Za-z)\]%])-(?=[$0-9.])", " - "),
    ),
    Reason("lenient", "a power of a unit, which the harness takes for the number", _sub(r"\^\{?-?[0-9]+\}?", "")),
    Reason("lenient", "an expression such as 144/2 or 70 + 2, which only ours computes", _computed),
    Reason("lenient", "a number after the answer, which the harness takes", _until_answer),
    Reason(
        "lenient",
        "the last number is not alone (two answers, a negation, an expression): to ours it is no answer",
        _last_number,
        changes_ours=True,
    ),
    Reason("strict", "a dollar sign after ####, which strict-match does not accept", _sub(r"\$", "")),
    Reason("strict", "no single space after ####, which strict-match wants", _sub(r"####\s*", "#### ")),
    Reason(
        "strict",
        "several ####: strict-match takes the first, ours the last",
        lambda text, _: "".join(text.rpartition("####")[1:]) or text,
    ),
    Reason(
        "strict",
        "#### where the run's format has another mark",
        lambda text, pattern: text if pattern == "hash" else text.replace("####", ""),
    ),
    Reason("strict", "a number and no mark, which ours takes as it is", _with_mark),
    Reason(
        "strict",
        "thousands separators, which our strict rule does not ignore",
        _sub(r"(?<=[0-9]),(?=[0-9]{3}(?![0-9]))", ""),
        changes_ours=True,
    ),
    Reason("strict", "text after the number, which our strict rule does not ignore", _first_number, changes_ours=True),
]
OTHER_RULES = "the run was judged by other rules than today's"
UNEXPLAINED = "unexplained"


def explain(disagreements: Sequence[Disagreement], harness: Harness) -> list[str]:
    """A reason for each of them (or two), which has been checked; else UNEXPLAINED.

    A reason holds where the text without it changes the verdict of one judge, the one that it names, to the other's.
    """
    attempts = []  # which disagreement, the reason, the changed text, what both judges must say of it
    for number, found in enumerate(disagreements):
        text, pattern = found.record["completion"], found.answers.pattern
        attempts.append((number, OTHER_RULES, text, not found.right))
        known = [reason for reason in REASONS if reason.rule == found.rule]
        for reasons in [*itertools.combinations(known, 1), *itertools.combinations(known, 2)]:
            steps = [text]
            for reason in reasons:
                steps.append(reason.change(steps[-1], pattern))
            ours = {reason.changes_ours for reason in reasons}
            if len(set(steps)) == len(steps) and (ours == {False} or (ours == {True} and not found.right)):
                says = "; and ".join(reason.says for reason in reasons)
                attempts.append((number, says, steps[-1], found.right or ours == {True}))
    holding: dict[int, str] = {}
    for name, rule in RULES.items():
        own = [attempt for attempt in attempts if disagreements[attempt[0]].rule == name]
        cases = [(text, disagreements[n].record["answer"], disagreements[n].answers.pattern) for n, _, text, _ in own]
        views = [rule.view(text, pattern) for text, _, pattern in cases]
        theirs = harness(views, [gold for _, gold, _ in cases])[rule.filter] if own else []
        for (number, reason, _, wanted), case, (_, right) in zip(own, cases, theirs, strict=True):
            if rule.ours(*case) == right == wanted:
                holding.setdefault(number, reason)
    return [holding.get(number, UNEXPLAINED) for number in range(len(disagreements))]


# --- The harness asks the saved model ------------------------------------------------------------------------------


def load(run: Path, settings: dict[str, Any], trained: bool) -> Any:
    """The saved model in the harness's `hf` backend, in the number format of the run's evaluation."""
    import torch
    from lm_eval.models.huggingface import HFLM

    directory = str(run) if trained else settings["model_name_or_path"]
    own: dict[str, Any] = {"pretrained": directory}
    if (adapter := Path(directory) / "adapter_config.json").is_file():
        own = {"pretrained": json.loads(adapter.read_text())["base_model_name_or_path"], "peft": directory}
    autocast = "bfloat16" if settings["bf16"] else "float16" if settings["fp16"] else None
    return HFLM(
        **own,
        tokenizer=directory,
        device="cuda" if torch.cuda.is_available() and not settings["use_cpu"] else "cpu",
        dtype=settings["dtype"] or "auto",
        mixed_precision_dtype=autocast,
        batch_size=settings["per_device_eval_batch_size"],
        chat_template_args=settings["chat_template_kwargs"] or {},
    )


def ask_model(run: Path, answers: Answers) -> tuple[Verdicts, list[str]]:
    """What the harness finds when it asks the run's model these questions itself, greedily, and its completions.

    UserError unless its prompts are those of the run, token for token.
    """
    settings = report.read_facts(run)["settings"]
    prompt_format, shots = prompting(str(run)) or (None, [])
    if prompt_format is None:
        raise UserError(f"{str(run)!r} has no run.json, which says how its questions are asked")
    model = load(run, settings, trained=answers.when == "after")
    rows = [{"question": row["question"], "answer": f"#### {row['answer']}"} for row in answers.records]
    prompt_ids = prompts.tokenize(
        [prompt_format.prompt(row["question"], shots) for row in rows],
        model.tokenizer,
        settings["chat_template_kwargs"],
    )
    sample = model.generate_until

    def checked(requests: Sequence[Any], **kwargs: Any) -> list[str]:
        for request, ids in zip(requests, prompt_ids, strict=True):
            text = request.args[0]
            if model.tok_batch_encode([text])[0][0].tolist() != ids:
                raise UserError(f"{str(run)!r}: the harness's prompt has other tokens than the run's: {text[-200:]!r}")
        return sample(requests, **kwargs)

    model.generate_until = checked
    base = gsm8k([])
    own = {"generation_kwargs": base["generation_kwargs"] | {"max_gen_toks": settings["max_completion_length"]}}
    if prompt_format.chat:
        own |= {
            "doc_to_text": lambda row: prompt_format.question.replace("{question}", row["question"]),
            "num_fewshot": len(shots),
            "fewshot_config": {
                "sampler": "first_n",
                "samples": [
                    {"question": asked, "completion": prompt_format.answered(*said)} for asked, *said in shots
                ],
                "doc_to_target": lambda row: row["completion"],
            },
        }
    else:
        own |= {"doc_to_text": lambda row: prompt_format.prompt(row["question"], shots)}
    verdicts, texts = evaluate(
        model,
        gsm8k(rows, **own),
        system_instruction=prompt_format.system if prompt_format.chat else None,
        apply_chat_template=prompt_format.chat,
        fewshot_as_multiturn=prompt_format.chat,
    )
    return verdicts, [prompt_format.prefill + text for text in texts]


# --- Showing -------------------------------------------------------------------------------------------------------


def share(values: Sequence[Any]) -> str:
    return f"{100 * sum(map(bool, values)) / len(values):.1f}"


def table(compared: Sequence[Compared]) -> None:
    """Accuracy by each rule, and how often ours and the harness's agree."""
    rows = []
    for each in compared:
        answers, cells = each.answers, []
        for name, rule in RULES.items():
            ours = list(map(bool, answers.column(name)))
            theirs, chance = each.theirs[name], kappa(ours, each.theirs[name])
            same = share([one == other for one, other in zip(ours, theirs, strict=True)])
            written = [right for _, right in each.as_written[rule.filter]]
            cells += [share(ours), share(written), *([share(theirs)] if name == "strict" else []), same]
            cells.append("-" if chance is None else f"{chance:.3f}")
        rows.append([f"{answers.name}, {answers.when}", str(len(answers.records)), *cells])
    headings = ["", "answers", "strict", "strict-match", "of #### answer", "agree", "kappa"]
    headings += ["lenient", "flexible-extract", "agree", "kappa"]
    print_table("Accuracy and agreement in per cent, Cohen's kappa", headings, rows, width=160)


def disagreements(compared: Sequence[Compared], harness: Harness) -> None:
    """Every disagreement with its reason, and how often each reason holds."""
    found = [each for one in compared for each in one.disagreements]
    reasons = explain(found, harness)
    for each, reason in zip(found, reasons, strict=True):
        record, mine = each.record, "right" if each.right else "wrong"
        other = "wrong" if each.right else "right"
        end = " ".join(record["completion"].split())[-100:]
        print(
            f"{each.answers.name}, {each.answers.when}, answer {each.index + 1}: {mine} by {each.rule}, {other} by "
            f"{RULES[each.rule].filter}, which takes {each.taken!r}; gold {record['answer']!r}\n"
            f"  {reason}\n  {printable('…' + end)!r}{' (cut off)' if record['truncated'] else ''}"
        )
    print(f"{len(found)} disagreements" + (":" if found else ""))
    for reason, count in Counter(reasons).most_common():
        print(f"  {count:4d}  {reason}")


def show_asked(run: Path, answers: Answers, as_written: Verdicts) -> None:
    """The harness's own evaluation of the model beside the run's."""
    verdicts, texts = ask_model(run, answers)
    saved = answers.column("completion")
    same = [one == other for one, other in zip(saved, texts, strict=True)]
    stops = gsm8k([])["generation_kwargs"]["until"]
    ended = [any(one.startswith(other + stop) for stop in stops) for one, other in zip(saved, texts, strict=True)]
    rows = []
    for name, rule in RULES.items():
        ours = [
            rule.ours(text, gold, answers.pattern) for text, gold in zip(texts, answers.column("answer"), strict=True)
        ]
        rows.append([f"{name} (ours)", share(answers.column(name)), share(ours)])
    for name, found in verdicts.items():
        rows.append([name, *(share([right for _, right in each]) for each in (as_written[name], found))])
    headings = ["accuracy in per cent", "the run's completions", "the harness's"]
    print_table(f"{answers.name}: the harness asks the model, greedily", headings, rows)
    print(f"Prompts: all {len(texts)} token for token the run's. Completions: {share(same)} % identical, ", end="")
    print(f"{sum(ended)} ended by gsm8k's own stop texts, {len(texts) - sum(same) - sum(ended)} others differ.")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN", help="directory of a finished run")
    parser.add_argument("--solutions", nargs="+", type=Path, default=[], metavar="FILE", help="GSM8K's rows as JSONL")
    parser.add_argument("--model", action="store_true", help="let the harness also ask the saved model of each RUN")
    args = parser.parse_args(argv)
    try:
        if not args.runs and not args.solutions:
            raise UserError("name a RUN or --solutions FILE; --help shows how")
        if args.model and not args.runs:
            raise UserError("--model needs a RUN, whose model it asks")
        if importlib.util.find_spec("lm_eval") is None:
            raise UserError("needs the harness, in an environment of its own: pip install lm-eval==0.4.13")
        for path in args.solutions:
            if not path.is_file():
                raise UserError(f"--solutions {str(path)!r} is no file")
        judge(args.runs, args.solutions, args.model)
    except UserError as error:
        print(f"error: independent_judge: {error}", file=sys.stderr)
        return MISTAKE
    return 0


def judge(runs: Sequence[Path], solutions: Sequence[Path], ask: bool) -> None:
    by_run = {run: read_run(run) for run in runs}
    answers = [*itertools.chain(*by_run.values()), *map(read_solutions, solutions)]
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    compared = [compare(each, harness) for each in answers]
    table(compared)
    disagreements(compared, harness)
    for run, found in by_run.items() if ask else ():
        last = found[-1]
        as_written = next(each.as_written for each in compared if each.answers is last)
        show_asked(run, last, as_written)


if __name__ == "__main__":
    sys.exit(main())
