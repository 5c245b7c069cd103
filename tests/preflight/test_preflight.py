"""Each check of preflight is ok where all is well, and names what is wrong and the remedy."""

import copy
import dataclasses
import json
import re
import shutil
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from helpers_runs import DEMO, ROWS
from helpers_trainer import make_trainer
from peft import LoraConfig, get_peft_model
from tokenizers import processors
from transformers import AutoModelForCausalLM, MixtralConfig
from trl import GRPOTrainer

import train_grpo
from grpo.core.checklist import Check, warn_if
from grpo.core.errors import UserError
from grpo.policy import memory
from grpo.preflight import data_checks, model_checks, preflight
from grpo.preflight.preflight import stop_at_errors
from rewards import REWARD_FUNCS

FIVE = tuple(REWARD_FUNCS)


def test_a_sound_run_is_ok_throughout(table):
    checks = table(rows=[{"question": f"What is {n} + 1?", "answer": f"#### {n + 1}"} for n in range(400)])
    assert {check.status for check in checks.values()} == {"ok"} and not any(c.remedy for c in checks.values())
    expected = {"geometry", "tracker", "output", "schema", "dataset", "held out", "overlap", "prompt length"}
    expected |= {"completion length", "gold answers", "all rewards", "this run", "model", "memory", "disk"}
    assert expected <= set(checks)
    assert "300 training rows" in checks["dataset"].finding and "100 held-out" in checks["held out"].finding
    assert "after #### in 400 of 400 rows" in checks["gold answers"].finding
    assert "1.7 of 1.7 million" in checks["model"].finding


def test_a_run_shows_the_routine_checks_only_if_something_is_wrong(table):
    checks = [*table(max_completion_length="8").values()]
    shown = preflight.folded(checks)
    assert [check for check in shown if check.status != "ok"] == [check for check in checks if check.status != "ok"]
    assert {"geometry", "dataset", "held out", "gold answers", "model", "completion length"} <= {c.name for c in shown}
    more = shown[-1]
    assert more.status == "ok" and "schema" in more.finding and "dry_run" in more.finding and len(shown) < len(checks)
    hidden = {check.name for check in checks} - {check.name for check in shown}
    by_name = {check.name: check for check in checks}
    assert hidden and all(name in more.finding and by_name[name].routine for name in hidden)
    assert preflight.folded(shown[:-1]) == shown[:-1]


def test_a_new_check_is_one_function_in_its_place(table, tiny_run, monkeypatch, capsys):
    before = list(table())
    monkeypatch.setattr(data_checks, "CHECKS", copy.deepcopy(data_checks.CHECKS))

    @data_checks.CHECKS.add
    def about_long_questions(plan):
        yield warn_if(False, "long questions", f"{len(plan.data.train)} are short", "shorten them")

    after = table()
    assert after["long questions"].finding == "30 are short"
    place = before.index("completion length") + 1  # the last of the data's
    assert list(after) == [*before[:place], "long questions", *before[place:]]
    assert train_grpo.main(tiny_run(dry_run="true")) == 0
    lines = capsys.readouterr().out.splitlines()
    shown = [name for name in after for line in lines if re.match(rf"(ok|warning) +{re.escape(name)} ", line)]
    assert shown[shown.index("long questions") - 1 :][:3] == ["completion length", "long questions", "all rewards"]


def adds_its_end(tokenizer):
    tokenizer.chat_template = None  # plain text, which gets what the tokenizer adds
    end = (tokenizer.eos_token, tokenizer.eos_token_id)
    single = f"$A {tokenizer.eos_token}"
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(single=single, special_tokens=[end])


def test_an_end_token_at_a_prompts_end_is_an_error_and_shown(table):
    fields = json.dumps({"chat": False, "system": "s", "completion": "<answer>{answer}</answer>"}, separators=",:")
    found = table(edit=adds_its_end, prompt_format=fields)["end token"]
    assert found.status == "error" and "'<|im_end|>'" in found.finding and "add_eos_token" in found.remedy
    assert "end token" not in table(prompt_format=fields)


@pytest.mark.parametrize("opening", ["", "<|im_start|>assistant<|im_end|>\n"])  # whatever add_generation_prompt says
def test_a_template_that_opens_no_turn_is_an_error(opening, table):
    turn = "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"

    def opens_none(tokenizer):
        tokenizer.chat_template = "{% for m in messages %}" + turn + "{% endfor %}" + opening

    found = table(edit=opens_none)["end token"]
    assert found.status == "error" and "add_generation_prompt" in found.remedy


