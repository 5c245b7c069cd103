"""TRL's GRPOTrainer with the same gradient for less work.

Stock TRL pads a rollout to its longest prompt and completion, computes each prompt once for every completion, and
trains on completions whose advantage is zero. Here completions with a non-zero advantage are packed without padding
(packing.py), each prompt once, and TRL's own loss is computed for each pack. To log stock TRL's metrics, the loss is
computed again on TRL's micro-batches, without gradient and from the log-probabilities of the packs.

For models with absolute positions stock TRL's gradient is wrong: it counts left padding as positions. These models
have learned positions (GPT-2, GPT-BigCode, BioGPT, XGLM, BERT's family), added sinusoids (CTRL), a norm after the
rotation (HunYuan) or queries scaled by position (Ministral-3, beyond its original length). Plain rotary models are not
affected. Here each row begins at position 0, as in sampling.

README.md in this directory lists differences from TRL, and settings that fall back to TRL's own step.

Private members of TRL 1.16 and transformers that this package overrides or uses, and the test in tests/lean_grpo/ that
fails if one changes:

    _generate                           test_trainer.py::test_completions_are_all_that_the_model_wrote
    _generate_single_turn               test_rollouts.py::test_rollouts_follow_each_optimizer_step
    _tokenizer                          test_rollouts.py::test_a_cold_policy_completes_as_trl_does
    _generate_and_score_completions     test_ties.py::test_a_reward_that_says_nothing_moves_no_weight
    _calculate_rewards                  test_ties.py::test_a_reward_that_says_nothing_moves_no_weight
    _pending_extra_logs                 test_dynamic_sampling.py::test_logs_are_of_the_prompts_that_the_sampler_showed
    _pending_metrics                    test_dynamic_sampling.py::test_logs_are_of_the_prompts_that_the_sampler_showed
    _logs                               test_ties.py::test_a_reward_that_says_nothing_moves_no_weight
    _compute_loss                       test_exactness.py::test_every_loss_type_has_stock_gradients
    _get_per_token_logps_and_entropies  test_exactness.py::test_every_loss_type_has_stock_gradients
    _metrics                            test_exactness.py::test_with_a_reference_model_all_metrics_are_stocks
    _entropy_bonus_enabled              test_exactness.py::test_losses_of_a_whole_micro_batch_keep_it_whole
    _current_train_step_time            test_trainer.py::test_losses_are_logged_after_the_last_backward
    _step                               test_trainer.py::test_the_micro_batches_of_a_step_are_planned_together
    _buffered_inputs                    test_trainer.py::test_the_micro_batches_of_a_step_are_planned_together
    _attn_implementation                test_trial.py::test_models_that_packs_do_not_fit_take_trls_own_step
    _is_stateful                        test_sampling.py::test_models_with_states_are_left_to_generate
    _prepare_generation_config          test_overrides.py::test_a_field_that_our_sampler_does_not_know_is_obeyed
    _get_default_generation_params      test_overrides.py::test_every_field_is_known_or_left_to_generate

It also uses undocumented features, covered by the same tests: `fused_lm_head` and `shift_labels` of TRL's patched
forward, `unwrap_model_for_generation`, and the name of transformers' `_sample`.
"""

import contextlib
import math
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence, Sized
from typing import Any, cast

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from transformers import GenerationConfig
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import nanstd

from lean_grpo import (
    attention,
    compiling,
    gpu,
    micro_batches,
    norms,
    overrides,
    packing,
    sampling,
    sharding,
    ties,
    trial,
    wrappers,
)
from lean_grpo.compiling import OptimizerSteps, TokenSteps
from lean_grpo.dynamic_sampling import fill_groups, reason_against_filling
from lean_grpo.micro_batches import Batch, Plan
from lean_grpo.packing import Row
from lean_grpo.sampling import Sampling

SAMPLING = overrides.Methods(GRPOTrainer, "_generate_single_turn")
SCORING = overrides.Methods(GRPOTrainer, "_generate_and_score_completions")


