"""What the loader finds in rows is a line of preflight, with what to do."""

import json
from pathlib import Path

import pytest

from grpo.core.errors import UserError
from grpo.data import findings
from grpo.data.findings import canonical
from grpo.preflight import preflight


def sums(count=40, **columns):
    return [
        {"question": f"What is {n} + {n}?", "answer": str(2 * n)} | {name: cell(n) for name, cell in columns.items()}
        for n in range(count)
    ]


def file_of(text, name="r.csv"):
    Path(name).write_text(text)
    return {"dataset_name": name}


# --- Repeated questions


def test_held_out_questions_are_different_ones(plan):
    rows = [row | {"question": row["question"] + " " * copy} for row in sums(40) for copy in range(8)]
    data = plan(rows=rows).data
    asked = [canonical(question) for question in data.held_out["question"]]
    assert len(asked) == len(set(asked)) == 10 and len(data.train) == 240 and data.dropped["overlap"] == 70
    again = plan(rows=sums(40)).data
    assert {canonical(one) for one in again.held_out["question"]} == set(asked)  # copies change no draw


def test_copies_in_a_test_split_count_once(plan, write_jsonl, table):
    test = write_jsonl(sums(5) * 8, "test.jsonl")
    assert len(plan(rows=sums(40)[5:], eval_dataset_name=test).data.held_out) == 5
    assert len(plan(rows=sums(40)[5:], eval_dataset_name=test, eval_samples="3").data.held_out) == 3
    found = table(rows=sums(40)[5:], eval_dataset_name=test)["repeats"].finding
    assert found.startswith("35 of 40 evaluation rows repeat a question of another row; 5 are different")


def test_repeated_questions_are_counted_without_a_warning_of_an_overlap(table):
    checks = table(rows=sums(40) * 3 + [{"question": "What is 1 + 1?", "answer": "5"}])
    assert checks["repeats"].finding.startswith("81 of 121 training rows repeat a question of another row; 40 are")
    assert checks["overlap"].status == "ok" and checks["overlap"].finding.startswith("dropped 2")
    assert "1 training question with different" in checks["conflicts"].finding
    assert "repeats" not in table(rows=sums(40))


def test_several_solutions_of_a_problem_are_one_answer(table):
    rows = [row | {"answer": f"{way}\n#### {row['answer']}.0"} for row in sums(40) for way in ("Add.", "Double it.")]
    checks = table(rows=rows)
    assert "repeats" in checks and "conflicts" not in checks


def test_conflicts_are_compared_up_to_a_limit(table, monkeypatch):
    monkeypatch.setattr(findings, "MOST_COMPARED", 10)
    compared = []
    monkeypatch.setattr(findings, "same_answer", lambda one, other, **_: compared.append(one))
    found = table(rows=sums(40) + [row | {"answer": "x"} for row in sums(40)])["conflicts"].finding
    assert len(compared) == 10 and found.startswith("at least 10 training questions with different gold answers")


# --- Rows


PREPARES = {  # code of `prepare`, what the line says, and whether it warns
    "two": (
        "None if row['question'].startswith('What is 1') and '1 + 1?' in row['question'] else row",
        "1 of 40",
        False,
    ),
    "most": ("row if len(row['question']) < 15 else None", "30 of 40", True),
    "none": ("row", "", False),
}


@pytest.mark.parametrize("name", PREPARES)
def test_rows_that_prepare_drops_are_counted(name, table):
    code, said, warned = PREPARES[name]
    Path("my_rows.py").write_text(f"def whole(row): return {code}\n")
    found = table(rows=sums(), prepare="my_rows.whole", allow_custom_rewards="true", max_steps="1")["schema"]
    assert (f"`prepare` dropped {said} rows" in found.finding) is bool(said)
    assert found.status == ("warning" if warned else "ok") and ("returns None" in found.remedy) is warned


