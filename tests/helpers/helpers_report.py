"""A run's files, made up, and a reader of the page that reports them."""

import json
from dataclasses import replace
from html.parser import HTMLParser

from helpers_samples import answered

from grpo.core.jsonfiles import read_lines, write_lines
from grpo.report import contents
from grpo.results import comparison
from grpo.results.samples import read_samples, save_watched

PARTS = ("run.json", "metrics.jsonl", "eval_before.json", "eval_after.json", "comparison.json", "alarms.jsonl")
GRADES = ("strict", "lenient", "format_strict", "format_soft")
VOID = {"meta", "br", "hr", "link", "img", "input"}


def summary(lenient, strict):
    shares = {"accuracy_lenient": lenient, "accuracy_strict": strict, "format_strict": 0.25, "format_soft": 0.5}
    shares |= {"truncated": 0.125, "maj_k": 0.375, "pass_k": 0.75}
    bounds = {f"{key}_{end}": shares[key] + add for key in shares for end, add in (("low", -0.0625), ("high", 0.0625))}
    return {"n": 8, "k": 4, **shares, **bounds, "mean_length": 31.25, "seconds": 1.5}


def write_run(run, text="plain", count=12):
    """A finished run of 12 logs, with `text` in every place where a user or a model can write."""
    run.mkdir(exist_ok=True)
    paired = {"both": 3, "fixed": 2, "broken": 1, "neither": 2, "before": 0.5, "after": 0.625, "p_value": 0.5}
    paired |= {"difference": 0.125, "difference_low": -0.25, "difference_high": 0.4375}
    settings = {
        "model_name_or_path": "Qwen/Qwen2.5-0.5B-Instruct",
        "dataset_name": "openai/gsm8k",
        "run_name": "n" + text,
    }
    files = {
        "run.json": {
            "started": "2026-11-21T12:47:17+0000",
            "launcher": "python",
            "program": "train_grpo.py",
            "argv": [text],
            "commit": "2e59ed2f10e276edf419cc3b941a7b4c9f4a87a3+",
            "versions": {"torch": "2.13.0", text: text},
            "sources": {"system prompt": "1", f"code of {text}": "2"},
            "code": {text: f"def plain(completions):\n    return {text}"},
            "hardware": {"machine": "x86_64", "cpus": 2, "gpus": ["NVIDIA H200", text]},
            "geometry": {"world_size": 2, "num_generations": 16},
            "settings": settings | {"output_dir": f"outputs/{text}", "max_steps": 24, "stop": text, text: None},
            "origin": {"max_steps": "flag", "run_name": "script", text: "recipe"},
            "prompt": {
                "system": f"Respond so:\n```\n{text}",
                "opening": text,
                "chat": True,
                "question": f"{text} {{question}}",
                "completion": text,
            },
            "status": "finished",
            "seconds": 3725.0,
        },
        "eval_before.json": summary(0.5, 0.375) | {"step": 0},
        "eval_after.json": summary(0.625, 0.5625) | {"step": 2 * count},
        "comparison.json": {
            "step": 2 * count,
            "n": 8,
            "verdict": "too_small_to_tell",
            "sentence": f"Too small to tell: {text}.",
            "diagnosis": [f"it hardly moved {text}; raise learning_rate"],
            "lenient": paired,
        },
    }
    for name, content in files.items():
        (run / name).write_text(json.dumps(content))
    lines = []
    for step in range(2, 2 * count + 1, 2):
        line = {
            "step": step,
            "reward": step / 10,
            "reward_std": 0.5,
            "rewards/int_reward_func/mean": 0.25,
            "loss": -1e-5,
        }
        line |= {f"rewards/{text}/mean": None if step == 4 else -0.5, "completions/mean_length": 30.0, "kl": 0.125}
        line |= {"completions/min_length": 0, "completions/max_length": 80, "completions/clipped_ratio": 0.0625}
        line |= {"entropy": 0.75, "learning_rate": 2.5e-6, "num_tokens": 500 * step, "step_time": 0.25}
        lines.append(line)
    lines.append({"step": 2 * count, "train_runtime": 9.0, "train_loss": 0.0})
    alarm = {"step": 4, "name": "zero_variance", "message": f"It fell: {text}", "remedy": f"Do: {text}"}
    records = {"before": [], "after": []}
    for index, (before, after) in enumerate([(False, True)] * 5 + [(True, False)] * 2 + [(True, True)]):
        for when, right in (("before", before), ("after", after)):
            record = {"question": f"question {index} {text}", "answer": "7", "strict": right, "lenient": right}
            record |= {"format_strict": right, "format_soft": right}
            record |= {"completion": f"{when} {index} <answer>\n{text}", "read": text, "truncated": not right}
            records[when].append(record)
    jsonl = {"metrics": lines, "alarms": [alarm], **{f"completions_{when}": rows for when, rows in records.items()}}
    for name, rows in jsonl.items():
        (run / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return run


def change(run, name="run.json", **values):
    """Replace values in a file of a run."""
    path = run / name
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def add_metrics(run, *lines):
    with (run / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def write_learner(run, gain, right=2, **settings):
    """A finished run whose first `right` of eight answers are right before training, and `gain` more after it."""
    write_run(run)
    evaluations = {
        when: [answered(str(at), **dict.fromkeys(GRADES, at < count)) for at in range(8)]
        for when, count in (("before", right), ("after", right + gain))
    }
    for when, answers in evaluations.items():
        write_lines(run / f"completions_{when}.jsonl", [one.to_json() for one in answers])
    (run / "comparison.json").write_text(json.dumps(comparison.compare(*evaluations.values()) | {"step": 24}))
    record = json.loads((run / "run.json").read_text())
    origin = dict.fromkeys(settings, "script")
    change(run, settings=record["settings"] | settings, origin=record["origin"] | origin)
    return run


def add_kinds(run, values, column="subject"):
    """Give the held-out questions of a run these values in a column, in turn, by which it evaluates (`eval_by`)."""
    for path in run.glob("completions_*.jsonl"):
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        rows = (line | {"row": {column: values[at % len(values)]}} for at, line in enumerate(lines))
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    change(run, settings=json.loads((run / "run.json").read_text())["settings"] | {"eval_by": column})
    return run


def watch(run, *steps, measure="m", reward="own"):
    """Let a run have answered its watched questions at these steps, besides before and after."""
    for path in run.glob("completions_*.jsonl"):
        write_lines(path, read_lines(path))  # as a run writes them: without half signs
    before = read_samples(run / "completions_before.jsonl")
    for step in steps:
        given = {"text": f"at step {step}", "rewards": {reward: 2.0, "off": 0.0}, "reward": 1.5}
        save_watched(run, [replace(sample, **given) for sample in before], step, measure)
    for when in ("before", "after"):
        change(run, f"eval_{when}.json", measure="m")
    settings = json.loads((run / "run.json").read_text())["settings"]
    change(run, settings=settings | {"eval_strategy": "steps"})
    return run


def page_of(run):
    """Draw a run's report, and read it."""
    contents.draw(run)
    return Page(run / "report.html")


class Page(HTMLParser):
    """The elements of a page with their attributes, and its text; every element must be closed in order."""

    def __init__(self, path):
        super().__init__()
        self.elements, self.words, self.open = [], [], []
        self.feed(path.read_text(encoding="utf-8"))
        assert not self.open
        self.text = " ".join(" ".join(self.words).split())
        self.names = {name for name, _ in self.elements}

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.words.append(data)
