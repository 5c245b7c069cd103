"""grpo/config/validate.py: values, batches and flags that no run can use are refused."""

import functools
import json
import re

import pytest
import yaml
from helpers_runs import DEMO, examples
from hypothesis import given
from hypothesis import strategies as st

import train_grpo
from grpo.config.configure import configure
from grpo.config.parsing import MAPPINGS, Parser
from grpo.config.validate import secret_in, solve_geometry
from grpo.core.errors import UserError

CPU = ["--use_cpu", "true", "--report_to", "none", "--model_name_or_path", str(DEMO / "model")]


@pytest.mark.parametrize(
    ("flags", "switch"),
    [
        ("--lora_r 8", "use_peft"),
        ("--bnb_4bit_quant_type fp4", "load_in_4bit"),
        ("--vllm_gpu_memory_utilization 0.5", "use_vllm"),
        ("--dataloader_persistent_workers true", "dataloader_num_workers; drop it, or use --dataloader_num_workers 1"),
    ],
)
def test_a_typed_flag_without_its_switch_is_refused(flags, switch):
    key = flags.split()[0].removeprefix("--")
    with pytest.raises(UserError, match=f"^{key}: it has no effect without {switch}"):
        configure(train_grpo.HYPERPARAMETERS, [*CPU, *flags.split()])


@pytest.mark.parametrize(
    "flags",
    [
        "--learning_rate nan", "--temperature 0", "--max_steps 0", "--eval_samples -1", "--seed -1",
        "--loss_type grop",
        "--use_transformers_continuous_batching true", "--enable_jit_checkpoint true",
        "--remove_unused_columns true", "--neftune_noise_alpha 5",
        """--accelerator_config {"dispatch_batches":true}""", """--accelerator_config {"split_batches":true}""",
        "--beta -1", "--beta inf", "--beta nan", "--epsilon -0.2", "--epsilon_high -1", "--delta 0",
        "--max_grad_norm -1", "--weight_decay -0.1", "--warmup_steps -5", "--save_steps 0", "--logging_steps -1",
        "--use_peft true --lora_r 0", "--use_peft true --lora_dropout 1", "--use_peft true --lora_alpha 0",
        "--dataset_name none", "--eval_dataset_name= ",
        """--chat_template_kwargs {"truncation":true,"max_length":20}""",
        """--chat_template_kwargs {"padding":true}""",
        "--chat_template_kwargs 3", "--chat_template_kwargs [1]", "--lr_scheduler_kwargs 0.1",
        "--max_completion_length none", "--num_generations none",
        "--label_smoothing_factor 0.1", "--train_sampling_strategy sequential", "--length_column_name words",
        "--include_for_metrics loss", "--batch_eval_metrics true", "--label_names answer",
        """--accelerator_config {"gradient_accumulation_kwargs":{"num_steps":3}}""",
        """--lr_scheduler_kwargs {"num_warmup_steps":2}""", "--torch_compile_mode foo", "--cache_implementation foo",
        "--multi_objective_aggregation foo", "--lora_task_type SEQ_CLS", "--seed 4294967296",
        "--use_adaptive_entropy true --entropy_coef_min 2 --entropy_coef_max 1",
        "--num_iterations 2 --epsilon_high 0.3 --delta 1.3", "--num_iterations 2 --delta 1.2",
        "--eval_only true --eval_samples 0", "--eval_every 5 --eval_samples 0", "--eval_every -1",
    ],
)  # fmt: skip
def test_what_fails_late_or_silently_is_refused_at_once(flags):
    words = flags.split() if "= " not in flags else [flags]
    key = [word for word in words if word.startswith("--")][-1].removeprefix("--").partition("=")[0]
    with pytest.raises(UserError, match=f"^(torch_compile|(Invalid .)?{key}).? "):
        configure(train_grpo.HYPERPARAMETERS, [*CPU, *words])


def test_a_file_of_accelerators_settings_is_read(tmp_path):
    path = tmp_path / "accelerator.json"
    for text, named in (('{"split_batches": true}', "split_batches"), ('{"num_steps": 3}', "num_steps")):
        path.write_text(text)
        with pytest.raises(UserError, match=f"^accelerator_config: {named}"):
            configure(train_grpo.HYPERPARAMETERS, [*CPU, "--accelerator_config", str(path)])


def test_none_is_a_value_where_it_has_a_meaning():
    assert Parser().flags(["--vllm_importance_sampling_clip_max", "none"])[0] == {
        "vllm_importance_sampling_clip_max": None
    }