def test_completions_are_tried_as_the_tokenizer_gives_them_back(table):
    """Tags that decoding drops earn nothing here, as in training."""

    def drops_tags(tokenizer):
        tokenizer.add_special_tokens({"additional_special_tokens": ["<answer>", "</answer>"]})

    assert table()["all rewards"].status == "ok"
    assert "perfect earns" in table(edit=drops_tags)["all rewards"].finding
    assert table(edit=drops_tags)["all rewards"].status == "warning"


def test_target_modules_that_match_nothing_are_named(table):
    peft = {"use_peft": "true", "learning_rate": "1e-3"}
    assert "lora_target_modules" not in table(**peft) and "lora_target_modules" not in table(
        **peft, lora_target_modules="all-linear"
    )
    found = table(**peft, lora_target_modules="q_proj v_prj")["lora_target_modules"]
    assert found.status == "error" and "is called v_prj;" in found.finding
    assert "gate_proj" in found.finding and "all-linear" in found.remedy
    # a single name is a name, and no regular expression for the whole path
    assert table(**peft, lora_target_modules="q_proj")["model"].status == "ok"
    assert table(**peft, lora_target_modules=r".*\.q_proj")["model"].status == "ok"
    for single in ("v_prj", "all_linear"):
        found = table(**peft, lora_target_modules=single)["lora_target_modules"]
        assert f"is called {single};" in found.finding and "gate_proj" in found.finding


@pytest.mark.parametrize(
    ("key", "wrong", "right"),
    [
        ("lora_modules_to_save", "lm_hed", "lm_head"),
        ("lora_target_parameters", "mlp.gate_proj.wight", "mlp.gate_proj.weight"),
    ],
)
def test_what_else_an_adapter_names_is_there(key, wrong, right, table):
    peft = {"use_peft": "true", "learning_rate": "1e-3", "lora_dropout": "0"}
    found = table(**peft, **{key: wrong})[key]
    assert found.status == "error" and f"is called {wrong}" in found.finding
    assert key not in table(**peft, **{key: right})


@pytest.mark.parametrize("adapter", [None, LoraConfig()])
def test_quantized_weights_need_an_adapter_to_be_trained(adapter):
    """4-bit weights, which no CPU can have."""
    model = SimpleNamespace(load_in_4bit=True, load_in_8bit=False, model_name_or_path="m")
    plan = SimpleNamespace(config=SimpleNamespace(model=model), peft_config=adapter)
    found = [(check.status, check.name, check.remedy) for check in model_checks.about_quantization(plan)]
    remedy = "add --use_peft true, which trains an adapter on them, or drop load_in_4bit and load_in_8bit"
    assert found == ([] if adapter else [("error", "use_peft", remedy)])


def test_experts_with_dropout_are_told_to_use_none(table, tmp_path):
    """PEFT adapts them as parameters, without dropout; its error was answered by what caused it."""
    sizes = {"num_hidden_layers": 1, "hidden_size": 48, "intermediate_size": 64, "num_local_experts": 2}
    MixtralConfig(vocab_size=512, **sizes).save_pretrained(tmp_path / "experts")
    adapter = {"use_peft": "true", "lora_target_modules": "all-linear"}
    assert table(model_name_or_path=str(tmp_path / "experts"), **adapter)["model"].remedy == "use --lora_dropout 0"


