"""Properties of the pure parts on any input, with references that are simple and slow. See README.md, "Fuzzing"."""

import copy
import csv
import dataclasses
import itertools
import json
import math
import operator
import pickle
import re
import tempfile
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from helpers_runs import examples
from helpers_texts import ANY_TEXT
from hypothesis import assume, given
from hypothesis import strategies as st

from grpo.config.geometry import solve
from grpo.core import redaction
from grpo.core.errors import UserError
from grpo.data import dataset, sources
from grpo.data.prompts import THINK
from grpo.evaluation import comparison, evaluate, xray
from grpo.rewarding import stages
from grpo.rewarding.arithmetic import is_true, is_verified, verified_lines
from grpo.runs import record as records
from grpo.training import micro_batches as schedule
from grpo.training import packing
from rewards import (
    REWARD_FUNCS,
    XML_COT_FORMAT,
    extract_hash_answer,
    extract_xml_answer,
    has_soft_format,
    has_strict_format,
    is_numerically_correct,
    last_number,
)

# --- Extraction and formats


@examples(400)
@given(ANY_TEXT)
def test_what_is_extracted_is_the_stripped_text_between_the_last_tags(text):
    found = extract_xml_answer(text)
    reference = re.search(r"\A(?:.*<answer>)?(.*?)(?:</answer>.*)?\Z", text, re.DOTALL)[1]
    assert found == reference.strip() and found in text
    assert extract_xml_answer(found) == found  # nothing is left to extract
    assert "<answer>" not in found and "</answer>" not in found


@examples(300)
@given(st.lists(st.sampled_from(["####", "#", " ", "\n", "$", ",", "1", "-", "x"]), max_size=14).map("".join))
def test_a_gold_answer_is_what_stands_between_the_first_two_marks(text):
    parts = text.split("####")
    expected = re.sub("[,$]", "", parts[1].strip()) if len(parts) > 1 else None
    assert extract_hash_answer(text) == expected


PARTS = st.sampled_from(["<a>", "</a>", "<b>", "</b>", "x", "\n", " ", "\n\n", "(", ".*"])
JOINED = st.lists(PARTS, max_size=4).map("".join)


@st.composite
def templates_and_texts(draw):
    """A template, and a text that is often it, filled in, with a few characters changed."""
    xml = ("<reasoning>\n", "\n</reasoning>\n<answer>\n", "\n</answer>\n")
    head, middle, tail = draw(st.one_of(st.just(xml), st.tuples(JOINED, JOINED.filter(str.strip), JOINED)))
    pieces = [head, draw(JOINED), middle, draw(JOINED), tail, draw(st.sampled_from(["", "\n", "\n\n", "x"]))]
    for _ in range(draw(st.integers(0, 2))):
        place = draw(st.integers(0, len(pieces) - 1))
        piece = pieces[place]
        pieces[place] = draw(st.sampled_from([piece.strip(), "", piece.replace("\n", " "), piece * 2]))
    return f"{head}{{reasoning}}{middle}{{answer}}{tail}", "".join(pieces)


@examples(800)
@given(templates_and_texts())
def test_formats_are_the_quadratic_expressions_of_their_templates(case):
    template, text = case
    head, rest = template.split("{reasoning}")
    middle, tail = rest.split("{answer}")
    strict = re.escape(head) + ".*?" + re.escape(middle) + ".*?" + re.escape(tail) + "$"
    loose = r"\s*".join(re.escape(word) for word in middle.split())
    lead = head[: len(head) - len(head.lstrip())] if head.strip() else ""
    soft = f"(?:{re.escape(lead)})?" + re.escape(head.strip()) + ".*?" + loose + ".*?" + re.escape(tail.strip())
    assert has_strict_format(text, template) == bool(re.match(strict, text, re.DOTALL))
    assert has_soft_format(text, template) == bool(re.match(soft, text, re.DOTALL))
    assert has_soft_format(text, template) or not has_strict_format(text, template)


# --- Rewards

RANGES = {  # lowest and highest value, and what is between them if not everything
    "xmlcount": (-math.inf, 0.5021),
    "soft_format": (0, 0.5, {0, 0.5}),
    "strict_format": (0, 0.5, {0, 0.5}),
    "int": (0, 0.5, {0, 0.5}),
    "correctness": (0, 2, {0, 2}),
    "signed_correctness": (-1, 1, {-1, 1}),
    "numeric_correctness": (0, 2, {0, 2}),
    "step_verified": (0, 1, {0, 0.2, 0.4, 0.6, 0.8, 1}),
    "incremental_format": (-math.inf, 1),
    "length": (0, 1),
    "overlong": (-1, 0),
    "repetition": (-1, 0),
    "style": (-0.5, 0),
    "debug": (1, 1),
}
OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}