def test_no_held_out_questions_skip_the_curve_of_a_recipe(tmp_path):
    for flags in ("--config demo --eval_samples 0", "--config demo --eval_every 0", "--eval_samples 0 --eval_every 0"):
        configure(train_grpo.HYPERPARAMETERS, [*CPU, *flags.split()])
    path = tmp_path / "none.yaml"
    path.write_text("eval_samples: 0\n")
    for block, flags in (
        ({"eval_samples": 0, "eval_every": 5}, ""),
        ({}, f"--config {path} --eval_every 5"),  # which would have no effect
    ):
        with pytest.raises(UserError, match=r"^eval_samples: 0 leaves eval_every no questions"):
            configure(train_grpo.HYPERPARAMETERS | block, [*CPU, *flags.split()])


@pytest.mark.parametrize(
    "flags",
    [
        "--beta 0", "--epsilon 0.2 --epsilon_high 5 --num_iterations 2", "--delta 1.5 --num_iterations 2",
        "--max_grad_norm 0", "--epsilon 0.1 --loss_type cispo", "--epsilon_high 5 --loss_type cispo",
        "--warmup_steps 0.1", "--logging_steps 0.5", "--save_total_limit 1",
        "--eval_only true --dataset_name none --eval_dataset_name a.jsonl",
        f"--max_steps 1{'0' * 400}",
        '--chat_template_kwargs {"enable_thinking":false}', "--lr_scheduler_kwargs {}",
        '--accelerator_config {"split_batches":false}',
        "--label_smoothing_factor 0", "--train_sampling_strategy random", "--optim sgd --optim_args momentum=0",
        '--lr_scheduler_kwargs {"num_cycles":0.5}', '--gradient_checkpointing_kwargs {"use_reentrant":false}',
        '--generation_kwargs {"no_repeat_ngram_size":3}', '--model_init_kwargs {"low_cpu_mem_usage":true}',
    ],
)  # fmt: skip
def test_what_makes_sense_is_not_refused(flags):
    configure(train_grpo.HYPERPARAMETERS, [*CPU, *flags.split()])


NESTED = {
    '--generation_kwargs {"temperature":0.1}': "temperature has a setting of its own; use --temperature 0.1 instead",
    '--generation_kwargs {"top_p":0.9}': "use --top_p 0.9 instead",
    '--generation_kwargs {"top_k":3}': "use --top_k 3 instead",
    '--generation_kwargs {"min_p":0.1}': "use --min_p 0.1 instead",
    '--generation_kwargs {"repetition_penalty":1.1}': "use --repetition_penalty 1.1 instead",
    '--generation_kwargs {"max_new_tokens":20}': "use --max_completion_length 20 instead",
    '--generation_kwargs {"max_length":20}': "use --max_completion_length 20 instead",
    '--generation_kwargs {"max_tokens":20}': "use --max_completion_length 20 instead",
    '--generation_kwargs {"num_return_sequences":2}': "use --num_generations 2 instead",
    '--generation_kwargs {"cache_implementation":"static"}': "use --cache_implementation static instead",
    '--generation_kwargs {"do_sample":false}': "do_sample cannot be set: rollouts are samples; drop it",
    '--generation_kwargs {"num_beams":4}': "num_beams cannot be set",
    '--generation_kwargs {"disable_compile":true}': "disable_compile cannot be set",
    '--generation_kwargs {"eos_token_id":5}': "eos_token_id cannot be set",
    '--generation_kwargs {"no_repeat_ngram":3}': "no_repeat_ngram is not an argument; did you mean",
    '--use_vllm true --generation_kwargs {"n":2}': "use --num_generations 2 instead",
    '--use_vllm true --generation_kwargs {"seed":2}': "use --seed 2 instead",
    '--use_vllm true --generation_kwargs {"logprobs":2}': "logprobs cannot be set",
    '--lr_scheduler_kwargs {"num_warmup_steps":2}': "use --warmup_steps 2 instead",
    '--model_init_kwargs {"torch_dtype":"float16"}': "use --dtype float16 instead",
    '--model_init_kwargs {"attn_implementation":"eager"}': "use --attn_implementation eager instead",
    '--model_init_kwargs {"revision":"v1"}': "use --model_revision v1 instead",
    '--model_init_kwargs {"token":"hf_1"}': "read it from the environment instead (HF_TOKEN, or os.environ",
}


@pytest.mark.parametrize("flags", NESTED)
def test_arguments_with_a_setting_of_their_own_are_refused(flags):
    outer = flags.split()[-2].removeprefix("--")
    with pytest.raises(UserError, match=f"^{outer}: .*{re.escape(NESTED[flags])}") as caught:
        configure(train_grpo.HYPERPARAMETERS, [*CPU, *flags.split()])
    assert "hf_1" not in str(caught.value)


@pytest.mark.parametrize("optim", ["galore_adamw", "apollo_adamw", "lomo"])
def test_an_optimizer_that_needs_the_model_is_left_to_the_trainer(optim):
    targets = [] if optim == "lomo" else ["--optim_target_modules", "all-linear"]
    configure(train_grpo.HYPERPARAMETERS, [*CPU, "--optim", optim, *targets])