LONG = [{"question": f"why {n} " * 90, "answer": "#### 1"} for n in range(9)]
PROBLEMS = {  # rows that are added, and settings: the check and what it says
    "no gold": ([{"question": "a", "answer": ""}], {}, "schema", "dropped 1 row"),
    "no mark": ([{"question": "a", "answer": "9"}, {"question": "b", "answer": "8"}], {}, "schema", "dropped 2 rows"),
    "few held out": ([], {}, "held out", "10 held-out questions"),
    "long prompts": (LONG, {}, "prompt length", "above it"),
    "long solutions": ([], {"max_completion_length": "8"}, "completion length", "limit 8; 100 %"),
    "no context": ([], {"max_completion_length": "4000"}, "context", "the model was made for"),
    "no correctness": (
        [],
        {"reward_weights": "1"},
        "all rewards",
        "perfect earns 0.5, a wrong answer in perfect form 0.5",
    ),
    "prompt without tags": ([], {"system_prompt": "Think."}, "tags", "<reasoning> and <answer>"),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_each_problem_is_a_warning_with_a_remedy(name, table):
    rows, settings, check, finding = PROBLEMS[name]
    rewards = ["int_reward_func"] if name == "no correctness" else list(FIVE)
    found = table(rows=ROWS + rows, rewards=rewards, **settings)[check]
    assert found.status == "warning" and finding in found.finding and found.remedy


def test_the_best_checkpoint_needs_a_metric_of_this_run(table):
    """Its rewards, and accuracies where answers can be judged."""
    given = {"eval_every": "10", "load_best_model_at_end": "true", "save_steps": "10"}
    found = table(metric_for_best_model="accuracy_strict", **given)["best checkpoint"]
    assert found.finding.startswith("by accuracy_strict, measured every 10 steps, and its weights are")
    found = table(metric_for_best_model="reward_int_reward_func", eval_every="5")["best checkpoint"]
    assert found.finding == "by reward_int_reward_func, measured every 5 steps"
    found = table(metric_for_best_model="reward_int", **given)["metric_for_best_model"]
    assert found.status == "error" and "accuracy_lenient" in found.remedy and "reward_int_reward_func" in found.remedy
    by_epochs = {"metric_for_best_model": "accuracy_strict", "eval_strategy": "epoch"}
    assert table(**by_epochs)["best checkpoint"].finding == "by accuracy_strict, measured after each epoch"
    assert not {"best checkpoint", "metric_for_best_model"} & table(eval_every="5").keys()


GOLDS = [  # of a column, rewards: their kind, and what a warning names
    (lambda n: f"{n},000", FIVE, "numbers", ""),
    (lambda n: rf"So it is $\boxed{{{n}}}$.", FIVE, r"in \boxed{} in 40 of 40 rows", ""),
    (lambda n: rf"{n}\sqrt{{2}}", ["judge_reward_func"], "mathematics", ""),
    (lambda n: f"({n}, 1)", ["correctness_reward_func"], "mathematics", "judge_reward_func"),
    (lambda n: f"{n} + 1 is {n + 1}. So the answer is {n + 1}.", FIVE, "text", "keep the answer alone"),
    (lambda n: f"So it is {'Answer: ' * (n % 3 == 0)}{n}", FIVE, "", "11 of 30 have 'Answer:'"),
    (lambda n: f"2007-04-{n}", ["soft_format_reward_func"], "text", ""),
    (lambda n: f"2007-04-{n}", ["signed_correctness_reward_func"], "text", "keep the answer alone"),
    (lambda n: "ABCD"[n % 4], FIVE, "text", ""),
    (lambda n: f'"{n}"', FIVE, "numbers", "correctness wants every character"),
    (lambda n: f"= {n}", FIVE, "numbers", "correctness wants every character"),
    (lambda n: f"{n}/7", FIVE, "numbers", ""),
    (lambda n: f"{n}.00E+05", ["judge_reward_func"], "100 % numbers, longest", ""),
    (lambda n: f"{n} days", FIVE, "numbers, 100 % with a unit", "correctness wants every character"),
    (lambda n: f"{n} days", ["judge_reward_func"], "numbers, 100 % with a unit", ""),
]


@pytest.mark.parametrize(("gold", "rewards", "kind", "warned"), GOLDS)
def test_gold_answers_are_described_and_judged(gold, rewards, kind, warned, table):
    rows = [{"question": f"{n}?", "answer": gold(n)} for n in range(2, 42)]
    found = table(rows=rows, rewards=rewards)["gold answers"]
    assert found.status == ("warning" if warned else "ok") and warned in found.remedy and kind in found.finding


def test_gold_answers_that_can_be_read_in_two_ways_are_asked_about(table):
    rows = [{"question": f"{n}?", "answer": f"{n},5"} for n in range(2, 42)]
    found = table(rows=rows)["separators"]
    assert found.status == "warning" and '"' in found.finding and re.search(r"write (\d+)\.5 or \1, 5", found.remedy)
    plain = [{"question": f"{n}?", "answer": f"{n},500"} for n in range(2, 42)]
    assert "separators" not in table(rows=plain)


def test_the_steps_of_the_run_are_counted(table):
    assert table()["this run"].finding == "30 optimizer steps"
    assert table(num_train_epochs="1.5")["this run"].finding == "45 optimizer steps"
    assert table(max_steps="7")["this run"].finding == "7 optimizer steps"


@pytest.mark.parametrize(
    ("options", "name", "said"),
    [
        ({"router_aux_loss_coef": "0.1"}, "router_aux_loss_coef", "is not a mixture of experts"),
        ({"sync_ref_model": "true", "beta": "0.1", "use_peft": "true"}, "sync_ref_model", "is its base model"),
        ({"config": "sync.yaml"}, "sync_ref_model", "beta 0 has no reference model"),
        ({"sync_ref_model": "true", "beta": "0.1"}, None, ""),
        ({"router_aux_loss_coef": "0"}, None, ""),
    ],
)
def test_terms_of_the_loss_that_trl_refuses_late_are_errors(options, name, said, table):
    Path("sync.yaml").write_text("sync_ref_model: true\n")
    errors = {check.name: check for check in table(**options).values() if check.status == "error"}
    assert list(errors) == ([name] if name else []) and (not name or said in errors[name].finding)


EVALUATED = {"eval_every": "5", "metric_for_best_model": "reward"}
SCHEDULES = [  # flags, the warning, and what it says
    ("--max_steps 1", "warmup_steps", "the learning rate is 0 in the first step: no weight moves"),
    ("--max_steps 1 --warmup_steps 1", "warmup_steps", "no weight moves (the warm-up takes 1 step, the run has 1)"),
    ("--max_steps 6 --warmup_steps 100", "warmup_steps", "ends at 5e-06 and never reaches 0.0001"),
    ("--max_steps 6 --warmup_steps 6", "warmup_steps", "ends at 8.33333e-05 and never reaches 0.0001"),
    ("--warmup_steps 99 --lr_scheduler_type linear", "warmup_steps", "never reaches 0.0001"),  # whole epochs
    ("--learning_rate 0", "learning_rate", "0: no weight moves"),
    ("--max_steps 6 --warmup_steps 5", None, ""),
    ("--max_steps 1 --warmup_steps 0", None, ""),
    ("--max_steps 1 --lr_scheduler_type constant", None, ""),
    ("", None, ""),
]


@pytest.mark.parametrize(("flags", "name", "said"), SCHEDULES)
def test_a_rate_that_is_never_reached_is_warned_of(flags, name, said, table):
    words = flags.replace("--", "").split()
    checks = table(**dict(zip(words[::2], words[1::2], strict=True)))
    found = {one: checks[one] for one in ("warmup_steps", "learning_rate") if one in checks}
    assert set(found) == ({name} if name else set())
    assert not name or (said in found[name].finding and found[name].status == "warning")


NO_SCHEDULE = [  # type, its arguments, other settings, words of the error
    ("polynomial", '{"power":-1}', {}, "cannot be raised to a negative power"),
    ("polynomial", '{"power":"2"}', {}, "unsupported operand"),
    ("polynomial", '{"lr_end":-1}', {}, "is below 0"),
    ("polynomial", '{"lr_end":1e-5}', {"learning_rate": "1e-6"}, "must be smaller than initial lr"),
    ("polynomial", None, {"max_steps": "10", "warmup_steps": "10"}, "ZeroDivisionError"),
    ("inverse_sqrt", '{"timescale":-3}', {}, "math domain error"),
    ("warmup_stable_decay", '{"num_decay_steps":2,"decay_type":"steep"}', {}, "Unknown decay type"),
    ("cosine", '{"num_cycles":"a"}', {}, "could not convert string to float"),
    ("cosine", '{"cycles":2}', {}, "unexpected keyword argument 'cycles'"),
    ("cosine_with_min_lr", None, {}, "min_lr"),
    ("reduce_lr_on_plateau", '{"factor":2}', EVALUATED, "Factor should be < 1.0"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "options", "others", "said"), NO_SCHEDULE)
def test_a_schedule_that_cannot_be_built_is_one_line(kind, options, others, said, table):
    key = "lr_scheduler_kwargs" if options else "lr_scheduler_type"
    with pytest.raises(UserError, match=f"^{key}: {kind}: .*{re.escape(said)}") as caught:
        table(lr_scheduler_type=kind, lr_scheduler_kwargs=options, **{"max_steps": "40", **others})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "options", "others"),
    [
        ("polynomial", '{"power":0.5,"lr_end":0}', {}),
        ("inverse_sqrt", None, {"warmup_steps": "5000"}),
        ("warmup_stable_decay", '{"num_decay_steps":5,"min_lr_ratio":0.1}', {"max_steps": "3"}),
        ("cosine_with_min_lr", '{"min_lr":1e-7}', {}),
        ("cosine_with_restarts", '{"num_cycles":3}', {}),
        ("reduce_lr_on_plateau", '{"factor":0.5}', EVALUATED),
        ("constant", None, {"max_steps": "1"}),
        ("cosine", None, {"max_steps": "1", "warmup_steps": "1"}),
    ],
)
def test_a_schedule_that_can_be_built_is_taken(kind, options, others, table):
    table(lr_scheduler_type=kind, lr_scheduler_kwargs=options, **{"max_steps": "40", **others})