@st.composite
def thoughts(draw):
    """One line of arithmetic, wrong every third time."""
    a, b, sign = draw(st.integers(0, 99)), draw(st.integers(0, 9)), draw(st.sampled_from("+-*"))
    return f"<think>\n{a} {sign} {b} = {OPERATORS[sign](a, b) + draw(st.sampled_from([0, 0, 1]))}\n</think>\n"


ROLLOUTS = st.lists(
    st.tuples(st.one_of(ANY_TEXT, thoughts()), st.sampled_from(["7", "", "-3", "x", "1200"]), st.integers(0, 900)),
    min_size=1,
    max_size=5,
)


def chat(text):
    return [{"role": "assistant", "content": text}]


@examples(120)
@given(ROLLOUTS, st.randoms(use_true_random=False))
def test_every_reward_judges_each_completion_by_itself(rollout, random):
    """In its range, alone as in a batch, in any order, as text or chat, again the same, and its input left alone."""
    texts, golds, lengths = map(list, zip(*rollout, strict=True))
    columns = {
        "answer": golds,
        "completion_ids": [[1] * length for length in lengths],
        "prompts": ["3 + 40?"] * len(texts),
    }
    before = copy.deepcopy((texts, columns))
    order = list(range(len(texts)))
    random.shuffle(order)
    shuffled = {key: [column[place] for place in order] for key, column in columns.items()}
    for name, reward in REWARD_FUNCS.items():
        values = reward(texts, **columns)
        low, high, *steps = RANGES[name.removesuffix("_reward_func")]
        assert len(values) == len(texts) and all(type(value) is float and math.isfinite(value) for value in values)
        assert all(low <= value <= high and value in (steps or [values])[0] for value in values), (name, values)
        assert reward([texts[place] for place in order], **shuffled) == [values[place] for place in order], name
        assert (
            reward(list(map(chat, texts)), **columns | {"prompts": list(map(chat, columns["prompts"]))}) == values
        ), name
        assert pickle.loads(pickle.dumps(reward))(texts, **columns) == values, name
        alone = [
            reward([text], **{key: [column[place]] for key, column in columns.items()})
            for place, text in enumerate(texts)
        ]
        assert [value for (value,) in alone] == values, name
    assert (texts, columns) == before
    assert {f"{name}_reward_func" for name in RANGES} == set(REWARD_FUNCS)


# --- Numbers


@st.composite
def numbers(draw):
    """A number, and one of the ways in which it is written."""
    whole = draw(st.one_of(st.integers(0, 2000), st.integers(0, 10**15)))
    sign = draw(st.sampled_from(["", "", "-", "\u2212"]))
    decimals = draw(
        st.one_of(st.just(""), st.from_regex(r"[0-9]{1,6}", fullmatch=True).map(lambda digits: f".{digits}"))
    )
    value = Fraction(f"{whole}{decimals}")
    below = draw(st.integers(1, 999)) if not decimals and draw(st.booleans()) else None
    text = f"{whole:,}" if draw(st.booleans()) else str(whole)
    dollar = draw(st.sampled_from(["", "", "$"]))
    text = draw(
        st.sampled_from([f"{sign}{dollar}{text}", f"{dollar}{sign}{text}" if sign == "-" else f"{sign}{dollar}{text}"])
    )
    text += decimals + (f"/{below}" if below else "")
    value = value / below if below else value
    before = draw(st.sampled_from(["", "x = ", "about ", "**", "(", "\\boxed{", "so: ", "1, 2, ", "7-3 is "]))
    after = draw(
        st.sampled_from(["", ".", "%", " apples", " km^2", "**", ")", "}", ", I think", "!", " \u00d7", " m^{-3}"])
    )
    return (-value if sign else value), before + text + after


@examples(500)
@given(numbers())
def test_a_number_is_read_however_it_is_written(case):
    value, text = case
    assert last_number(text) == value
    assert last_number("12 of 34\n" + text) == value and last_number(text + " or so, in all") == value