@pytest.mark.parametrize("value", ["nan", "-inf", "1e999"])
def test_optimizers_arguments_are_finite(value):
    with pytest.raises(UserError, match=r"^optim_args: -?(nan|inf) is not a finite number"):
        configure(train_grpo.HYPERPARAMETERS, [*CPU, "--optim", "sgd", "--optim_args", f"momentum=0.9, alpha={value}"])


# --- Secrets

SETTINGS_WITH_MAPPINGS = (
    "reward_args", "prompt_format", "chat_template_kwargs", "generation_kwargs", "model_init_kwargs",
    "lr_scheduler_kwargs", "gradient_checkpointing_kwargs", "activation_checkpointing_kwargs", "accelerator_config",
    "fsdp_config", "deepspeed", "liger_kernel_config", "transformers_continuous_batching_config",
)  # fmt: skip
SECRETS = (
    {"api_key": "sk-planted"}, {"token": "sk-planted"}, {"password": "sk-planted"}, {"client_secret": "sk-planted"},
    {"pay": {"api_key": "sk-planted"}}, {"a": [{"b": ({"apiKey": "sk-planted"},)}]},
    {"headers": {"Authorization": "sk-planted"}},
    {"x-api-key": "sk-planted"}, {"HF_TOKEN": "sk-planted"}, {"db_passwd": "sk-planted"}, {"api_keys": ["sk-planted"]},
    {"secret": "sk-planted"}, {"aws_secret_access_key": "sk-planted"}, {"hf_tokens": ["sk-planted"]},
    {"password1": "sk-planted"}, {"pwd": "sk-planted"}, {"api_key": {"value": "sk-planted"}},
    {"apitoken": "sk-planted"}, {"OPENAIAPIKEY": "sk-planted"}, {"openai_api_key_2": "sk-planted"},
    {"credentials": {"user": 1, "password": "sk-planted"}},
)  # fmt: skip
HARMLESS = (
    {"eos_token": "</s>"}, {"pad_token": "<pad>", "bos_token": "<s>", "unk_token": "u"}, {"max_new_tokens": 3},
    {"sort_key": "name", "answer_key": "gold"}, {"think_token": "<think>"},
    {"sort_key": None}, {"use_auth_token": True}, {"api_key": ""}, {"seed_key": 7}, {"keys": ["name", "price"]},
    {"key": "price"}, {"stop_tokens": ["</answer>"]}, {"tokenizer": "x"}, {"keyboard": "x"}, {"secretary": "x"},
    {"password_length": 8, "monkey": "x"},
)  # fmt: skip


@pytest.mark.parametrize("value", SECRETS, ids=str)
def test_a_secret_is_known_by_its_name(value):
    assert secret_in(value, "reward_args").startswith("reward_args.")


def test_every_setting_that_takes_a_mapping_is_looked_into():
    assert set(SETTINGS_WITH_MAPPINGS) == MAPPINGS


FILES = [(setting, "file") for setting in ("accelerator_config", "fsdp_config", "deepspeed")]
FLAGS = [
    (setting, "flag") for setting in SETTINGS_WITH_MAPPINGS if setting != "liger_kernel_config"
]  # TRL's takes none
SOURCES = [(setting, source) for setting in SETTINGS_WITH_MAPPINGS for source in ("recipe", "inline")] + FLAGS + FILES


@pytest.mark.parametrize(("setting", "source"), SOURCES)
def test_secrets_in_mappings_are_refused_before_anything_is_written(setting, source, tmp_path, capsys):
    for number, value in enumerate(SECRETS[4:6]):  # at any depth
        (tmp_path / "recipe.yaml").write_text(yaml.safe_dump({setting: json.loads(json.dumps(value))}))
        (tmp_path / "file.json").write_text(json.dumps(value))
        block = dict(train_grpo.HYPERPARAMETERS)
        flags = {
            "flag": [f"--{setting}", json.dumps(value)],
            "recipe": ["--config", str(tmp_path / "recipe.yaml")],
            "inline": [],
            "file": [f"--{setting}", str(tmp_path / "file.json")],
        }
        if source == "inline":
            block[setting] = value
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(UserError, match=f"^{setting}: .*rename it if it is not a secret") as caught:
            configure(block, [*CPU, *flags[source]])
        assert "sk-planted" not in str(caught.value) and sorted(tmp_path.rglob("*")) == before
        if not number and source in ("flag", "recipe"):
            assert train_grpo.main([*CPU, *flags[source]]) == 2
            assert "sk-planted" not in "".join(capsys.readouterr()) and sorted(tmp_path.rglob("*")) == before