def test_the_rate_that_is_named_is_that_of_the_last_step(tiny_model, tmp_path, table):
    trainer = make_trainer(
        GRPOTrainer,
        tiny_model,
        tmp_path,
        max_steps=6,
        warmup_steps=100,
        lr_scheduler_type="cosine",
        learning_rate=1e-4,
    )
    trainer.train()
    rates = [line["learning_rate"] for line in trainer.state.log_history if "learning_rate" in line]
    said = table(max_steps="6", warmup_steps="100")["warmup_steps"].finding
    assert f"ends at {rates[-1]:g} " in said and max(rates) == rates[-1]


RATES = [  # of the command line, million weights, an adapter: the rate to try
    (None, 1.7, "false", "1e-4"),
    (None, 135, "false", "2e-5"),
    (None, 1500, "false", ""),
    ("5e-6", 1.7, "false", ""),  # a learning rate is what is written
    (None, 1.7, "true", "5e-4"),
    ("1e-5", 1500, "true", "5e-5"),
    ("5e-5", 1500, "true", ""),
]


@pytest.mark.parametrize(("rate", "millions", "adapter", "instead"), RATES)
def test_a_rate_that_teaches_nothing_is_warned_of(rate, millions, adapter, instead, table, monkeypatch):
    shape = memory.shape
    monkeypatch.setattr(
        memory, "shape", lambda *args: dataclasses.replace(shape(*args), parameters=int(millions * 1e6))
    )
    checks = table(use_peft=adapter, learning_rate=rate)
    assert ("learning_rate" in checks) is bool(instead)
    assert not instead or f"try --learning_rate {instead} " in checks["learning_rate"].remedy