@examples(300)
@given(numbers(), numbers(), ANY_TEXT)
def test_lenient_correctness_is_equality_of_numbers(one, other, reasoning):
    (value, text), (second, gold) = one, other
    answer = f"{reasoning}<answer>{text}</answer>"
    assert is_numerically_correct(answer, gold) == (value == second)
    assert is_numerically_correct(f"<answer>{gold}</answer>", text) == (value == second)
    assert is_numerically_correct(answer, text)


@examples(300)
@given(st.text("0123456789.,/-$%^ ()x\n\u2212", max_size=40), st.text("ab \n.", max_size=20))
def test_the_last_number_is_there_and_words_after_it_do_not_matter(text, words):
    found = last_number(text)
    assert found == last_number(f"{text} {words}") and (found is None or re.search("[0-9]", text))
    if re.search(r"[0-9]", text) and "^" not in text:
        assert found is not None
    assert found == last_number("a " * 20_000 + text)  # as far as it is looked for


# --- Steps


@st.composite
def arithmetic(draw, depth=3):
    """An expression of whole numbers, fully bracketed, and its value; None where it divides by zero."""
    if depth == 0 or draw(st.booleans()):
        number = draw(st.integers(0, 60))
        return str(number), Fraction(number)
    (left, a), (right, b) = draw(arithmetic(depth=depth - 1)), draw(arithmetic(depth=depth - 1))
    sign = draw(st.sampled_from("+-*/"))
    if a is None or b is None or (sign == "/" and b == 0):
        return f"({left}{sign}{right})", None
    return f"({left}{sign}{right})", OPERATORS[sign](a, b)


@examples(150)
@given(arithmetic(), arithmetic())
def test_equality_of_expressions_is_that_of_their_values(one, other):
    (left, a), (right, b) = one, other
    assume(len(left) <= 100 and len(right) <= 100)
    assert is_true(left, right) == (a is not None and b is not None and a == b)
    if a is not None and a.denominator == 1 and a >= 0:
        assert is_true(left, str(a)) and not is_true(left, str(a + 1))


@examples(150)
@given(st.lists(st.tuples(st.integers(1, 400), st.sampled_from("+-*"), st.integers(1, 90), st.booleans()), max_size=5))
def test_verified_lines_are_the_right_ones_that_say_something_new(steps):
    """Of lines `a op b = c`, by a reference that evaluates them; the question is not known."""
    lines, expected, seen = [], [], set()
    for a, sign, b, right in steps:
        lines.append(f"{a} {sign} {b} = {OPERATORS[sign](a, b) + (not right)}")
        if right and lines[-1] not in seen:
            expected.append(lines[-1])
            seen.add(lines[-1])
        assert is_verified(lines[-1]) == right
    text = "<think>\n" + "\n".join(lines) + "\n</think>"
    assert list(verified_lines(text)) == expected
    assert set(verified_lines(text, "What are 5 and 7?")) <= set(expected)


# --- Rows

WRITTEN = ["a #### 7", "#### $1,234 ", "####", "1 #### 2 #### 3", "x", " 72.0 ", "$1,000", "", "  ", "-$5", "Paris, F"]
FLOATS = st.floats(allow_nan=False, allow_infinity=False, width=32)
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**6), 10**6), FLOATS, st.sampled_from(WRITTEN), st.text()
)
# What a table's answers are, and one that is fit: few tables of any answers can be trained on
KINDS = [
    (st.sampled_from(WRITTEN), "#### 7"),
    (st.sampled_from(WRITTEN[4:]), "7"),
    (st.none() | st.integers(0, 99) | FLOATS, 7),
    (st.text(), "seven"),
    (SCALARS, "7"),
]
SAID = st.builds("{} {}".format, st.sampled_from(["What is", "what  IS", " What is", "Q {x}", "#"]), st.integers(0, 9))
QUESTIONS = st.sampled_from([SAID, SAID, SAID, SAID | st.text(max_size=8), SCALARS])
LIMITS, SAMPLES = st.sampled_from([None, None, 30, 40]), st.sampled_from([1, 3, None])


@st.composite
def tables(draw):
    question, (answer, fit) = draw(QUESTIONS), draw(st.sampled_from(KINDS))
    columns = {"question": question, "answer": answer}
    row, lacking = st.fixed_dictionaries(columns), st.fixed_dictionaries({}, optional=columns | {"more": SCALARS})
    good = [
        {"question": f"Good {number}", "answer": fit} for number in draw(st.sampled_from([(), (1, 2), range(3, 9)]))
    ]
    return draw(st.permutations([*good, *draw(st.lists(st.one_of(row, row, row, lacking), min_size=1, max_size=14))]))