CSV = "question,answer\n" + "".join(f"What is {n} + {n}?,{2 * n}\n" for n in range(40))
NO_DATA = {  # rows of a file that are no data, and what is said
    "header": (CSV + CSV, "1 row with the header once more or a line of a table: question | answer"),
    "markdown": (CSV.replace(",", "|").replace("answer\n", "answer\n---|:-:\n", 1), "--- | :-:"),
    "rule of equals": (CSV.replace("answer\n", "answer\n====,====\n", 1), "==== | ===="),
}


@pytest.mark.parametrize("name", NO_DATA)
def test_rows_that_are_no_data_are_named(name, table):
    text, said = NO_DATA[name]
    found = table(**file_of(text))["rows"]
    assert found.status == "warning" and said in found.finding and found.remedy == "delete these lines of the file"
    assert "rows" not in table(**file_of(CSV, "sound.csv"))


@pytest.mark.parametrize(("cells", "warned"), [(("train", "test"), True), (("Train", "dev", "TEST"), True),
                                               (("train",), False), (("train", "easy"), False)])  # fmt: skip
def test_a_column_that_names_splits_is_warned_of(cells, warned, table):
    found = table(rows=sums(odd=lambda n: cells[n % len(cells)])).get("splits")
    assert bool(found) is warned
    assert not found or (
        f"the column odd has {40 // len(cells) + bool(40 % len(cells))} " in found.finding.replace(",", "")
    )


def test_a_title_with_as_many_cells_as_the_header_is_to_be_deleted(plan):
    with pytest.raises(UserError, match="delete line 1 of the file, above the names"):
        plan(**file_of("My questions,2024\n" + CSV))
    with pytest.raises(UserError, match="delete lines 1 to 2 of the file"):
        plan(**file_of("My questions,2024\nmade,by hand\n" + CSV))


def test_a_header_with_line_breaks_has_a_name_that_can_be_typed(plan):
    file = file_of(CSV.replace("question,answer", '"question\n(text)","answer\r\n(number)"'))
    with pytest.raises(UserError, match=r"--question_column 'question \(text\)' --answer_column 'answer \(number\)'"):
        plan(**file)


@pytest.mark.parametrize("half", ["\\ud83d", "a \\ude00 b", "\\ud83d\\ud83d"])
def test_half_a_sign_is_named_with_its_row_and_column(half, plan):
    lines = [json.dumps(row) for row in sums()]
    lines[6] = lines[6].replace("What", half)
    with pytest.raises(UserError, match=r"row 7 of training data .* \(column 'question'\) has half of an emoji"):
        plan(**file_of("\n".join(lines), "r.jsonl"))


# --- Questions


TEMPLATES = [
    "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n",
    "<s>[INST] {} [/INST]",
    "[INST] <<SYS>>Be brief.<</SYS>> {} [/INST]",
    "<start_of_turn>user\n{}<end_of_turn>",
    "<｜User｜>{}<｜Assistant｜>",
    "<|user|>\n{}",
    "<|start_header_id|>user<|end_header_id|>{}",
    "### Instruction:\n{}\n\n### Response:\n",
    "USER: {} ASSISTANT:",
    "Human: {}\n\nAssistant: ",
    "[|Human|]{}\n[|AI|]",
    "<s>{}",
    "{}</s>",
    "<user>{}<assistant>",
    "<s>[SYSTEM_PROMPT]Be brief.[/SYSTEM_PROMPT]{}",
]
PLAIN = [
    "{}",
    "Is {} < 3 or > 4?",
    "What does `a[i] | b` do in {}?",
    "<b>{}</b>",
    "{}\n### Hints\nAdd.",
    "{}\n### Output:",
    "<user><name>Lea</name><says>{}</says></user>",
    "Read <system>{}</system>.",
    "{} It was <s>3</s>",
    "<s>3</s> 4 {}",
    "[|1; 2|] {}",
    "Press [|space|]. {}",
    "{}\nAnswer:",
]