def test_a_rate_of_a_recipe_or_an_edited_one_is_left_alone(table, tmp_path, monkeypatch):
    (tmp_path / "r.yaml").write_text("learning_rate: 5.0e-6\n")
    assert "learning_rate" not in table(learning_rate=None, config=str(tmp_path / "r.yaml"))
    assert train_grpo.HYPERPARAMETERS["learning_rate"] == model_checks.DEFAULT_RATE
    monkeypatch.setitem(train_grpo.HYPERPARAMETERS, "learning_rate", 4e-6)
    assert "learning_rate" not in table(learning_rate=None)


@pytest.mark.parametrize(("count", "smallest"), [(30, "20.0 points"), (99, "6.1 points"), (100, "")])
def test_few_held_out_questions_name_the_smallest_change(count, smallest, table, write_jsonl):
    held_out = write_jsonl([{"question": f"{n} + 2?", "answer": f"#### {n + 2}"} for n in range(count)], "t.jsonl")
    found = table(eval_dataset_name=held_out)["held out"]
    assert found.status == ("warning" if smallest else "ok") and smallest in found.remedy


def test_an_overlap_with_the_evaluation_is_reported(table, write_jsonl):
    held_out = write_jsonl([{"question": " WHAT is 2 + 2? ", "answer": "#### 4"}], "held_out.jsonl")
    assert table(eval_dataset_name=held_out)["overlap"].status == "warning"


def test_memory_is_a_lower_bound_and_an_estimate_at_the_limit(table):
    """At least weights, moments and gradients: 16 bytes for each of 1.7 million weights."""
    short, long = (table(max_completion_length=limit)["memory"].finding for limit in ("8", "200"))
    figures = [re.match(r"at least ([\d.]+) MB \(weights .*, optimizer .*, gradients .*\), ([\d.]+ .B) if", text)
               for text in (short, long)]  # fmt: skip
    assert figures[0][1] == figures[1][1] == "26.8" and figures[0][2] != figures[1][2]
    assert "if completions reach 200 tokens (" in long


def test_too_little_memory_is_a_warning_with_numbers(table, monkeypatch):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1_000_000, total=10**10))
    found = table()["memory"]
    assert found.status == "warning" and "1.0 MB free" in found.finding
    assert "pack_tokens" in found.remedy