def prepare(rows, held_out, limit, samples, seed):
    """What becomes of rows, read from files; None where they are a mistake of the user's."""
    script = SimpleNamespace(
        question_column="question", answer_column="answer", dataset_split="train", eval_split="test",
        eval_samples=samples, max_samples=None, eval_only=False, max_prompt_length=limit,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as directory:
        read = []
        for name, some in (("train", rows), ("test", held_out)):
            path = Path(directory) / f"{name}.jsonl"
            some = [{**row, "id": f"{name} {number}"} for number, row in enumerate(some)]
            path.write_text("".join(json.dumps(row) + "\n" for row in some), encoding="utf-8")
            try:
                read.append(sources.load_source(str(path)) if some else None)
            except UserError as error:
                assert "mixes types" in str(error)
                return None
        try:
            style = dataclasses.replace(THINK, chat=False)
            return dataset.prepare(read[0], read[1], script, style, [], lambda texts: [list(t) for t in texts], seed)
        except UserError as error:
            assert "\n" not in str(error) and len(str(error)) < 2000
            return None


def test_truth_is_no_gold_answer_among_numbers():
    rows = [{"question": f"Q{number}", "answer": answer} for number, answer in enumerate([0.5, True, 2.0])]
    assert prepare(rows, [], None, None, 0) is None


def is_gold_of(gold, value):
    """Whether a gold answer is what a cell says, without formatting."""
    bare = re.sub(r"[,$\s+]", "", str(value)).replace("\u2212", "-")
    if re.sub(r"[,$\s+]", "", gold).replace("\u2212", "-") in bare:
        return True
    try:
        return Decimal(gold) == Decimal(bare)
    except ArithmeticError:
        return False


@examples(150)
@given(tables(), st.just([]) | tables(), LIMITS, SAMPLES, st.integers(0, 3))
def test_every_row_is_trained_on_held_out_or_counted(rows, held_out, limit, samples, seed):
    found = prepare(rows, held_out, limit, samples, seed)
    if found is None:
        return
    train, held = found.train.to_list(), found.held_out.to_list()
    counted = len(train) + found.unusable + found.overlap + found.too_long
    if not held_out:
        assert counted + len(held) == len(rows)
        assert len(held) == max(1, min(samples or len(rows), (len(rows) - found.unusable) // 10))
    elif samples is None:
        assert counted + len(held) == len(rows) + len(held_out)
    else:
        assert len(held) <= samples and counted <= len(rows) + len(held_out)
    given_rows = {
        f"{name} {number}": row
        for name, some in (("train", rows), ("test", held_out))
        for number, row in enumerate(some)
    }
    for row in [*train, *held]:
        asked = given_rows[row["id"]]
        assert row["question"] == str(asked["question"]) and row["question"].strip()
        assert row["answer"] and is_gold_of(row["answer"], asked["answer"])
        assert row["question"] in row["prompt"] and (limit is None or row in held or len(row["prompt"]) <= limit)
    questions = [{dataset.canonical(row["question"]) for row in some} for some in (train, held)]
    assert not questions[0] & questions[1] and train and held
    assert len({row["id"] for row in [*train, *held]}) == len(train) + len(held)
    again = prepare(rows, held_out, limit, samples, seed)
    assert again.train.to_list() == train and again.held_out.to_list() == held


CELLS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=10)


@examples(100)
@given(st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=6))
def test_cells_of_a_csv_file_come_back_as_they_are(rows):
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "rows.csv"
        with path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, quoting=csv.QUOTE_ALL).writerows([("question", "answer"), *rows])
        read = sources.load_source(str(path))["train"].to_list()
    assert [(row["question"], row["answer"]) for row in read] == rows


# --- Packs


@st.composite
def batches(draw):
    """Padded prompts and completions, of any lengths and with any of them masked out, some prompts alike."""
    prompts = draw(st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=6).map(tuple), min_size=1, max_size=3))
    rows = draw(
        st.lists(
            st.tuples(st.sampled_from(prompts), st.lists(st.integers(5, 9), max_size=9).map(tuple)),
            min_size=1,
            max_size=10,
        )
    )
    widths = [max(len(row[side]) for row in rows) + draw(st.integers(0, 2)) for side in (0, 1)]
    kept = draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    ids, mask = [], []
    for (prompt, completion), keep in zip(rows, kept, strict=True):
        left, right = widths[0] - len(prompt), widths[1] - len(completion)
        ids.append([0] * left + [*prompt, *completion] + [0] * right)
        mask.append([0] * left + [1] * len(prompt) + [int(keep)] * len(completion) + [0] * right)
    rows = [(prompt, completion if keep else ()) for (prompt, completion), keep in zip(rows, kept, strict=True)]
    return rows, torch.tensor(ids), torch.tensor(mask), widths[1]