@pytest.mark.slow
@pytest.mark.parametrize("template", [*TEMPLATES, *PLAIN])
def test_questions_in_a_template_are_warned_of(template, table):
    rows = [row | {"question": template.format(row["question"])} for row in sums()]
    found = table(rows=rows).get("templates")
    assert bool(found) is (template in TEMPLATES)
    assert not found or (found.finding.startswith("40 of 40 questions with the mark ") and "`prepare`" in found.remedy)


def test_special_tokens_of_the_model_are_marks_too_and_those_in_gold_answers(table):
    def edit(tokenizer):
        tokenizer.add_special_tokens({"additional_special_tokens": ["@@turn@@"]})

    rows = sums()
    rows[0]["question"] += "@@turn@@"
    assert "templates" not in table(rows=rows, edit=edit)  # somebody may ask what it means
    for row in rows[1:3]:
        row["question"] += "@@turn@@"
    assert "3 of 40 questions with the mark @@turn@@" in table(rows=rows, edit=edit)["templates"].finding
    rows = [row | {"answer": row["answer"] + "<|im_end|>"} for row in sums()]
    assert "40 of 40 gold answers with the mark <|im_end|>" in table(rows=rows)["templates"].finding


@pytest.mark.parametrize(
    "write", [lambda message: message, json.dumps, str, lambda message: json.dumps(message, indent=1)]
)
def test_a_single_message_needs_no_list(write, plan):
    rows = [{"prompt": write({"role": "user", "content": row["question"]}), "answer": row["answer"]} for row in sums()]
    row = plan(rows=rows).data.train[0]
    assert row["question"].startswith("What is") and row["prompt"][-1] == {"role": "user", "content": row["question"]}


# --- Gold answers


def numbers(n):
    return str(2 * n)


STRAY = {  # the gold answers of 40 rows, and those that stand for none
    "unknown": (lambda n: "unknown" if n % 4 == 0 else numbers(n), '"unknown" 10'),
    "dash": (lambda n: "-" if n % 8 == 0 else numbers(n), '"-" 5'),
    "proof": (lambda n: "proof" if n % 10 == 0 else f"\\frac{{{n}}}{{7}}", '"proof" 4'),
    "Excel": (lambda n: "#N/A" if n == 3 else "#REF!" if n == 5 else numbers(n), '"#N/A" 1, "#REF!" 1'),
    "n/a": (lambda n: "N/A" if n == 3 else numbers(n), '"N/A" 1'),
    "names": (
        lambda n: "notfound" if n % 4 == 0 else f"Person {'abcdefghij'[n % 10]}{'klmn'[n // 10]}",
        '"notfound" 10',
    ),
    "no solution": (lambda n: "no solution" if n % 4 == 0 else numbers(n), '"no solution" 10, or do they mean it?'),
    "numbers": (numbers, ""),
    "labels": (lambda n: ["spam", "ham", "unknown"][n % 3], ""),
    "signs": (lambda n: "+-="[n % 3], ""),
    "none as a label": (lambda n: ["none", "mild", "severe"][n % 3], ""),
    "an error among labels": (lambda n: "#N/A" if n == 3 else ["mild", "severe"][n % 2], '"#N/A" 1'),
    "yes": (lambda n: "yes" if n % 2 else "no", ""),
    "zero": (lambda n: "0" if n % 4 == 0 else numbers(n), ""),
    "one text": (lambda n: "Paris" if n == 3 else numbers(n), ""),
}


@pytest.mark.parametrize("name", STRAY)
def test_gold_answers_that_stand_for_none_are_named(name, table):
    gold, said = STRAY[name]
    found = table(rows=[row | {"answer": gold(n)} for n, row in enumerate(sums())]).get("no answer")
    assert bool(found) is bool(said) and (not found or said in found.finding), found
    words = ("unknown", "proof", "names", "no solution")
    assert not found or found.status == ("ok" if name in words else "warning")
    assert not found or "unless they mean it" in found.remedy


