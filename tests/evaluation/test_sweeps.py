"""benchmarks/learning_rates.py and ablations.py: their arms, equal time, reading and drawing what is finished."""

import json
import os
import sys
from pathlib import Path

import pytest
import scipy
from helpers_report import write_learner
from helpers_runs import ROOT

from grpo.config import compare
from grpo.core.errors import UserError
from grpo.evaluation import comparison
from grpo.evaluation.side_by_side import Estimate

sys.path.insert(0, str(ROOT / "benchmarks"))
import ablations
import bench_runs
import learning_rates

DEMO = [*ablations.DEMO[:1], str(ROOT / ablations.DEMO[1]), *ablations.DEMO[2:]]
BASE = {
    "max_steps": 15,
    "per_device_train_batch_size": 16,
    "gradient_accumulation_steps": 4,
    "num_generations": 8,
    "max_samples": None,
}
ARMS = dict(learning_rates.ARMS)
for group in ablations.GROUPS:
    ARMS |= ablations.arms(group, BASE)


@pytest.mark.parametrize("name", ARMS)
def test_the_program_takes_every_arms_flags(name, monkeypatch):
    monkeypatch.chdir(ROOT)
    settings = compare._resolve([*DEMO, *ARMS[name]])
    expected = {
        "lora-5e-4": ("learning_rate", 5e-4),
        "all-5e-6": ("use_peft", False),
        "lora-1e-3": ("use_peft", True),
        "filter": ("max_samples", 120),
        "curriculum": ("curriculum", True),
        "two-stages": ("reward_weights", [1.0, 1.0, 1.0, 0.0, 0.0]),
        "adaptive": ("adaptive_rewards", ["all"]),
        "skip-unsolved": ("skip_unsolved", True),
        "stock-step": ("packed", False),
        "lean-step": ("packed", True),
        "bf16-plain": ("dtype", "bfloat16"),
        "float32-kahan": ("bf16", True),
        "float32-throughout": ("bf16", False),
    }
    key, value = expected.get(name, ("max_steps", 15))
    assert settings[key] == value


def test_only_questions_that_the_base_trains_on_are_sampled():
    assert ablations.trained_on(BASE) == 15 * 64 // 8
    assert ablations.trained_on(BASE | {"max_samples": 50}) == 50
    with pytest.raises(UserError, match="max_steps is needed"):
        ablations.trained_on(BASE | {"max_steps": -1})


def test_short_runs_give_the_cost_of_a_start_and_a_step():
    pilots = {"base": {4: 18.0, 12: 34.0}, "stock": {12: 58.0}, "filter": {12: 40.0}}
    found = ablations.costs(pilots, ["base", "adaptive", "stock", "filter"])
    assert found["base"] == found["adaptive"] == ablations.Cost(10, 2) and found["base"].seconds(15) == 40
    assert found["stock"] == ablations.Cost(10, 4) and found["filter"] == ablations.Cost(16, 2)
    with pytest.raises(UserError, match="use longer --pilots"):
        ablations.costs({"base": {4: 18.0, 12: 18.0}}, [])


def test_arms_get_the_steps_that_fit_the_bases_seconds():
    known = {"base": (10, 2), "stock": (10, 4), "filter": (25, 2), "adaptive": (10.1, 2), "fast": (10, 1.5)}
    costs = {name: ablations.Cost(*cost) for name, cost in known.items()}
    assert ablations.equal_time(costs, 15) == {"base": 15, "stock": 7, "filter": 7, "adaptive": 14, "fast": 20}
    with pytest.raises(UserError, match="filter starts for longer than the base runs"):
        ablations.equal_time(costs | {"filter": ablations.Cost(39, 2)}, 15)