@pytest.mark.parametrize(("free", "status"), [(10**12, "ok"), (40 * 10**6, "warning"), (10**7, "error")])
def test_disk_space_is_held_against_checkpoints_and_model(free, status, table, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**12, 0, free))
    assert table()["disk"].status == status  # three checkpoints of 20 MB each, and the model of 7 MB


def test_an_evaluation_alone_skips_the_rules_of_training(table):
    checks = table(eval_only="true", per_device_train_batch_size="1024")
    assert {"memory", "disk", "geometry", "all rewards", "dataset"}.isdisjoint(checks)
    assert checks["held out"].finding.startswith("10 held-out questions, 25 %")
    assert "limit" not in checks["prompt length"].finding
    assert "trained" not in checks["model"].finding and "overlap" not in checks


def test_errors_stop_with_the_first_one_and_the_number_of_others():
    checks = [Check("ok", "a", "fine"), *[Check("error", "b", "broken", "fix it")] * 3]
    with pytest.raises(UserError, match=r"b: broken; fix it .*2 more"):
        stop_at_errors(checks)
    stop_at_errors(checks[:1])


def test_an_adapter_is_checked_with_its_base_model(table, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(DEMO / "model")
    get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj"])).save_pretrained(tmp_path / "adapter")
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(DEMO / "model" / file, tmp_path / "adapter")
    found = table(model_name_or_path=str(tmp_path / "adapter"))["model"]
    assert f"an adapter of {DEMO / 'model'}" in found.finding and "0.0 of 1.7 million" in found.finding
    assert found.status == "ok"


LABELS = [{"question": f"ticket {n}", "answer": ("billing", "account", "billing", "broken")[n % 4]} for n in range(80)]
SHORT = {"answer_pattern": "text", "system_prompt": "Label:"}
JSON = [{"question": f"receipt {n}", "answer": json.dumps({"shop": "Ada", "total": n + 0.5})} for n in range(40)]


def test_labels_are_shown_by_their_shares_and_read_whole(table):
    checks = table(rows=LABELS, rewards=["correctness_reward_func"], **SHORT)
    assert '"billing" 5' in checks["gold answers"].finding
    assert "answers as billing (the whole completion)" in checks["prompts"].finding
    assert "format" not in checks["completion length"].finding and "tags" not in checks
    assert checks["all rewards"].finding == "perfect earns 2, a wrong answer in perfect form 0"


def test_a_json_answer_is_an_example_and_wants_no_characters(table):
    checks = table(rows=JSON, rewards=["judge_reward_func"], **SHORT)
    assert """answers as {"shop": "Ada", "total": """ in checks["prompts"].finding
    finding = checks["gold answers"].finding
    assert checks["gold answers"].status == "ok" and '"{"shop": "Ada", "to…"' in finding
    assert "100 % JSON" in finding and "mathematics" not in finding


def test_marked_answers_are_shown_as_this_task_marks_them(table):
    rows = [{"question": f"{n}?", "answer": f"{n} days"} for n in range(40)]
    finding = table(rows=rows, rewards=["judge_reward_func"], answer_pattern="final")["prompts"].finding
    assert re.search(r"answers as Answer: [0-9]+ days$", finding)


def test_the_schema_names_the_columns_of_the_file(table, monkeypatch):
    rows = [{"prompt": f"{n} + 1?", "answer": str(n + 1)} for n in range(40)]
    assert table(rows=rows)["schema"].finding == "columns prompt and answer"
    own = [{"ticket": f"{n} + 1?", "label": str(n + 1)} for n in range(40)]

    def from_ticket(row):
        return {"question": row["ticket"], "answer": row["label"]}

    monkeypatch.setitem(train_grpo.HYPERPARAMETERS, "prepare", from_ticket)
    finding = table(rows=own)["schema"].finding
    assert finding == "question and answer by from_ticket, from the columns ticket, label"


@pytest.mark.parametrize(("pattern", "status"), [("text", "error"), ("final", "ok")])
def test_a_format_that_does_not_exist_chooses_no_checkpoint(pattern, status, table):
    chooses = {"load_best_model_at_end": "true", "metric_for_best_model": "format_soft", "eval_every": "5"}
    checks = table(rewards=["judge_reward_func"], answer_pattern=pattern, save_steps="5", max_steps="10", **chooses)
    check = checks["metric_for_best_model" if status == "error" else "best checkpoint"]
    assert check.status == status and "format_soft" in check.finding and "format_s" not in check.remedy