def test_both_tables_are_looked_through_and_named(table, write_jsonl):
    held_out = [row | {"question": f"{row['question']} Now."} for row in sums()]
    odd = write_jsonl(
        [row | {"answer": "-" if n == 3 else f"There are {n} boxes."} for n, row in enumerate(held_out)], "odd.jsonl"
    )
    checks = table(rows=sums(), eval_dataset_name=odd)
    assert '1 of 40 gold answers of the held-out rows may stand for none: "-" 1' in checks["no answer"].finding
    assert checks["given back"].finding.startswith("held-out rows: 39 of 40 gold answers are not accepted")


def test_a_judge_that_reads_another_column_is_warned_of_once(table):
    Path("mine.py").write_text("def judge(text, row): return str(row['total']) in text\n")
    rows = [row | {"total": f"sum {n}"} for n, row in enumerate(sums())]
    given = {"rewards": ["judge_reward_func", "soft_format_reward_func"], "judge": "mine.judge"}
    checks = table(rows=rows, allow_custom_rewards="true", **given)
    warned = [name for name, check in checks.items() if check.status != "ok"]
    assert set(warned) & {"given back", "judge", "reward judge", "all rewards"} == {"judge"}
    assert "unless it judges by other columns" in checks["judge"].remedy


@pytest.mark.parametrize("gold", ["yes", "7", ["Paris", "paris."]])
def test_gold_answers_that_are_all_alike_are_warned_of(gold, table):
    found = table(rows=[row | {"answer": gold} for row in sums()], rewards=["judge_reward_func"])["gold answers"]
    assert found.status == "warning" and "100 %" in found.finding and "always giving this answer" in found.remedy


def test_decimals_that_people_round_are_said_to_be_exact(table):
    found = table(rows=[row | {"answer": 1.609344 * n} for n, row in enumerate(sums())])["decimals"]
    assert (
        found.status == "warning" and "have three decimals or more, as " in found.finding and "judge" in found.remedy
    )
    thousands = table(rows=[row | {"answer": f"{n + 7}.404"} for n, row in enumerate(sums())])["decimals"]
    assert "if the point separates thousands, write" in thousands.remedy
    assert "decimals" not in table(rows=[row | {"answer": f"{n}.50"} for n, row in enumerate(sums())])
    Path("mine.py").write_text("def judge(text, row): return True\n")
    given = {"judge": "mine.judge", "allow_custom_rewards": "true"}
    assert "decimals" not in table(rows=[row | {"answer": 1.609344 * n} for n, row in enumerate(sums())], **given)


ARITHMETIC = {  # gold answers, what answers each, and what does not
    "sums": (lambda n: f"{n}+4", (lambda n: f"{n} + 4", lambda n: f"{n + 2} + 2", lambda n: f"{n + 4}")),
    "products": (lambda n: f"{n} \\cdot 2^3", (lambda n: f"4*{2 * n}", lambda n: f"{8 * n}")),
    "numbers": (lambda n: f"{n + 4}", (lambda n: f"{n + 4}", lambda n: f"{n} + 4 = {n + 4}")),
    "fractions": (lambda n: f"{n}/97", (lambda n: f"{2 * n}/194",)),
}


@pytest.mark.parametrize("name", ARITHMETIC)
def test_a_task_whose_gold_answers_are_arithmetic_accepts_arithmetic(name, plan):
    """Preflight says so; elsewhere arithmetic that is left to the judge earns nothing."""
    gold, rights = ARITHMETIC[name]
    rows = [row | {"answer": gold(n)} for n, row in enumerate(sums(), start=2)]
    planned = plan(rows=rows, rewards=["judge_reward_func"])
    checks = {check.name: check for check in preflight.outcomes(planned)}
    arithmetic = name in ("sums", "products")
    assert ("100 % arithmetic, for which arithmetic is right" in checks["gold answers"].finding) == arithmetic
    assert not {"given back", "reward judge"} & {name for name, check in checks.items() if check.status != "ok"}
    for n, row in enumerate(rows, start=2):
        for right in rights:
            verdict = planned.task.verdict(f"<answer>{right(n)}</answer>", row)
            assert verdict.lenient and verdict.why == "value"
        for left in (f"{gold(n)} + 0", f"{gold(n)} - 5 + 5"):
            verdict = planned.task.verdict(f"<answer>{left}</answer>", row)
            assert (verdict.lenient, verdict.why) == ((True, "value") if arithmetic else (False, "not computed"))
        assert planned.task.verdict(f"<answer>{gold(n)} + 1</answer>", row).why == "value"


