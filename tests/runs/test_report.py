"""grpo/runs/report.py reads a run's files and shows them, whatever is missing and whatever a model wrote."""

import itertools
import json
import platform
import re
from pathlib import Path

import pytest
import yaml
from helpers_report import HOSTILE, PARTS, Page, summary, write_run

from grpo.core.errors import UserError
from grpo.runs import charts, directory, report


@pytest.fixture
def no_picture(monkeypatch):
    """A report without curves.png, which takes a second to draw."""
    monkeypatch.setattr(charts, "draw_curves", lambda *_: None)


@pytest.fixture
def undrawn(no_picture, monkeypatch):
    """A report without any curve."""
    monkeypatch.setattr(charts, "svg", lambda *_, **__: "")


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "run")


STAGES = [
    {"name": "format", "first_step": 1, "last_step": 9, "reward_funcs": ["int_reward_func"], "reward_weights": [1.0]},
    {
        "name": "answers",
        "first_step": 10,
        "last_step": 40,
        "reward_funcs": ["correctness_reward_func", "int_reward_func"],
        "reward_weights": [2.0, 0.5],
    },
]


def change_record(run, **changed):
    """In run.json; `settings` are added to those that it has."""
    record = json.loads((run / "run.json").read_text())
    changed["settings"] = record["settings"] | changed.get("settings", {})
    (run / "run.json").write_text(json.dumps(record | changed))


def test_stages_are_a_table_and_a_line_where_each_begins(run, monkeypatch):
    monkeypatch.setattr(charts, "svg", lambda *_, **__: "")  # the lines in curves.png are enough
    without = report.draw_curves(run).read_bytes()
    assert "Stage" not in Page(report.write(run)).text
    change_record(run, stages=STAGES)
    page = Page(report.write(run))
    assert "format 1 – 9 int × 1 answers 10 – 40 correctness × 2, int × 0.5" in page.text
    assert (run / "curves.png").read_bytes() != without


def test_weights_that_follow_success_are_drawn(run, no_picture):
    assert "weights change" not in Page(report.write(run)).text
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    text = "".join(json.dumps({**line, "reward_weights/int_reward_func": line["step"] / 8}) + "\n" for line in lines)
    (run / "metrics.jsonl").write_text(text)
    change_record(run, settings={"adaptive_rewards": ["all"]})
    text = Page(report.write(run)).text
    assert "Weight of int 0.25 → 3" in text and "sum of the rewards, whose weights change while training" in text


def test_a_step_that_was_logged_twice_counts_once(write_jsonl, tmp_path):
    lines = [
        {"step": 2, "reward": 1.5},
        {"step": 1, "reward": 1.0},
        {"step": 2, "reward": 1.6},
        {"step": 2, "loss": 0},
    ]
    write_jsonl(lines, "metrics.jsonl")
    assert report.read_metrics(tmp_path) == [{"step": 1, "reward": 1.0}, {"step": 2, "reward": 1.6}]


@pytest.mark.parametrize("tail", [b'{"step": 26, "rew', b'{"step": 26, "t": "\xe2\x80'])
def test_a_half_written_last_line_is_ignored(run, tail, undrawn):
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(tail)
    assert len(report.read_metrics(run)) == 12
    assert report.write(run).exists()


def test_another_broken_line_is_named_by_file_and_number(run):
    lines = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text("\n".join([*lines[:2], '{"step": 3, "rew{"step": 3}', *lines[2:]]) + "\n")
    with pytest.raises(UserError, match=r"metrics\.jsonl, line 3 is"):
        report.read_metrics(run)


@pytest.mark.parametrize("text", ["[]", "null", "3", "[" * 100_000])
def test_json_that_is_no_object_is_named_by_its_file(run, text):
    (run / "metrics.jsonl").write_text(f"{{}}\n{text}\n")
    with pytest.raises(UserError, match=r"metrics\.jsonl, line 2 is not a JSON object"):
        report.read_metrics(run)
    (run / "run.json").write_text(text)
    with pytest.raises(UserError, match=r"run\.json is not a JSON object"):
        report.write(run)