def seen_by(pack, place):
    """The tokens that a position sees, in the order of their positions."""
    positions = pack.position_ids[0].tolist()
    places = packing.visible(pack)[place].nonzero().flatten().tolist()
    assert sorted(positions[one] for one in places) == list(range(len(places))), "a token seen twice, or one missing"
    return [pack.input_ids[0, one].item() for one in sorted(places, key=positions.__getitem__)]


@examples(200)
@given(batches(), st.integers(4, 16) | st.integers(1, 40), st.booleans())
def test_packs_hold_each_token_once_after_what_precedes_it(batch, budget, share):
    rows, ids, mask, width = batch
    assert packing.rows_of(ids, mask, width) == rows
    result = torch.full((len(rows), max(width, 1)), -1)
    for chosen in packing.divide(rows, budget, share):
        pack = packing.lay_out(rows, chosen, max(width, 1), share=share)
        size = pack.input_ids.shape[1]
        assert size == sum(pack.sizes) and (size <= budget or len(chosen) == 1)
        own, parent = packing.segments(pack)
        assert own.shape == parent.shape == (size,) and (parent <= own).all()
        labels = pack.labels[0]
        scored = (labels != packing.IGNORED).nonzero().flatten()
        assert len(scored) == len(pack.cells)
        for place, cell in zip(scored.tolist(), pack.cells.tolist(), strict=True):
            (prompt, completion), column = rows[cell // max(width, 1)], cell % max(width, 1)
            assert seen_by(pack, place) == [*prompt, *completion[:column]] and cell // max(width, 1) in chosen
        assert (result.view(-1)[pack.cells] == -1).all(), "a cell is written twice"
        result.view(-1)[pack.cells] = labels[scored]
        prompts = {rows[row][0] for row in chosen}
        if share:  # each prompt but its last token once, and only for identical ones
            assert size == sum(len(prompt) - 1 for prompt in prompts) + sum(len(rows[row][1]) for row in chosen)
    for row, (_, completion) in enumerate(rows):
        assert result[row].tolist() == [*completion, *[-1] * (result.shape[1] - len(completion))]


@st.composite
def micro_batches(draw, most=3):
    count, size, width = draw(st.integers(1, most)), draw(st.integers(1, 4)), draw(st.integers(1, 5))
    found = []
    for _ in range(count):
        lengths = draw(st.lists(st.integers(0, width), min_size=size, max_size=size))
        advantages = draw(st.lists(st.sampled_from([0.0, 0.0, 1.0, -0.5]), min_size=size, max_size=size))
        completion_mask = torch.tensor([[int(place < length) for place in range(width)] for length in lengths])
        prompts = torch.tensor([draw(st.sampled_from([[0, 1, 2], [3, 1, 2]])) for _ in range(size)])
        found.append(
            {
                "prompt_ids": prompts, "prompt_mask": (prompts > 0).long(), "completion_mask": completion_mask,
                "completion_ids": completion_mask * 7, "advantages": torch.tensor(advantages),
                "old_per_token_logps": None,
            }
        )  # fmt: skip
    return found


@examples(200)
@given(micro_batches(), st.sampled_from(["grpo", "dr_grpo", "sapo", "luspo", "dapo", "cispo", "vespo", "bnpo"]),
       st.booleans(), st.integers(1, 30), st.booleans(), st.integers(0, 3))  # fmt: skip
def test_a_plan_adds_up_to_what_trl_adds_up(given_batches, loss_type, drops, budget, share, more):
    """Each completion has a value, which is 0 without an advantage; TRL's sum of micro-batches is the packs' sum."""
    if loss_type in schedule.TOKEN_MEANS:
        given_batches = given_batches[:1]
    plan = schedule.plan(given_batches, loss_type, drops, budget, share, lambda count: max(count, 1) + more)
    mask, advantages = (
        torch.cat([batch[key] for batch in given_batches]) for key in ("completion_mask", "advantages")
    )
    tokens = mask.sum(1).double()
    # per completion: the mean of its tokens' values for MEANS, their sum for the others
    values = advantages.double() * torch.arange(1, len(mask) + 1).double() * (tokens > 0)
    if loss_type not in schedule.MEANS:
        values = values * tokens

    def loss(rows):
        if not len(rows):
            return 0.0
        of = values[torch.as_tensor(rows)].sum().item()
        if loss_type in schedule.MEANS:
            return of / len(rows)
        return of / max(tokens[torch.as_tensor(rows)].sum().item(), 1) if loss_type in schedule.TOKEN_MEANS else of

    size = len(given_batches[0]["advantages"])
    expected = sum(loss(range(start, start + size)) for start in range(0, len(mask), size))
    packs = [pack for turn in plan.turns for pack in turn]
    assert sum(factor * loss(rows) for rows, factor in packs) == pytest.approx(expected, abs=1e-9)
    computed = sorted(row for rows, _ in packs for row in rows)
    assert computed == [row for row in range(len(mask)) if tokens[row] and (advantages[row] or not drops)]
    assert len(plan.turns) == len(given_batches) and plan.turns[-1] and all(factor >= 0 for _, factor in packs)
    if loss_type in schedule.MEANS and not drops and tokens.all():
        assert sum(factor for _, factor in packs) == pytest.approx(len(given_batches))
    assert plan.log_probs.shape == plan.entropies.shape == mask.shape and "old_per_token_logps" not in plan.rows


# --- Geometry

SMALL = st.integers(1, 12)


@st.composite
def geometries(draw):
    """Settings and a number of devices; what TRL wants to divide each other often does."""
    settings = {
        "per_device_train_batch_size": draw(SMALL),
        "gradient_accumulation_steps": draw(SMALL),
        "num_generations": draw(st.integers(2, 12)),
        "steps_per_generation": draw(st.none() | SMALL),
        "generation_batch_size": None,
        "num_iterations": draw(st.integers(1, 4)),
    }
    world = draw(st.integers(1, 4))
    if draw(st.booleans()):
        multiple = settings["per_device_train_batch_size"] * world * draw(SMALL)
        settings["generation_batch_size"] = draw(st.one_of(st.just(multiple), st.integers(1, 300)))
        settings["steps_per_generation"] = draw(st.sampled_from([None, settings["steps_per_generation"]]))
    return settings, world


def trls(settings, world):
    """What TRL 1.16 makes of the settings (GRPOConfig.__post_init__): its rollout and steps; None where it raises."""
    batch, total = settings["per_device_train_batch_size"] * world, settings["generation_batch_size"]
    steps = settings["steps_per_generation"]
    if total is not None and steps is not None:
        return None
    if total is None:
        steps = steps or settings["gradient_accumulation_steps"]
        total = batch * steps
    if total % batch or total % settings["num_generations"]:
        return None
    return total, total // batch


@examples(600)
@given(geometries(), st.integers(0, 60))
def test_what_is_solved_is_what_trl_does(case, rows):
    from trl.trainer.utils import RepeatSampler

    settings, world = case
    try:
        geometry = solve(settings, world)
    except UserError as error:
        mixed = "would mix rollouts" in str(error)  # which TRL allows
        assert mixed or trls(settings, world) is None
        return
    assert trls(settings, world) == (geometry.rollout, geometry.steps_per_generation)
    assert geometry.rollout_prompts * geometry.num_generations == geometry.rollout
    assert geometry.per_step == geometry.per_device_train_batch_size * world * geometry.gradient_accumulation_steps
    accumulation, reuse = geometry.gradient_accumulation_steps, geometry.steps_per_generation * geometry.num_iterations
    assert geometry.steps_per_rollout == next(n for n in itertools.count(1) if n * accumulation % reuse == 0)
    sampler = RepeatSampler(
        range(rows),
        mini_repeat_count=geometry.num_generations,
        batch_size=geometry.rollout_prompts,
        repeat_count=reuse,
    )
    micro_steps = sum(1 for _ in sampler) // geometry.rollout  # the dataloader hands out whole rollouts
    assert geometry.steps_per_epoch(rows) == -(-micro_steps // accumulation)
    assert str(geometry.per_step) in geometry.describe()


@examples(600)
@given(geometries())
def test_what_is_proposed_is_solved(case):
    settings, world = case
    try:
        solve(settings, world)
        return
    except UserError as error:
        message = str(error)
    if "twice" in message:
        proposals = [{"generation_batch_size": None}, {"steps_per_generation": None}]
    elif "does not divide" in message:
        ((key, one, two),) = re.findall(r"give (\w+) (\d+), (\d+) or another", message)
        proposals = [{key: int(unit)} for unit in (one, two)]
        listed = re.findall(r"or num_generations ([\d, ]+)", message)
        proposals += [{"num_generations": int(number)} for number in re.findall(r"\d+", "".join(listed))]
    else:  # the key that is named, with the number that is proposed, or a multiple of it
        key, value = message.split(":")[0], int(re.search(r"give (?:a multiple of )?(\d+)$", message)[1])
        proposals = [{key: value * factor} for factor in (1, 2, 3)]
    group = message.startswith("num_generations")  # looked at last, so that nothing is left to be wrong
    for proposal in proposals:
        try:
            assert solve(settings | proposal, world)
        except UserError as error:
            mistake = re.search("twice|is not a multiple|would mix|does not divide", message)[0]
            assert mistake not in str(error) and not group, (message, proposal, str(error))


# --- Stages


@examples(400)
@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=5), st.integers(1, 7), st.one_of(st.none(), st.integers(1, 200))
)
def test_stages_fill_the_run_in_proportion_at_whole_rollouts(steps, unit, total):
    asked = [
        {"name": f"s{place}", "reward_funcs": ["int_reward_func"], "max_steps": count}
        for place, count in enumerate(steps)
    ]
    settings = {"reward_funcs": ["any"], "reward_weights": None, "max_steps": total or -1, "stages": asked}
    total = total or sum(steps)
    try:
        found, notes = stages.read(settings, set(), unit)
    except UserError as error:
        least = int(re.search(r"give at least (\d+)", str(error))[1])
        assert total < least and stages.read(settings | {"max_steps": least}, set(), unit)
        return
    taken = [stage.last_step - stage.first_step + 1 for stage in found]
    assert sum(taken) == total == found[-1].last_step and min(taken) >= 1 and found[0].first_step == 1
    assert all(after.first_step == before.last_step + 1 for before, after in itertools.pairwise(found))
    assert all(stage.last_step % unit == 0 for stage in found[:-1])
    assert bool(notes) == (taken != steps)
    for place in range(1, len(steps)):  # at the nearest rollout, where each stage's share is large enough for one
        shares = [total * count / sum(steps) for count in steps]
        if min(shares) >= 2 * unit:
            assert abs(found[place - 1].last_step - sum(shares[:place])) <= unit / 2 + 1e-9
    for step in range(1, total + 1):
        assert found[stages.at(found, step)].first_step <= step <= found[stages.at(found, step)].last_step