def test_the_message_names_the_argument():
    with pytest.raises(UserError, match=r"^reward_args: pay\.api_key: settings are written to files; read it from"):
        configure(train_grpo.HYPERPARAMETERS, [*CPU, "--reward_args", '{"pay": {"api_key": "sk-planted"}}'])
    with pytest.raises(UserError, match=r"^hub_token: settings are written to files; export the variable"):
        configure(train_grpo.HYPERPARAMETERS, [*CPU, "--hub_token", "sk-planted"])


@pytest.mark.parametrize("value", HARMLESS)
def test_names_that_only_look_like_secrets_are_taken(value):
    configure(train_grpo.HYPERPARAMETERS, [*CPU, "--chat_template_kwargs", json.dumps(value)])
    configure(train_grpo.HYPERPARAMETERS | {"reward_args": {"int_reward_func": value}}, CPU)


def paid(completions, *, api_key="", **kwargs):
    return [0.0 for _ in completions]


@pytest.mark.parametrize("setting", ["reward_funcs", "judge", "prepare"])
def test_a_secret_bound_to_a_function_is_refused_unless_it_is_of_the_environment(setting, monkeypatch):
    bound = functools.partial(paid, api_key="sk-planted")
    block = train_grpo.HYPERPARAMETERS | {setting: [bound] if setting == "reward_funcs" else bound}
    with pytest.raises(UserError, match=f"^{setting}: paid.api_key: settings are written to files") as caught:
        configure(block, CPU)
    assert "sk-planted" not in str(caught.value)
    monkeypatch.setenv("PAID_KEY", "sk-planted")
    configure(block, CPU)


# --- Geometry

BATCH, GROUP = "per_device_train_batch_size", "num_generations"
BASE = {
    "per_device_train_batch_size": 16,
    "gradient_accumulation_steps": 4,
    "num_generations": 16,
    "steps_per_generation": None,
    "generation_batch_size": None,
    "num_iterations": 1,
}


def solved(world_size=1, **overrides):
    return solve_geometry({**BASE, **overrides}, world_size)


def test_the_inline_defaults_are_the_demo_gists_64_completions():
    geometry = solved()
    assert (geometry.rollout, geometry.per_step, geometry.rollout_prompts) == (64, 64, 4)
    assert "4 prompts × 16 generations = 64 completions per optimizer step" in geometry.describe()
    assert "on-policy" in geometry.describe()


@pytest.mark.parametrize(
    ("overrides", "named", "fix", "fixed"),
    [
        ({BATCH: 1}, "num_generations: 16", f"set {BATCH} to 4", {BATCH: 4}),
        ({GROUP: 24}, "num_generations: 24", f"{GROUP} to 2, 4, 8, 16", {GROUP: 16}),
        (
            {"num_iterations": 3, "gradient_accumulation_steps": 2, "steps_per_generation": 1},
            "num_iterations: 3 times 1 step per generation make 3 steps",
            "optimizer steps would mix rollouts; use 2 or another multiple of 2",
            {"num_iterations": 2},
        ),
    ],
)
def test_impossible_geometry_names_the_value_and_a_fix(overrides, named, fix, fixed):
    with pytest.raises(UserError) as caught:
        solved(**overrides)
    assert named in str(caught.value) and fix in str(caught.value)
    assert solved(**overrides | fixed)


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
    """TRL 1.16's rollout and steps for these settings (GRPOConfig.__post_init__); None where it raises."""
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


@examples(300)
@given(geometries(), st.integers(0, 60))
def test_what_is_solved_is_what_trl_does_with_any_settings(case, rows):
    from trl.trainer.utils import RepeatSampler

    settings, world = case
    try:
        geometry = solve_geometry(settings, world)
    except UserError as error:
        mixed = "would mix rollouts" in str(error)  # which TRL allows
        assert mixed or trls(settings, world) is None
        return
    if trls(settings, world) is None:  # it says so itself
        return
    assert trls(settings, world) == (geometry.rollout, geometry.steps_per_generation)
    assert geometry.rollout_prompts * geometry.num_generations == geometry.rollout
    assert geometry.per_step == geometry.per_device_train_batch_size * world * geometry.gradient_accumulation_steps
    accumulation, reuse = geometry.gradient_accumulation_steps, geometry.steps_per_generation * geometry.num_iterations
    sampler = RepeatSampler(
        range(rows),
        mini_repeat_count=geometry.num_generations,
        batch_size=geometry.rollout_prompts,
        repeat_count=reuse,
    )
    micro_steps = sum(1 for _ in sampler) // geometry.rollout  # the dataloader hands out whole rollouts
    assert geometry.steps_per_epoch(rows) == -(-micro_steps // accumulation)
    assert str(geometry.per_step) in geometry.describe()