def test_short_runs_are_made_once(monkeypatch):
    asked = []

    def pilot(flags, steps, directory):
        asked.append((flags, steps))
        return 10.0 + steps

    monkeypatch.setattr(ablations, "pilot", pilot)
    file = Path("pilots.json")
    ablations.measure(["--config", "demo"], {"base": []}, (4, 12), file)
    every = {"base": [], "filter": ["--max_samples", "9"], "adaptive": []}  # adaptive costs what the base does
    ablations.measure(["--config", "demo"], every, (4, 12), file)
    assert ablations.read_pilots(file) == {"base": {4: 14.0, 12: 22.0}, "filter": {12: 22.0}}
    assert [steps for _, steps in asked] == [4, 12, 12] and asked[2][0] == ["--config", "demo", "--max_samples", "9"]
    with pytest.raises(UserError, match=r"'pilots.json' is of runs with --config demo; use another --output"):
        ablations.measure(["--config", "smollm2"], every, (4, 12), file)


def test_a_pilot_leaves_the_users_cache_as_it_is(monkeypatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", "mine")
    seen = []
    monkeypatch.setattr(compare, "start", lambda flags: seen.append(os.environ["HF_DATASETS_CACHE"]))
    ablations.pilot([], 4, "pilots")
    assert [*seen, os.environ["HF_DATASETS_CACHE"]] == ["pilots/cache", "mine"]


def test_the_advantage_of_one_seed_is_paired():
    for name, gain in (("base", 1), ("other", 5)):
        write_learner(Path(f"{name}-seed1"), gain)
    found = bench_runs.read(["other", "base"], [1, 2], Path())
    low, high = comparison.tango(4, 0, 8)
    assert bench_runs.advantage(found["other"], found["base"]) == Estimate(50.0, 100 * low, 100 * high)
    assert bench_runs.advantage(found["other"], {}) is None


def test_other_answers_before_training_count_in_the_advantage():
    """Runs in other number formats begin elsewhere, and may end alike."""
    write_learner(Path("base-seed1"), 5)
    write_learner(Path("other-seed1"), 4, right=3)
    found = bench_runs.read(["other", "base"], [1], Path())
    less = bench_runs.advantage(found["other"], found["base"])
    reference = scipy.stats.ttest_1samp([0, 0, -100, 0, 0, 0, 0, 0], 0).confidence_interval(0.95)
    assert (less.value, less.low, less.high) == pytest.approx((-12.5, *reference))


def test_seeds_that_differ_by_the_same_are_paired_by_question():
    for seed in (1, 2):
        write_learner(Path(f"base-seed{seed}"), 1)
        write_learner(Path(f"other-seed{seed}"), 5)
    found = bench_runs.read(["other", "base"], [1, 2], Path())
    low, high = comparison.tango(4, 0, 8)
    assert bench_runs.advantage(found["other"], found["base"]) == Estimate(50.0, 100 * low, 100 * high)
    assert "(" in bench_runs.accuracies(found["other"].values(), "lenient")[2]


def test_the_advantage_of_several_seeds_is_paired_by_seed():
    for name, gains in (("base", [1, 0, 1]), ("other", [5, 6, 4])):
        for seed, gain in enumerate(gains):
            write_learner(Path(f"{name}-seed{seed}"), gain)
    write_learner(Path("other-seed7"), 6)  # the base has no such seed
    runs = bench_runs.read(["other", "base"], [0, 1, 2, 7], Path())
    found = bench_runs.advantage(runs["other"], runs["base"])
    reference = scipy.stats.ttest_1samp([50.0, 75.0, 37.5], 0).confidence_interval(0.95)
    assert (found.value, found.low, found.high) == pytest.approx((54.16666667, *reference))


def test_gains_have_the_interval_of_the_seeds():
    for seed, gain in enumerate([5, 6, 4]):
        write_learner(Path(f"base-seed{seed}"), gain)
    runs = bench_runs.read(["base"], [0, 1, 2], Path())["base"]
    low, high = scipy.stats.ttest_1samp([62.5, 75.0, 50.0], 0).confidence_interval(0.95)
    gain = f"+62.5 ({low:+.1f} to {high:+.1f})"
    assert bench_runs.accuracies(runs.values(), "lenient") == ["50.0 (44-56)", "62.5 (56-69)", gain]


def test_what_is_not_finished_is_not_read():
    write_learner(Path("base-seed1"), 1)
    run = write_learner(Path("base-seed2"), 1)
    (run / "run.json").write_text(json.dumps({"status": "running"}))
    assert list(bench_runs.read(["base", "other"], [1, 2, 3], Path())["base"]) == [1]
    with pytest.raises(UserError, match="no arm with seed 1 is finished"):
        bench_runs.read(["other"], [1], Path())


def test_each_arm_is_trained_with_its_own_flags(monkeypatch):
    lines = []
    resolved = []
    monkeypatch.setattr(compare, "resolve_all", resolved.extend)
    monkeypatch.setattr(compare, "train", lambda seeds, flags: (lines.append(flags) or [], 0))
    chosen = bench_runs.choose({"a": ["--x", "1"], "b": [], "c": []}, ["b", "a"])
    bench_runs.train(["--config", "demo"], chosen, [1], Path("runs"))
    tail = ["--output_dir", "runs/a"]
    assert lines == [["--config", "demo", "--x", "1", *tail], ["--config", "demo", "--output_dir", "runs/b"]]
    assert resolved == [["--config", "demo", "--x", "1"], ["--config", "demo"]]
    assert bench_runs.choose({"a": []}, []) == {} and list(bench_runs.choose({"a": []}, None)) == ["a"]
    with pytest.raises(UserError, match="there is no 'z'; choose from a"):
        bench_runs.choose({"a": []}, ["z"])
    monkeypatch.setattr(compare, "train", lambda *_: ([], 130))
    with pytest.raises(SystemExit) as end:
        bench_runs.train([], {"a": []}, [1], Path())
    assert end.value.code == 130


def test_an_arm_that_cannot_run_stops_the_first_one(monkeypatch):
    monkeypatch.setattr(compare, "train", lambda *_: pytest.fail("it trained"))
    with pytest.raises(UserError, match="num_generations"):
        bench_runs.train(DEMO, {"a": [], "b": ["--num_generations", "1"]}, [1], Path())


def points(*known):
    return [dict(zip(("rate", "seed", "after", "low", "high"), point, strict=True)) for point in known]


def test_results_of_a_model_grow_and_those_of_others_stay():
    file, other = Path("results.json"), {"steps": 9, "questions": 8, "before": 1.0, "all": [], "lora": []}
    file.write_text(json.dumps({"other": other}))
    write_learner(Path("lora-1e-4-seed1"), 4)
    found = learning_rates.results(bench_runs.read(learning_rates.ARMS, [1], Path()))
    assert found["lora"] == points((1e-4, 1, 62.5, 56.25, 68.75)) and found["all"] == []
    learning_rates.keep(file, "mine", found)
    more = {**found, "lora": points((1e-4, 1, 70, 60, 80), (1e-5, 1, 20, 10, 30))}
    every = learning_rates.keep(file, "mine", more)
    assert every["other"] == other and json.loads(file.read_text()) == every
    assert [(point["rate"], point["after"]) for point in every["mine"]["lora"]] == [(1e-5, 20), (1e-4, 70)]
    before = file.read_text()
    longer = {**found, "steps": 99, "lora": points((1e-3, 2, 70, 60, 80))}
    with pytest.raises(UserError, match="holds runs of mine with 24 steps, these have 99; set --name or --results"):
        learning_rates.keep(file, "mine", longer)
    assert file.read_text() == before
    with pytest.raises(UserError, match="with 8 questions, these have 20"):
        learning_rates.keep(file, "mine", {**found, "questions": 20})


def test_runs_of_another_length_are_refused_at_once(monkeypatch, capsys):
    Path("results.json").write_text(json.dumps({"mine": {"steps": 30, "questions": 200}}))
    monkeypatch.setattr(compare, "resolve", lambda flags: BASE)
    words = ["--name", "mine", "--results", "results.json", "--arms", "all-1e-4"]
    monkeypatch.setattr(sys, "argv", ["learning_rates.py", *words])
    assert bench_runs.start(learning_rates.parser(), learning_rates.run) == 2
    assert "holds runs of mine with 30 steps, these have 15" in capsys.readouterr().err


def test_the_chart_is_drawn_from_the_results_alone(monkeypatch):
    one = {"steps": 30, "questions": 200, "before": 45.0}
    one |= {"all": points((1e-5, 1, 50, 45, 55), (1e-5, 2, 54, 48, 60), (1e-4, 1, 90, 85, 95)), "lora": []}
    Path("results.json").write_text(json.dumps({"first": one, "second": one}))
    words = ["learning_rates.py", "--draw", "--results", "results.json", "--chart", "chart.svg"]
    monkeypatch.setattr(sys, "argv", words)
    assert bench_runs.start(learning_rates.parser(), learning_rates.run) == 0
    drawn = Path("chart.svg").read_text()
    assert all(text in drawn for text in ("first, 30 steps", "second, 30 steps", "all weights", "before training"))


@pytest.mark.parametrize(
    ("script", "words", "says"),
    [
        (learning_rates, ["--draw", "--results", "nowhere.json"], "error: results: 'nowhere.json' does not exist"),
        (learning_rates, ["--draw", "--results", "broken.json"], "error: results: 'broken.json' is no JSON"),
        (learning_rates, ["--seeds", "x"], "error: seeds: 'x' is not a whole number"),
        (learning_rates, ["--seed", "1"], "error: --seed 1: no such flag"),
        (learning_rates, ["--output", "broken.json/x"], "error: [Errno 20] Not a directory"),
        (ablations, ["--pilots", "4", "4"], "error: pilots: [4, 4] are not two different numbers"),
        (ablations, ["--pilots", "0", "4"], "error: pilots: [0, 4] are not two different numbers"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(script, words, says, monkeypatch, capsys):
    Path("broken.json").write_text("{")
    monkeypatch.setattr(sys, "argv", ["benchmark.py", "--output", ".", *words])
    assert bench_runs.start(script.parser(), script.run) == 2
    error = capsys.readouterr().err
    assert error.startswith(says) and error.count("\n") == 1


def shown(monkeypatch, capsys, *words):
    """What ablations.py prints with these arguments, where nothing is trained."""
    monkeypatch.setattr(compare, "resolve", lambda flags: BASE)
    monkeypatch.setattr(sys, "argv", ["ablations.py", "--output", ".", *words])
    assert bench_runs.start(ablations.parser(), ablations.run) == 0
    return " ".join(capsys.readouterr().out.replace("│", " ").split())


def test_the_table_has_steps_seconds_and_the_gain_less_the_bases(monkeypatch, capsys):
    write_learner(Path("base-seed1"), 1)
    write_learner(Path("filter-seed1"), 5)
    seconds = {"base": {"4": 18.0, "12": 34.0}, "filter": {"12": 40.0}}
    Path("pilots.json").write_text(json.dumps({"flags": [], "seconds": seconds}))
    table = shown(monkeypatch, capsys, "--seeds", "1", "2", "--arms")
    assert "base 1 24 58 50.0 (44-56) 62.5 (56-69) +12.5 (" in table  # 10 + 24 × 2 seconds
    assert "filter 1 24 64 50.0 (44-56) 62.5 (56-69) +62.5 (" in table and "+50.0 (" in table


def test_curves_that_are_the_same_are_zero_apart(monkeypatch, capsys):
    for name in ("lean-step", "stock-step"):
        path = write_learner(Path(f"{name}-seed1"), 1) / "metrics.jsonl"
        grown = 1.5 if name == "stock-step" else 1
        lines = [{"step": step, "reward": 2.0, "grad_norm": grown if step == 3 else 1.0} for step in (1, 2, 3, 4)]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert "grad_norm 5.0e-01, reward 0.0e+00" in shown(
        monkeypatch, capsys, "--group", "curve", "--seeds", "1", "--arms"
    )