# --- Before against after

FLAGS = st.lists(st.tuples(*[st.booleans()] * 8), min_size=1, max_size=30)


@examples(60)
@given(FLAGS)
def test_a_comparison_counts_pairs_and_turns_around_with_its_sides(flags):
    sides = [
        [
            dict(zip(comparison.MEASURES, row[start : start + 4], strict=True)) | {"question": str(number)}
            for number, row in enumerate(flags)
        ]
        for start in (0, 4)
    ]
    forth, back = comparison.compare(*sides), comparison.compare(*reversed(sides))
    for measure in comparison.MEASURES:
        one, other = forth[measure], back[measure]
        before, after = (sum(row[measure] for row in side) for side in sides)
        assert one["both"] + one["fixed"] + one["broken"] + one["neither"] == forth["n"] == len(flags)
        assert one["both"] + one["broken"] == before and one["both"] + one["fixed"] == after
        assert one["difference"] == pytest.approx((after - before) / len(flags)) == pytest.approx(-other["difference"])
        assert (one["fixed"], one["p_value"]) == (other["broken"], other["p_value"]) and 0 < one["p_value"] <= 1
        assert -1 <= one["difference_low"] <= one["difference"] + 1e-12
        assert one["difference"] - 1e-12 <= one["difference_high"] <= 1
        # the two are drawn apart, so that the ends may differ by some questions
        assert one["difference_low"] == pytest.approx(-other["difference_high"], abs=0.1 + 2 / len(flags))
    assert {forth["verdict"], back["verdict"]} != {"got_better"} != {"got_worse"}