class LeanGRPOTrainer(GRPOTrainer):
    """GRPOTrainer with the same arguments and, up to rounding, the same gradients.

    Args:
        packed: False: TRL's own training step, with padding.
        pack_tokens: most positions in a pack, which bounds the memory of a training step unless a micro-batch has a
            single backward (`_in_parts`). A longer row gets a pack to itself. None: 8,192 with FlashAttention 2,
            otherwise 2,048. If a prompt is so long that dividing its group would add a tenth to the work, None also
            allows larger packs for this group, up to the positions of TRL's micro-batch.
        attn_implementation: attention of packs; only flash_attention_2 looks for the package flash-attn. The model
            itself has to run on sdpa.
        dynamic_sampling: N: groups whose rewards are all equal are replaced by groups of further prompts, in up to N
            further rounds of a rollout (dynamic_sampling.py). 0: none is, as in TRL.

    Attributes:
        kernel: the attention kernel for packs; None: TRL's own step.
        prefill: the start of the completion that the chat template already writes (`<think>\\n` in some). If you set
            it, rewards and logs get the whole text. TRL's completion lacks this start and fails format rewards (TRL
            issue 6966).
        is_first_round: False while further groups of a rollout are sampled and scored (dynamic sampling).
    """

    args: GRPOConfig
    prefill = ""
    model: Any  # PreTrainedModel or PeftModel; never None once constructed

    def __init__(
        self,
        *args: Any,
        packed: bool = True,
        pack_tokens: int | None = None,
        attn_implementation: str = "flash_attention_2",
        dynamic_sampling: int = 0,
        **kwargs: Any,
    ) -> None:
        if pack_tokens is not None and pack_tokens < 1:
            raise ValueError(f"pack_tokens is {pack_tokens}; it has to be at least 1, or None")
        if dynamic_sampling < 0:
            raise ValueError(f"dynamic_sampling is {dynamic_sampling}; it has to be at least 0")
        self.dynamic_sampling = dynamic_sampling
        self.is_first_round = True
        self.kernel: attention.Kernel | None = None
        self._layers: dict[Any, OptimizerSteps] = {}  # of models whose packs are computed by compiled layers
        self.pack_tokens: int | None = None
        self._logged_values: tuple[torch.Tensor, torch.Tensor, None] | None = None
        self._one_pack: list[Row] | None = None
        self._plan: Plan | None = None
        self._all_computed: Plan | None = None  # the plan, after its last micro-batch
        self._said: set[str] = set()
        super().__init__(*args, **kwargs)
        if self.dynamic_sampling and (against := reason_against_filling(self)):
            raise ValueError(f"dynamic_sampling is {self.dynamic_sampling}, but {against}; use 0")
        sharding.shard(self.accelerator, self.model)
        model = wrappers.unwrapped(self.model)
        if self.accelerator.device.type == "cuda":
            gpu.prepare(self.args.tf32)  # vLLM has just undone it
        self._announce_steps()
        if self.use_vllm and hasattr(self, "vllm_generation"):  # Unsloth replaces it
            self.vllm_generation.sync_weights = sampling.keeping_frozen_weights(  # type: ignore[method-assign]
                self.vllm_generation.sync_weights, model
            )
        self._samples_itself()  # says why not
        models = [one for one in (self.model, self.ref_model) if one is not None]
        reason = trial.reason_against_packing(self) if packed else None
        if packed and reason is None:
            base = wrappers.base_of(model)
            mixed = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self.accelerator.mixed_precision, base.dtype)
            self.kernel = attention.kernel(attn_implementation, self.accelerator.device, mixed, base.config)
            self.pack_tokens = self.kernel.pack_tokens if pack_tokens is None else pack_tokens
            # a mask of T × T would cost more than a prompt's copies
            self._packs_grow = pack_tokens is None and self.kernel.by_segment
            attention.register()
            if norms.fits(self.accelerator.device):
                norms.replace(*models)
            reason = trial.misfit(self)
            if reason is None and self.accelerator.device.type == "cuda":
                self._compile(models)
        if reason is not None:
            self.kernel = self.pack_tokens = None
            self._say_stocks(reason)
        if self.kernel is None:
            norms.restore(*models)  # another trainer of this model may have replaced them, too
            return
        whole = "" if self._in_parts else "; one backward for all packs of a micro-batch"
        self._say(f"Training step: packs of {self.pack_tokens:,} tokens, {self.kernel.name}{whole}")

    def _announce_steps(self) -> None:
        """Say how many steps the run plans, which decides whether layers are compiled."""
        args, base = self.args, wrappers.base_of(self.model)
        micro_batches_of_rollout = self.num_iterations * cast(int, args.steps_per_generation)
        steps = args.max_steps
        if steps <= 0:
            rows = len(self.train_dataset) if isinstance(self.train_dataset, Sized) else 0
            completions = args.num_train_epochs * rows * cast(int, self.num_generations)
            rollouts = completions / cast(int, args.generation_batch_size)
            steps = int(rollouts * micro_batches_of_rollout / args.gradient_accumulation_steps)
        OptimizerSteps.plan(base, steps)
        if not self.use_vllm:
            rollouts = steps * args.gradient_accumulation_steps // micro_batches_of_rollout
            TokenSteps.plan(base, rollouts * (self.max_completion_length or 0))

    def _compile(self, models: Sequence[Any]) -> None:
        """Compute packs by compiled layers from now on, if that pays and agrees with TRL's padded rows, too.

        Args:
            models: the policy; then the reference model, if there is one.
        """
        rounds = self.accelerator.mixed_precision in ("bf16", "fp16") or self.model.dtype != torch.float32
        sharded = self.accelerator.distributed_type in (DistributedType.FSDP, DistributedType.DEEPSPEED)
        if self.kernel is None or not self.kernel.attend or not rounds or sharded:
            return  # float32 stays exact; with sharded weights nothing is tried at the start
        bases = [wrappers.base_of(model) for model in models]
        layers = OptimizerSteps.of(bases[0])
        if layers and self.args.gradient_checkpointing and compiling.recomputes_outside():
            OptimizerSteps.refuse(bases[0], "this version of transformers recomputes checkpointed ones as they are")
        elif layers:
            self._layers = {base: OptimizerSteps(base, compiling.layers_of(base)) for base in bases}
            attention.need_no_mask_either(models[0], models[1:])
            if reason := trial.misfit(self):
                OptimizerSteps.refuse(bases[0], reason)
        if bases[0] in OptimizerSteps.refused:
            self._layers = {}

    def _say(self, text: str) -> None:
        """Print a line in the main process only."""
        if self.accelerator.is_main_process:
            print(text)

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._say(text)

    def _say_stocks(self, reason: str) -> None:
        self._say_once(f"note: the training step is TRL's own, with its padding: {reason}")

    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()
        sharding.prepare(self.accelerator)
        self._given = self.args.model_init_kwargs
        if self.is_fsdp_enabled:  # TRL would load all of the reference model on each GPU
            own = {"device_map": sharding.where_to_load(self.args.local_process_index)}
            self.args.model_init_kwargs = {**cast(dict[str, Any], self._given or {}), **own}

    @property
    def ref_model(self) -> Any:
        return self._ref_model

    @ref_model.setter
    def ref_model(self, model: Any) -> None:
        self.args.model_init_kwargs = self._given
        sharding.shard(self.accelerator, model)  # layer by layer; TRL would shard and gather it as a whole
        self._ref_model = model

    # The rollout

    def _generate(self, *args: Any, **kwargs: Any) -> Any:
        """Like TRL's, but completions are the whole text, with the prefill and the reasoning.

        TRL omits the prefill, and removes `<think>…</think>` if the tokenizer has a response template.
        """
        prompt_ids, completion_ids, tool_mask, completions, *rest = super()._generate(*args, **kwargs)
        parsed = any(getattr(self._tokenizer, f"response_{kind}", None) for kind in ("template", "schema"))
        if not trial.others_write(self) and (self.prefill or parsed):
            texts = [self.prefill + text for text in self._tokenizer.batch_decode(completion_ids, True)]
            chat = not isinstance(completions[0], str)
            completions = [[{"role": "assistant", "content": text}] for text in texts] if chat else texts
        return prompt_ids, completion_ids, tool_mask, completions, *rest

    def _generate_single_turn(self, prompt_ids: Any, images: Any, *args: Any, **kwargs: Any) -> Any:
        """Sample with vLLM or `generate` like TRL, or with our sampler, which draws from the same distribution."""
        if images is not None or not self._samples_itself():
            with contextlib.ExitStack() as stack:
                if self.is_fsdp_enabled and not self.use_vllm:  # vLLM gets the weights one by one
                    stack.enter_context(sharding.whole(self))
                if self.use_transformers_continuous_batching:
                    stack.enter_context(sampling.checked_batches(wrappers.unwrapped(self.model)))
                return super()._generate_single_turn(prompt_ids, images, *args, **kwargs)
        config = sampling.merged(self.model, self._generation_config())
        drawn = Sampling.of(config) if config.do_sample else None
        # the loss is computed under this autocast, too; an adapter's base model alone would not be
        with sharding.whole(self) as policy, self.accelerator.autocast(), sampling.sampling_mode(policy):
            inputs = policy, self._tokenizer, prompt_ids, config.eos_token_id, config.max_new_tokens, drawn
            return sampling.complete(*inputs, asked=True), None

    def _generation_config(self) -> GenerationConfig:
        """The configuration that `generate` would get for the next rollout."""
        return self.generation_config or GenerationConfig()

    def _samples_itself(self) -> bool:
        """True if our sampler draws the next rollout; otherwise say why, once.

        A callback may change `generation_config`, which is therefore asked before each rollout.
        """
        why = None if self.use_vllm else self._reason_for_generate()
        if why:
            self._say_once(f"note: model.generate samples the rollouts, because {why}")
        return not (self.use_vllm or why or trial.others_write(self))

    def _reason_for_generate(self) -> str | None:
        if self.use_transformers_continuous_batching:
            return "use_transformers_continuous_batching is set"
        model, config = wrappers.unwrapped(self.model), self._generation_config()
        if why := SAMPLING.override(self, behind=LeanGRPOTrainer) or sampling.reason_against(model, config):
            return why
        ends = set(sampling.merged(model, config).eos_token_id)
        return None if ends == set(self.eos_token_ids) else "generation_config has other end tokens"

    # Rewards and advantages

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        """Like TRL's, but dead groups are replaced, and advantages of rewards equal up to rounding are exactly 0."""
        override = SCORING.override(self, behind=LeanGRPOTrainer)  # another class' advantages are its own
        if override and self.dynamic_sampling:
            self._say_once(f"note: dynamic_sampling has no effect: {override}")
        if override or not (self.dynamic_sampling and self.model.training):
            return self._scored(inputs, not override)
        rollout = fill_groups(self, inputs, self.dynamic_sampling)
        own = rollout.of_process(self.accelerator.process_index, len(inputs))
        for name in {name for completion in own for name in completion.logged}:
            self._pending_extra_logs[name] = [completion.logged.get(name) for completion in own]
        generated = rollout.generated(own)
        with overrides.replaced(
            self, _generate=lambda prompts: generated, _calculate_rewards=lambda *args: rollout.rewards
        ):
            inputs[:] = [completion.row for completion in own]  # a caller may pair them with the output
            output = self._scored(inputs, True)
        self._log_rewards(rollout.first_rewards)
        logged = {"rounds": rollout.rounds, "completions": rollout.sampled, "live": rollout.live}
        for name, value in logged.items():
            self._metrics["train"][f"dynamic_sampling/{name}"].append(float(value))
        self._metrics["train"]["num_tokens"] = [self.state.num_input_tokens_seen]
        return output

    def _scored(self, inputs: Any, drops_rounding: bool) -> Any:
        """Return TRL's rollout of these rows.

        Args:
            drops_rounding: advantages of rewards that are equal up to rounding are exactly 0, and logged as such.
        """
        calculate = self._calculate_rewards
        kept: list[torch.Tensor] = []

        def keeping(*args: Any, **kwargs: Any) -> torch.Tensor:
            kept.append(calculate(*args, **kwargs))  # as a subclass returns them
            return kept[-1]

        with overrides.replaced(self, _calculate_rewards=keeping):
            output = super()._generate_and_score_completions(inputs)
        if drops_rounding:
            self._drop_rounding(output["advantages"], kept[-1])
            self._log_spreads(kept[-1])
        return output

    @property
    def _normalizes_first(self) -> bool:
        return bool(self.multi_objective_aggregation == "normalize_then_sum")

    def tied_groups(self, rewards: torch.Tensor) -> torch.Tensor:
        """Return which groups have rewards, (rows of all processes, functions), that are equal up to rounding."""
        group = cast(int, self.num_generations if self.model.training else self.num_generations_eval)
        return ties.tied(rewards, self.reward_weights, group, self._normalizes_first)

    def _drop_rounding(self, advantages: torch.Tensor, rewards: torch.Tensor) -> None:
        """Set the advantages of ties to 0, in place and in the log.

        Args:
            advantages: (rows of this process, …).
            rewards: (rows of all processes, functions), NaN for None.
        """
        groups = self.tied_groups(rewards)
        of_rows = groups.repeat_interleave(len(rewards) // len(groups))
        first = self.accelerator.process_index * len(advantages)
        advantages[of_rows[first : first + len(advantages)].to(advantages.device)] = 0.0
        logged: Any = self._logs["advantages"]  # of the last rows
        for place, is_tied in zip(reversed(range(len(logged))), reversed(of_rows.tolist()), strict=False):
            if is_tied:
                logged[place] = 0.0

    def _log_spreads(self, rewards: torch.Tensor) -> None:
        """Correct the logged differences of a rollout's rewards, of all processes, which may be rounding alone."""
        metrics, rows = self._metrics["train" if self.model.training else "eval"], len(rewards)
        # TRL's share of rows without a difference: in their group, or among all rows where it scales by all
        if self.scale_rewards == "batch" and not self._normalizes_first:
            alike = ties.tied(rewards, self.reward_weights, rows)
        else:
            groups = self.tied_groups(rewards)
            alike = groups.all() if self._normalizes_first else groups
        metrics["frac_reward_zero_std"][-1] = alike.double().mean().item()
        deviations = {"reward_std": (rewards, self.reward_weights)} | {
            f"rewards/{name}/std": (rewards[:, [index]], torch.ones(1))
            for index, name in enumerate(self.reward_func_names)
        }
        for name, columns in deviations.items():
            if metrics[name][-1] > 0 and ties.tied(*columns, rows):
                metrics[name][-1] = 0.0

    def _log_rewards(self, rewards: torch.Tensor) -> None:
        """Log the rewards of these completions, of all processes, instead of those that were chosen among more."""
        metrics, total = self._metrics["train"], (rewards * self.reward_weights.to(rewards.device)).nansum(1)
        total[rewards.isnan().all(1)] = torch.nan
        columns = {f"rewards/{name}/": rewards[:, index] for index, name in enumerate(self.reward_func_names)}
        for name, values in columns.items():
            metrics[f"{name}mean"][-1], metrics[f"{name}std"][-1] = values.nanmean().item(), nanstd(values).item()
        metrics["reward"][-1], metrics["reward_std"][-1] = total.nanmean().item(), nanstd(total).item()
        self._log_spreads(rewards)

    @contextlib.contextmanager
    def further_round(self) -> Iterator[None]:
        """Sample and score more completions of a rollout, without their metrics."""
        self.is_first_round = False
        try:
            with self._without_metrics():
                yield
        finally:
            self.is_first_round = True

    @contextlib.contextmanager
    def _without_metrics(self) -> Iterator[None]:
        metrics, pending = self._metrics, self._pending_metrics
        self._metrics, self._pending_metrics = defaultdict(lambda: defaultdict(list)), defaultdict(list)
        try:
            yield
        finally:
            self._metrics, self._pending_metrics = metrics, pending

    # The training step

    def _in_packs(self) -> bool:
        """True if packs compute this step; otherwise say why, once. An override may come after the start."""
        override = trial.override_of_step(self) if self.kernel else None
        if override:
            self._say_stocks(override)
        return self.kernel is not None and override is None

    @property
    def _in_parts(self) -> bool:
        """True if the loss of a micro-batch is a sum of its packs'. A callback may change what decides."""
        known = self.loss_type in micro_batches.KNOWN
        known = known and self.top_entropy_quantile == 1 and not self._entropy_bonus_enabled
        # DeepSpeed takes its optimizer step in the backward of the last micro-batch, which must be a single one
        return known and self.accelerator.distributed_type != DistributedType.DEEPSPEED

    @overrides.same_loss
    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: Batch,
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> torch.Tensor:
        """Return the loss of these inputs; in a training step, the loss of this micro-step's packs.

        Summed over an optimizer step, the packs' losses equal the micro-batches' losses. All but this micro-step's
        last pack are already backpropagated on return.
        """
        plan, turn = self._planned(inputs) if self.model.training and not return_outputs else (None, 0)
        self._all_computed = None
        if plan is None:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        packs = plan.packs_of_micro_batch[turn]
        total = torch.zeros((), device=self.accelerator.device, requires_grad=not packs)
        for number, (chosen, factor) in enumerate(packs, start=1):
            more = number < len(packs)
            # Processes sum their gradients in an optimizer step's last backward. With FSDP they do so in each one:
            # otherwise every device would hold the gradient of all weights.
            waits = more and self.accelerator.sync_gradients and not self.is_fsdp_enabled
            with self.accelerator.no_sync(model) if waits else contextlib.nullcontext():
                loss = self._loss_of(model, plan, chosen) * factor
                if more:
                    self.accelerator.backward(loss)
                    loss = loss.detach()
            total = total + loss
        if turn + 1 == len(plan.packs_of_micro_batch):
            self._all_computed = plan
        return total

    @overrides.same_loss
    def training_step(self, model: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Like TRL's, but log losses after the backward, since each metric waits until a GPU has done all its work."""
        loss = super().training_step(model, *args, **kwargs)
        if self._all_computed is not None:
            start = time.perf_counter()
            self._log_losses(model, self._all_computed)
            seconds = time.perf_counter() - start
            if self._current_train_step_time:  # the optimizer step goes on
                self._current_train_step_time += seconds
            else:
                self._metrics["train"]["step_time"][-1] += seconds
        return loss

    def _planned(self, inputs: Batch) -> tuple[Plan | None, int]:
        """Return (plan, index of these inputs in it), or (None, 0) if TRL's own loss has to be computed."""
        for turn, batch in enumerate(self._plan.batches if self._plan else ()):
            if turn and inputs is batch:  # its earlier packs are computed: what has changed since waits for the next
                return self._plan, turn
        count = cast(int, self.args.steps_per_generation)  # GRPOConfig has set it
        together = math.gcd(self.args.gradient_accumulation_steps, count)
        if self.loss_type in micro_batches.TOKEN_MEANS:
            together = 1
        index = self._step % count
        batches: list[Batch] = (self._buffered_inputs or [])[index : index + together]
        self._plan = None
        begins = index % together == 0 and batches and inputs is batches[0]
        if begins and self._in_packs() and self._in_parts and self._are_plain(batches):
            skips = self.beta == 0 and self.loss_type != "vespo"  # vespo logs a weight of every completion
            self._plan = micro_batches.plan(batches, self.loss_type, skips, self._make_packs)
        return self._plan, 0

    def _are_plain(self, batches: list[Batch]) -> bool:
        """True if packs can express these micro-batches, of all processes; otherwise say why not, once."""
        reason = micro_batches.reason_against(batches)
        if reason:
            self._say_once(f"note: the training step keeps TRL's micro-batches: {reason}")
        return not self._of_any_process(reason is not None)

    def _of_any_process(self, flag: bool) -> bool:
        if self.accelerator.num_processes == 1:
            return flag
        return bool(self.accelerator.gather(torch.tensor([int(flag)], device=self.accelerator.device)).any())

    def _loss_of(self, model: torch.nn.Module, plan: Plan, chosen: list[int]) -> torch.Tensor:
        """Compute TRL's loss of a pack's rows as a micro-batch; without rows, a zero that depends on all weights."""
        if not chosen:
            return self._scores(model, [], [[]], 1)[0].sum()
        index = packing.to_device(self.accelerator.device, chosen)
        rows = micro_batches.part(plan.rows, chosen, index)
        self._one_pack = [plan.laid_out[row] for row in chosen]
        try:
            with self._without_other_processes():
                loss = super()._compute_loss(model, rows)
        finally:
            self._one_pack = None
        plan.log_probs[index], plan.entropies[index] = self._computed
        return loss

    def _log_losses(self, model: torch.nn.Module, plan: Plan) -> None:
        """Compute TRL's loss of each micro-batch from known values, so that TRL logs its metrics."""
        tokens = plan.rows["completion_mask"] * plan.computed[:, None]
        sums = torch.stack([(plan.entropies * tokens).sum(), tokens.sum().float()])
        entropy = self.accelerator.reduce(sums, reduction="sum")
        mean = entropy[0] / entropy[1]
        plan.entropies.masked_fill_(~plan.computed[:, None], mean)  # keeps the mean of the computed ones
        done = 0
        for batch in plan.batches:
            rows = slice(done, done := done + len(batch["advantages"]))
            self._logged_values = plan.log_probs[rows], plan.entropies[rows], None
            try:
                with torch.no_grad():
                    super()._compute_loss(model, batch)
            finally:
                self._logged_values = None

    @contextlib.contextmanager
    def _without_other_processes(self) -> Iterator[None]:
        """Run TRL's loss without logging or communication, since other processes may have fewer packs."""
        accelerator = self.accelerator
        self.accelerator = cast(Accelerator, _LocalAccelerator(accelerator))
        try:
            with self._without_metrics():
                yield
        finally:
            self.accelerator = accelerator

    def _make_packs(self, rows: Sequence[Row], padded: int) -> list[list[int]]:
        """Divide rows into packs, the same number on all processes: at least one, and some may be empty.

        All processes need the same number of forwards, since they gather sharded weights together.

        Args:
            padded: positions that TRL would compute at once, the limit for packs larger than `pack_tokens`.
        """
        assert self.pack_tokens is not None
        packs = packing.make_packs(rows, self.pack_tokens, padded if self._packs_grow else 0)
        count = max(len(packs), 1)
        if self.accelerator.num_processes > 1:
            counts = self.accelerator.gather(torch.tensor([count], device=self.accelerator.device))
            count = int(counts.max())
        return packs + [[]] * (count - len(packs))

    @overrides.same_loss
    def _get_per_token_logps_and_entropies(
        self,
        model: torch.nn.Module,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        compute_entropy: bool = False,
        **others: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """Like TRL's, for training, old and reference log-probabilities; 0 where nothing is scored."""
        if self._logged_values is not None:
            return self._logged_values
        if (rows := self._one_pack) is not None:
            packs = [list(range(len(rows)))]
        elif (
            not self._in_packs()
            or any(value is not None and value is not False for value in others.values())  # a subclass may want more
            or self._of_any_process(packing.has_gaps(attention_mask, logits_to_keep))
        ):
            return super()._get_per_token_logps_and_entropies(
                model, input_ids, attention_mask, logits_to_keep, batch_size, compute_entropy, **others
            )
        else:
            rows = packing.rows_of(input_ids, attention_mask, logits_to_keep)
            packs = self._make_packs(rows, min(batch_size or len(rows), len(rows)) * input_ids.shape[1])
        log_probs, entropies = self._scores(model, rows, packs, logits_to_keep)
        if entropies is not None:
            self._computed = log_probs.detach(), entropies.detach()
        return log_probs, entropies, None

    def _scores(
        self, model: torch.nn.Module, rows: Sequence[Row], packs: Sequence[Sequence[int]], width: int
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        assert self.kernel is not None
        with self.accelerator.autocast():
            layers = self._layers.get(wrappers.base_of(model)) if self._layers else None
            return attention.score(model, self.kernel, rows, packs, width, self.accelerator.device, layers)


class _LocalAccelerator:
    """An accelerator that neither communicates with other processes nor waits for the device.

    TRL's loss gathers and reduces its metrics only. Those of a pack are thrown away, but TRL would read each of them
    and wait for the GPU. So it gets NaN on the CPU, which would show if it were part of a loss.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator

    def __getattr__(self, name: str) -> Any:
        return getattr(self._accelerator, name)

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.full(tensor.shape, math.nan)

    def reduce(self, tensor: torch.Tensor, reduction: str = "sum") -> torch.Tensor:
        return torch.full(tensor.shape, math.nan)