def test_the_pages_colours_are_the_charts_in_both_themes():
    style = Path(report.__file__).with_name("templates").joinpath("style.css").read_text()
    light, dark = (dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", part)) for part in style.split("@media", 2)[:2])
    assert {name: light[name] for name in charts.COLORS} == charts.COLORS
    assert set(charts.COLORS) <= set(dark)


def test_a_full_run_shows_the_numbers_of_its_files(run, no_picture):
    page = Page(report.write(run))
    for words in (
        "nplain",
        "finished 24 of 24 optimizer steps",
        "Too small to tell: plain.",
        "Lenient accuracy 50.0 → 62.5 %",
        "95 % intervals 31.2 – 43.8 before, 50.0 – 62.5 after",  # strict
        "tiny_variance at step 4 It fell: plain Do: plain",
        "Accuracy, lenient 50.0 43.8 – 56.2 62.5 56.2 – 68.8 +12.5 −25.0 … +43.8",
        "maj@4, sampled 37.5",
        "pass@4, sampled 75.0",
        "pass@1, sampled 31.2",
        "Mean length, tokens 31.2 31.2",
        "2 fixed , 1 broken , 3 right both times, 2 never.",
        "Fixed (the first 3 of 5)",
        "Reward 0.2 → 2.4",
        "int 0.25 → 0.25",
        "Truncated completions 6.25 → 6.25",
        "Loss −1e-5 → −1e-5 not a progress measure: near 0 by construction",
        "Learning rate 2.5e-6 → 2.5e-6",
        "KL divergence 0.125",
        "Entropy 0.75",
        "Tokens per second 2,000 → 2,000",
        "Duration 1 h 2 min",
        "Time in optimizer steps 6 s",
        "Tokens, prompts and completions 12,000",
        "NVIDIA H200, plain",
        "Commit 2e59ed2f10e2, with changes",
        "learning_rate 5e-06 0.0001",
        "torch 2.13.0",
    ):
        assert words in page.text
    assert page.text.count("question ") == 3 + 2  # fixed, broken


def test_limits_are_a_perfect_answers_reward_and_the_clipping(run, no_picture):
    lines = [json.loads(line) | {"grad_norm": 0.5} for line in (run / "metrics.jsonl").read_text().splitlines()]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    rewards = {"reward_funcs": ["int_reward_func"], "reward_weights": [2.0], "max_grad_norm": 0.1}
    change_record(run, perfect={"int_reward_func": 0.5}, settings=rewards)
    text = Page(report.write(run)).text
    for words in (
        "deviation; dotted: a perfect answer earns 1 ",
        "dotted: a perfect answer earns 0.5",
        "clipped to 0.1",
    ):
        assert words in text
    change_record(
        run, settings={"adaptive_rewards": ["all"], "max_grad_norm": 1e9}
    )  # the sum has no limit, the norm no effect
    text = Page(report.write(run)).text
    assert text.count("dotted:") == 1 and "clipped to" not in text


def test_a_limit_is_a_dotted_line_within_the_chart():
    curve = charts.read_curves([{"step": step, "kl": 0.25} for step in (1, 2)])["kl"]
    drawn = charts.svg(curve, "KL", 320, 150, [], limit=2.0)
    assert "stroke-dasharray" in drawn and ">2</text>" in drawn
    assert "stroke-dasharray" not in charts.svg(curve, "KL", 320, 150, [])


def test_questions_that_were_never_right_are_shown(run, undrawn):
    record = {
        "question": "How many?",
        "answer": "7",
        "completion": "8",
        "extracted": "",
        "strict": False,
        "lenient": False,
    }
    for when in ("before", "after"):
        (run / f"completions_{when}.jsonl").write_text(json.dumps(record) + "\n")
    assert "Never right How many? Gold answer: 7 Before ✗ wrong 8" in Page(report.write(run)).text


def test_a_curve_has_its_points_and_its_band():
    logs = [{"step": 10, "reward": 1.0, "reward_std": 2.0}, {"step": 30, "reward": 3.0, "reward_std": 1}]
    reward = charts.read_curves(logs)["reward"]
    assert (reward.steps, reward.values) == ([10, 30], [1.0, 3.0])
    assert (reward.lows, reward.highs) == ([-1.0, 2.0], [3.0, 4.0]) and reward.window == 1


def add_metrics(run, *lines):
    with (run / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def measured(step, share):
    shares = {f"eval/accuracy_lenient{end}": share + add for end, add in (("", 0), ("_low", -0.125), ("_high", 0.125))}
    return {"step": step, "eval/n": 8, **shares, "eval/accuracy_strict": share / 2, "time/evaluation": 1.5}


def test_accuracy_while_training_is_a_curve_with_its_interval(run, no_picture):
    page = Page(report.write(run)).text
    assert "Accuracy while it trained" not in page
    add_metrics(run, measured(0, 0.5), measured(12, 0.625), measured(24, 0.75), measured(12, 0.25))  # resumed at 11
    curves = report._read_curves(run)
    curve = curves["eval/accuracy_lenient"]
    assert (curve.steps, curve.values) == ([0, 12, 24], [50, 25, 75])
    assert (curve.lows, curve.highs) == ([37.5, 12.5, 62.5], [62.5, 37.5, 87.5])
    assert curves["eval/accuracy_strict"].values == [25, 12.5, 37.5] and curves["reward"].steps[-1] == 24
    change_record(run, settings={"eval_every": 12})
    page = Page(report.write(run)).text
    assert "Accuracy while it trained 8 held-out questions, one greedy completion each, every 12 optimizer" in page
    assert "Lenient accuracy 50 → 75 per cent; band: 95 % interval; grey: strict" in page and "biases" not in page


def test_without_gold_answers_the_reward_has_the_curve(run, undrawn):
    shares = {"eval/n": 8, "eval/format_strict": 0.5, "eval/reward": 2.5, "eval/reward_low": 2, "eval/reward_high": 3}
    add_metrics(run, {"step": 0, **shares})
    page = Page(report.write(run)).text
    assert "Reward of greedy answers while it trained 8 held-out questions" in page
    assert "Reward 2.5 → 2.5 weighted sum" in page and "Strict format 50 → 50" in page
    curve = report._read_curves(run)["eval/reward"]
    assert (curve.lows, curve.highs) == ([2], [3])


def test_trls_evaluations_have_curves_of_their_own(run, no_picture):
    lines = [{"step": step, "eval_reward": 0.5, "eval_rewards/int_reward_func/mean": 0.25} for step in (6, 12)]
    add_metrics(run, *lines)
    page = Page(report.write(run)).text
    assert "TRL's evaluation" in page and page.count("int 0.25 → 0.25") == 2
    assert report._read_curves(run)["eval_reward"].steps == [6, 12]


def test_groups_are_three_lines_with_what_to_do(run, monkeypatch):
    drawn = {}
    monkeypatch.setattr(charts, "draw_curves", lambda *_: None)
    monkeypatch.setitem(
        report._environment(True).globals, "svg", lambda _, label, *__, beside=(), **___: drawn.update({label: beside})
    )
    shares = {"groups/all_right": 0.25, "groups/all_wrong": 0.5, "groups/mixed": 0.25}
    add_metrics(run, *({"step": step, "reward": 1.0, **shares} for step in (25, 26)))
    page = Page(report.write(run)).text
    assert "these teach to be right; all right: use harder questions ; all wrong: easier ones" in page
    lines = drawn["Groups with right and wrong"]
    assert [(curve.values, name) for curve, name in lines] == [([25, 25], "good"), ([50, 50], "bad")]


def test_a_long_run_has_its_running_mean_drawn(run, no_picture):
    write_run(run, count=90)
    reward = charts.read_curves(report.read_metrics(run))["reward"]
    assert reward.window == 5 and reward.running_mean[44] == pytest.approx(reward.values[44])
    assert "Thick lines: running mean of some 5 logs" in Page(report.write(run)).text


def test_a_chart_is_an_element_in_the_pages_colours():
    curve = charts.read_curves([{"step": step, "kl": step / 7} for step in range(1, 9)])["kl"]
    drawn = charts.svg(curve, '"KL" <b>', 320, 150, [])
    assert drawn.startswith('<svg viewBox="0 0 320 150" role="img" aria-label="&#34;KL&#34; &lt;b&gt;: 0.143 at step')
    assert not re.search(r"#[0-9a-f]{6}|url\(|https?:| id=", drawn) and "var(--accent)" in drawn
    assert "opacity: 0.15" not in drawn
    reward = charts.read_curves([{"step": step, "reward": step, "reward_std": 1} for step in (1, 2)])["reward"]
    assert "opacity: 0.15" in charts.svg(reward, "Reward", 320, 150, [])  # its band


@pytest.mark.parametrize(
    ("steps", "ticks"),
    [
        (range(5, 31, 5), [10, 20, 30]),
        (range(1, 468), [200, 400, 467]),
        (range(3, 31, 3), [3, 12, 21, 30]),
        ([7], [7]),
        ([7, 9], [7, 9]),
    ],
)
def test_ticks_are_steps_that_were_logged_and_the_last(steps, ticks):
    assert charts._ticks(list(steps)) == ticks


def test_a_single_log_is_a_dot():
    one, two = ([{"step": step, "kl": 0.5} for step in range(4, end)] for end in (5, 6))
    dotted = [charts.svg(charts.read_curves(logs)["kl"], "KL", 320, 150, []) for logs in (one, two)]
    assert ["stroke-linecap: round" in chart for chart in dotted] == [True, False]


@pytest.mark.slow
def test_any_subset_of_the_files_makes_a_report(tmp_path, undrawn):
    for kept in [kept for count in (1, 5) for kept in itertools.combinations(PARTS, count)]:
        run = write_run(tmp_path / "run")
        for name in set(PARTS) - set(kept):
            (run / name).unlink()
        if set(kept) <= {"comparison.json", "alarms.jsonl"}:
            with pytest.raises(UserError, match="holds no run"):
                report.write(run)
            continue
        text = Page(report.write(run)).text
        assert ("What the policy earned" in text) == ("metrics.jsonl" in kept)
        assert ("held-out questions" in text) == bool({"eval_before.json", "eval_after.json"} & set(kept))
        assert ("not finished: it was killed, or still trains" in text) == ("run.json" not in kept)
        assert report.write_model_card(run).exists()


def test_an_evaluation_alone_is_shown_with_its_interval(tmp_path, no_picture):
    (tmp_path / "eval_only.json").write_text(json.dumps(summary(0.5, 0.375)))
    text = Page(report.write(tmp_path)).text
    assert "Strict accuracy 37.5 %" in text and "Accuracy, lenient 50.0 43.8 – 56.2" in text and "→" not in text


def test_the_page_needs_nothing_and_fits_phones_dark_and_paper(run, no_picture):
    page = Page(report.write(run))
    html = (run / "report.html").read_text()
    assert not [attrs for _, attrs in page.elements if {"src", "href", "srcset", "data"} & attrs.keys()]
    assert not re.search(r"https?:|url\(|@import|<link|<base", html)
    assert '<html lang="en">' in html and 'name="viewport" content="width=device-width' in html
    assert "@media screen and (prefers-color-scheme: dark)" in html and "@media print" in html
    assert not re.search(r"#[0-9a-f]{6}", html.partition("</style>")[2])  # charts take the page's colours


def test_a_long_completion_is_cut_in_the_middle_and_says_so(run, undrawn):
    record = {"question": "q", "answer": "1", "completion": "a" * 800 + "b" * 700 + "c" * 200, "extracted": ""}
    for when, right in (("before", False), ("after", True)):
        row = record | {"strict": right, "lenient": right}
        (run / f"completions_{when}.jsonl").write_text(json.dumps(row) + "\n")
    text = Page(report.write(run)).text
    assert f"{'a' * 600} … 900 characters omitted … {'c' * 200}" in text and "b" not in text.partition("aaa")[2][:900]


def test_a_right_number_without_its_form_is_told_apart(run, undrawn):
    for when, lenient in (("before", False), ("after", True)):
        record = {"question": "q", "answer": "1", "completion": "so 1", "extracted": "so 1", "strict": False}
        (run / f"completions_{when}.jsonl").write_text(json.dumps(record | {"lenient": lenient}) + "\n")
    text = Page(report.write(run)).text
    assert (
        "Before ✗ wrong so 1 nothing marks the answer After ✓ right answer, wrong form so 1 nothing marks the answer"
        in text
    )


@pytest.mark.parametrize("status", ["running", "finished", "evaluated", "stopped by an alarm: x", "failed: x"])
def test_only_the_page_of_a_run_that_trains_reloads_itself(run, status, undrawn):
    change_record(run, status=status)
    assert report.refresh(run, steps=48) == ""
    page = Page(run / "report.html")
    live = status == "running"
    assert [attrs["content"] for _, attrs in page.elements if "http-equiv" in attrs] == ["30"] * live
    assert ("running 24 of 48 optimizer steps As of " in page.text) == live
    assert not (run / "curves.png").exists()  # it is left to the end
    report.write(run)  # the user's command, of a run that was perhaps killed
    assert "http-equiv" not in (run / "report.html").read_text()


def test_a_page_that_cannot_be_written_leaves_the_one_before(run, undrawn, monkeypatch):
    assert report.refresh(run) == ""
    before, here = (run / "report.html").read_bytes(), {path.name for path in run.iterdir()}

    def full(part, text, **kwargs):
        part.write_bytes(text.encode()[:100])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    assert report.refresh(run) == "[Errno 28] No space left on device"
    assert (run / "report.html").read_bytes() == before and {path.name for path in run.iterdir()} == here
    (run / "metrics.jsonl").write_bytes(b"{\n{}\n")
    assert "line 1 is not a JSON object" in report.refresh(run)


def test_a_run_that_was_killed_is_told_from_one_that_trains(run, undrawn):
    change_record(run, status="running", process={"id": 1, "host": platform.node()}, resume="python train_grpo.py")
    (run / "checkpoint-4").mkdir()
    with directory.held(run, directory.last_written(run)):
        assert "killed optimizer" not in (text := Page(report.write(run)).text) and "or still trains" in text
        report.refresh(run)
        assert "http-equiv" in (run / "report.html").read_text()
    text = Page(report.write(run)).text
    assert " killed 24 of 24 optimizer steps" in text and "To resume: python train_grpo.py" in text
    change_record(run, process={"id": 1, "host": "another machine"})  # whose locks are not seen here
    assert "To resume, if it was killed: python train_grpo.py" in Page(report.write(run)).text


@pytest.mark.parametrize("status", ["finished", "running", "stopped by an alarm: x"])
def test_a_stopped_run_begins_with_its_alarms_and_how_to_resume(run, status, undrawn):
    change_record(run, status=status, resume="python train_grpo.py --resume_from_checkpoint auto")
    (run / "checkpoint-4").mkdir()
    text = Page(report.write(run)).text
    assert ("To resume: python train_grpo.py" in text) == status.startswith("stopped")
    assert text.index("tiny_variance at step 4") < text.index("Lenient accuracy")


def test_no_line_breaks_within_a_flag(run, undrawn):
    (run / "checkpoint-4").mkdir()
    change_record(
        run, status="interrupted", resume="python train_grpo.py --output_dir '<b>' --resume_from_checkpoint auto"
    )
    page = report.write(run).read_text()
    assert '&lt;b&gt;&#39; <span class="flag">--resume_from_checkpoint</span> auto</pre>' in page
    assert ".flag { white-space: nowrap; }" in page


def test_whole_numbers_are_shown_without_a_fraction(run, undrawn):
    changed = {"save_steps": {"inline": 500.0, "run": 100.0}, "learning_rate": {"inline": 1e-06, "run": 5e-06}}
    change_record(run, changed=changed, settings={"logging_steps": 1.0, "temperature": 0.7})
    text = Page(report.write(run)).text
    assert "save_steps 500 100" in text and "logging_steps 1 " in text and "temperature 0.7" in text
    body = report.write_model_card(run).read_text()
    assert "| `save_steps` | `500` | `100` |" in body and "| `learning_rate` | `1e-06` | `5e-06` |" in body


def test_two_reports_of_one_run_are_the_same(run):
    first = [path.read_bytes() for path in (report.write(run), run / "curves.png", report.write_model_card(run))]
    assert first == [
        path.read_bytes() for path in (report.write(run), run / "curves.png", report.write_model_card(run))
    ]


def test_curves_are_a_picture_without_an_evaluation_too(run):
    for name in ("eval_after.json", "eval_before.json"):
        (run / name).unlink()
        picture = report.draw_curves(run).read_bytes()
        assert picture.startswith(b"\x89PNG") and len(picture) > 10_000


# --- The model card -----------------------------------------------------------------------------------------------


def front_matter(card):
    _, head, body = card.read_text(encoding="utf-8").split("---\n", 2)
    return yaml.safe_load(head), body


def test_the_model_card_says_what_how_and_how_well(run):
    (run / "adapter_config.json").write_text("{}")
    head, body = front_matter(report.write_model_card(run))
    assert head == {
        "library_name": "peft",
        "pipeline_tag": "text-generation",
        "base_model": "Qwen/Qwen2.5-0.5B-Instruct",
        "datasets": ["openai/gsm8k"],
        "license": "other",
        "license_name": "as-the-base-model",
        "license_link": "https://huggingface.co/Qwen/Qwen2.5-0.5B-Instruct",
        "tags": ["trl", "grpo", "reinforcement-learning", "reasoning", "lora"],
    }
    assert "| Accuracy, lenient | 50.0 (43.8 – 56.2) | 62.5 (56.2 – 68.8) |" in body
    assert "> Too small to tell: plain." in body and "shao2024deepseekmath" in body and "TRL" in body
    assert "| `learning_rate` | `5e-06` | `0.0001` |" in body
    code = re.search(r"```python\n(.*?)```", body, re.DOTALL)[1]
    compile(code, "card", "exec")
    assert '"role": "system", "content": "Respond so:' in code


def test_the_card_has_the_license_of_a_base_model_at_hand(run):
    change_record(run, settings={"model_name_or_path": "assets/demo/model"})
    Path("assets/demo/model").mkdir(parents=True)
    Path("assets/demo/model/README.md").write_text("---\nlicense: apache-2.0\nlicense_link: a: b\n---\n")
    assert front_matter(report.write_model_card(run))[0]["license"] == "other"  # a link that is not YAML
    Path("assets/demo/model/README.md").write_text("---\nlicense: apache-2.0\ntags: [x]\n---\n# Base\n")
    head, body = front_matter(report.write_model_card(run))
    assert head["license"] == "apache-2.0" and "license_name" not in head and "(apache-2.0)." in body


def test_the_card_leaves_this_machine_out(run):
    change_record(run, changed={key: {"inline": None, "run": "x"} for key in ("output_dir", "report_to", "seed")})
    _, body = front_matter(report.write_model_card(run))
    assert 'model="your-name/run")' in body and "`seed`" in body
    assert "outputs/" not in body and "`output_dir`" not in body and "`report_to`" not in body


@pytest.mark.parametrize("name", ["assets/demo/model", "./model", "here", "a/rows.jsonl", "rows.csv", "b.parquet"])
def test_local_paths_are_no_hub_ids(run, name):
    Path("here").mkdir()
    change_record(run, settings={"model_name_or_path": name, "dataset_name": name})
    head, _ = front_matter(report.write_model_card(run))
    assert "base_model" not in head and "datasets" not in head


@pytest.mark.parametrize("name", [HOSTILE, "a: b", "org/name\nlicense: mit", "org/name\n"])
def test_names_can_break_neither_front_matter_nor_markdown(tmp_path, name):
    run = write_run(tmp_path / "run", name)
    change_record(run, settings={"model_name_or_path": name, "dataset_name": name})
    head, body = front_matter(report.write_model_card(run))
    assert head.keys() == {"library_name", "pipeline_tag", "tags", "license", "license_name"}
    code = re.search(r"```python\n(.*?)```", body, re.DOTALL)
    compile(code[1], "card", "exec")
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", body, flags=re.DOTALL)  # code is text
    assert not re.search(r"(?<!\\)[<`]|&#", prose)
    assert not re.search(r"\[a\]|(?<!\\)\]\(|(?m:^---)|(?m:^- a)|(?m:^license)", prose)
    columns = [line.count("|") for line in prose.splitlines() if line.startswith("|")]
    assert set(columns) == {4}  # no name adds a column: three columns in both tables


def test_a_card_in_mid_run_says_that_training_goes_on(run):
    change_record(run, status="running")
    (run / "eval_after.json").unlink()
    (run / "comparison.json").unlink()
    _, body = front_matter(report.write_model_card(run))
    assert "Training had not finished" in body and "evaluated before training only, so far" in body


# --- The command line ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("argv", [[], ["none"], ["--x"]])
def test_another_directory_is_one_line_and_status_2(argv, capsys):
    assert report.main(argv) == 2
    out, err = capsys.readouterr()
    assert err.startswith("error: ") and err.count("\n") == 1 and not out


@pytest.mark.parametrize(("name", "content"), [("run.json", '{"n": 3,'), ("comparison.json", "")])
def test_a_broken_file_is_one_line_that_names_it(run, name, content, capsys):
    (run / name).write_text(content)
    assert report.main([str(run)]) == 2
    err = capsys.readouterr().err
    assert name in err and err.count("\n") == 1


def test_numbers_are_shown_to_three_digits():
    shown = {0: "0", 842354.0: "842,354", 34.0875: "34.1", 0.018418: "0.0184", 2.115e-8: "2.1e-8", -0.0972: "−0.0972"}
    assert {value: charts.number(value) for value in shown} == shown