@examples(150)
@given(st.integers(1, 9), st.data())
def test_pass_at_k_is_the_share_of_subsets_with_a_right_sample(n, drawn):
    correct, k = drawn.draw(st.integers(0, n)), drawn.draw(st.integers(1, n))
    subsets = list(itertools.combinations([1] * correct + [0] * (n - correct), k))
    assert evaluate.pass_at_k(n, correct, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))
    low, high = evaluate.wilson(correct, n)
    assert 0 <= low <= correct / n + 1e-12 and correct / n - 1e-12 <= high <= 1
    more = evaluate.wilson(min(correct + 1, n), n)
    assert low <= more[0] and high <= more[1] + 1e-12


@examples(150)
@given(
    st.lists(
        st.sampled_from(["<answer>7</answer>", "<answer>$7.0</answer>", "8", "<answer></answer>", "x", ""]), max_size=8
    )
)
def test_the_majority_has_the_most_votes_and_numbers_vote_together(texts):
    chosen = evaluate.majority(texts)
    votes = [
        vote for vote in (last_number(extract_xml_answer(text)) or extract_xml_answer(text) for text in texts) if vote
    ]
    if chosen is None:
        assert not votes
    else:
        vote = last_number(extract_xml_answer(chosen)) or extract_xml_answer(chosen)
        assert votes.count(vote) == max(map(votes.count, votes))