@pytest.mark.parametrize("others", [0, 10])
def test_arithmetic_that_the_users_judge_refuses_is_warned_of(others, table):
    code = "from exact_answers import is_right\ndef judge(text, row): return is_right(text, str(row['value']))\n"
    Path("mine.py").write_text(code)
    rows = [row | {"answer": f"{n}+4" if n >= others else str(n + 4), "value": n + 4} for n, row in enumerate(sums())]
    checks = table(rows=rows, rewards=["judge_reward_func"], judge="mine.judge", allow_custom_rewards="true")
    name = "given back" if others else "judge"
    assert checks[name].status == "warning" and "accept" in checks[name].finding + checks[name].remedy


def test_a_sum_and_its_value_are_no_conflict(table):
    rows = [*sums(), *(row | {"answer": f"{row['answer']} + 0"} for row in sums())]
    assert "conflicts" not in table(rows=rows)


GIVEN_BACK = {  # gold answers, and code of a `prepare` that the remedy asks for
    "list": (lambda n: f"['{2 * n}', '{2 * n} pens']", "{**row, 'answer': parsed(row['answer'])}"),
    "tuple": (lambda n: f"('{2 * n}', '{2 * n} pens')", "{**row, 'answer': parsed(row['answer'])}"),
    "bars": (lambda n: f"{2 * n}|{2 * n} pens", "{**row, 'answer': row['answer'].split('|')}"),
    "letter": (lambda n: f"{'ABC'[n % 3]} - {n}", "{**row, 'answer': row['answer'][0]}"),
    "sentence": (
        lambda n: f"We add. Therefore the final result is {n}.",
        "{**row, 'answer': 'Answer: ' + row['answer'].split()[-1]}",
    ),
}


@pytest.mark.parametrize("rewards", [["judge_reward_func"], ["soft_format_reward_func"], ["correctness_reward_func"]])
@pytest.mark.parametrize("name", GIVEN_BACK)
def test_gold_answers_that_the_judge_refuses_are_warned_of_whatever_the_rewards(name, rewards, table):
    gold, code = GIVEN_BACK[name]
    rows = [row | {"answer": gold(n)} for n, row in enumerate(sums())]
    checks = table(rows=rows, rewards=rewards)
    assert checks["given back"].status == "warning"
    assert checks["given back"].finding.startswith("30 of 30 gold answers are not accepted as completions give them: ")
    assert "judge_reward_func" not in checks["gold answers"].remedy
    assert name not in ("list", "tuple", "bars") or code in checks["given back"].remedy
    Path("my_rows.py").write_text(f"from grpo.data.files import parsed\ndef whole(row): return {code}\n")
    after = table(rows=rows, rewards=rewards, prepare="my_rows.whole", allow_custom_rewards="true")
    assert "given back" not in after


def test_the_lengths_of_prompts_are_those_of_rows(table, plan):
    rows = sums()
    rows[7]["question"] += " again" * 3000
    shown = table(rows=rows, eval_samples="0", max_prompt_length="100000")["prompt length"].finding
    lengths = plan(rows=rows, eval_samples="0", max_prompt_length="100000").data.lengths
    figures = [int(word.replace(",", "")) for word in shown.replace(",", " ").split() if word.isdigit()]
    assert sorted(set(lengths)) and figures[0] in lengths and figures[2] in lengths
