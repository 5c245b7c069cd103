"""How hard each training question is for the policy as it is: filter and curriculum before the first step.

A group whose completions are all right or all wrong has no advantage, so a question that is always or never solved
teaches nothing (Yu et al., DAPO, 2025, drop such groups at every step; here the questions are measured once).
"""

import dataclasses
import hashlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import datasets
from accelerate import PartialState
from accelerate.utils import broadcast_object_list

from grpo.core.errors import UserError
from grpo.core.out_of_memory import EVALUATION, phase
from grpo.core.processes import say
from grpo.core.settings import Config
from grpo.data.dataset import Data
from grpo.data.prompts import tokenize
from grpo.policy.generation import Sampling, generate, training_autocast
from grpo.rewarding.judge import Judge

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def pass_rates(config: Config, model: "PreTrainedModel", tokenizer: Any, data: Data, judge: Judge) -> list[float]:
    """Of each training question, the share of `filter_num_samples` samples that is right, drawn as rollouts are.

    Right is what the judge says. Cached beside datasets' own files, under the weights, the prompts, the settings and
    the file of a judge of one's own.
    """
    training, k = config.training, config.script.filter_num_samples
    prompts = tokenize(data.train["prompt"], tokenizer, config.template_kwargs)
    sampling, limit = Sampling.like(training), config.completion_limit
    rows = data.train.to_list()
    code = Path(str(sys.modules[judge.name.rpartition(".")[0]].__file__)).read_text() if judge.function else ""
    some = [weight.detach().flatten()[:: max(1, weight.numel() // 64)].tolist() for weight in model.parameters()]
    asked = [prompts, rows, judge.pattern, judge.name, code]
    facts = [*asked, dataclasses.asdict(sampling), limit, k, str(model.dtype), some]
    directory = Path(datasets.config.HF_DATASETS_CACHE) / "grpo_pass_rates"
    cached = directory / f"{hashlib.sha256(json.dumps(facts, default=str).encode()).hexdigest()[:32]}.json"
    # the main process looks, since all of them must take the same way
    (rates,) = broadcast_object_list([json.loads(cached.read_text()) if cached.is_file() else None])
    if rates is None:
        many = [prompt for prompt in prompts for _ in range(k)]
        with phase(EVALUATION), training_autocast(training, model):
            batch_size = training.per_device_eval_batch_size
            drawn = generate(model, tokenizer, many, limit, batch_size, sampling, "difficulty")
        texts = tokenizer.batch_decode([ids for ids, _ in drawn], skip_special_tokens=True)
        prefill = data.prompt_format.prefill
        right = [judge.is_right(prefill + text, rows[index // k]) for index, text in enumerate(texts)]
        rates = [sum(right[start : start + k]) / k for start in range(0, len(right), k)]
        if PartialState().is_main_process:
            directory.mkdir(parents=True, exist_ok=True)
            partial = cached.with_suffix(".partial")
            partial.write_text(json.dumps(rates))
            partial.replace(cached)
    return rates


def select(data: Data, rates: Sequence[float], bounds: Sequence[float] | None, easy_first: bool) -> Data:
    """The training questions whose pass rate lies within `bounds`, these included; the easiest first if asked for."""
    low, high = bounds or (0.0, 1.0)
    kept = [index for index, rate in enumerate(rates) if low <= rate <= high]
    if easy_first:
        kept.sort(key=lambda index: -rates[index])
    harder, easier = sum(rate < low for rate in rates), sum(rate > high for rate in rates)
    return dataclasses.replace(data, train=data.train.select(kept), too_hard=harder, too_easy=easier)


def apply(config: Config, model: "PreTrainedModel", tokenizer: Any, data: Data, judge: Judge) -> Data:
    """`filter_pass_rate` and `curriculum`, if they are set; UserError where too few questions are left."""
    bounds, easy_first = config.script.filter_pass_rate, config.script.curriculum
    if bounds is None and not easy_first:
        return data
    k, rows = config.script.filter_num_samples, len(data.train)
    say(f"Difficulty: {k} samples of each of {rows} training questions")
    rates = pass_rates(config, model, tokenizer, data, judge)
    data = select(data, rates, bounds, easy_first)
    never, always = rates.count(0), rates.count(1)
    found = f"of {rows} training questions {never} are never right in {k} samples and {always} always"
    kept = f"{len(data.train)} are kept" + (", the easiest first" if easy_first else "")
    say(f"Difficulty: {found}; {kept}")
    if len(data.train) < config.geometry.rollout_prompts:
        raise UserError(
            f"filter_pass_rate: {found}; {kept}, fewer than the {config.geometry.rollout_prompts} prompts of one "
            "rollout: widen the range, or use more rows"
        )
    return data