# --- What is written down and shown

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
SECRET = st.from_regex(r"[A-Za-z0-9]{24,40}", fullmatch=True).filter(lambda text: re.search(r"[0-9]", text))


@examples(200)
@given(
    ANY_TEXT,
    SECRET,
    ANY_TEXT,
    st.sampled_from(["hf_{}", "sk-{}", "https://u:{}@h/", "ftp://{}@h", "http://h/?a=1&token={}", "h?x-sig={}"]),
)
def test_no_key_survives_masking_and_masking_twice_changes_nothing(before, secret, after, form):
    text = f"{before} {form.format(secret)} {after}"
    masked = redaction.mask(text)
    assert (
        secret not in masked
        and redaction.holds_key(text)
        and not redaction.holds_key(masked.replace(redaction.MASK, ""))
    )
    assert redaction.mask(masked) == masked


@examples(200)
@given(st.text(max_size=60))
def test_what_is_printable_steers_no_terminal_and_loses_nothing(text):
    shown = redaction.printable(text)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]", shown)
    assert redaction.printable(shown) == shown and len(shown) >= len(text)
    if text.isprintable():
        assert shown == text


@examples(150)
@given(st.lists(st.dictionaries(st.text(max_size=6), JSON, max_size=3), max_size=5), st.binary(max_size=20))
def test_lines_come_back_whatever_was_half_written_between_them(written, torn):
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "lines.jsonl"
        for record in written:
            records.append_line(path, record)
            with path.open("ab") as file:  # the process was killed in the middle of the next line
                file.write(torn.replace(b"\n", b""))
        records.append_line(path, {"last": 1})
        lines = path.read_bytes().decode().split("\n")
    assert lines.pop() == "" and len(lines) == len(written) + 1
    for line, record in zip(lines, written, strict=False):
        expected = json.dumps(records.without_nan(record), ensure_ascii=False)
        assert line.encode() == expected.encode("utf-8", errors="replace") or redaction.holds_key(expected)
        assert json.loads(line, parse_constant=pytest.fail) is not None


XRAY_ROWS = st.one_of(
    JSON,
    st.fixed_dictionaries({"completion": JSON, "answer": JSON}),
    st.fixed_dictionaries({"completion": ANY_TEXT, "answer": st.text(max_size=5)}),
)


@examples(200)
@given(st.lists(st.one_of(st.binary(max_size=20), XRAY_ROWS.map(lambda row: json.dumps(row).encode())), max_size=6))
def test_every_line_of_an_x_ray_is_scored_named_or_blank(lines):
    rows, bad = xray.read(lines)
    blank = sum(not line.strip() for line in lines)
    numbers = [*(row["line"] for row in rows), *bad]
    assert len(numbers) == len(set(numbers)) == len(lines) - blank and set(numbers) <= set(range(1, len(lines) + 1))
    if rows:
        scored = xray.score(rows, xray.select(None, {}, XML_COT_FORMAT))
        assert [row["line"] for row in scored] == [row["line"] for row in rows]
        assert all(row["total"] == pytest.approx(sum(row["rewards"].values())) for row in scored)
        json.dumps([scored, xray.totals(scored)], allow_nan=False)
