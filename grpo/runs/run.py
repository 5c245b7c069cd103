"""Lock a run's directory, keep its record, and end it with one readable line, whatever the cause.

What ends a run before its last step asks `stop` for that (stop.py), and it happens at the end of a rollout
(training/stopping.py).
"""

import contextlib
import json
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any

from accelerate.utils import broadcast_object_list

from exact_answers.verdict import RULE
from grpo.core import commands
from grpo.core.checklist import Check
from grpo.core.errors import Interrupted, UserError, reason_of, users_mistake
from grpo.core.functions import innermost
from grpo.core.out_of_memory import is_disk_full, is_out_of_memory, origins, out_of_memory
from grpo.core.phases import LOADING, READING, Phase
from grpo.core.processes import (
    LOST,
    GivenUp,
    explain_lost,
    failure_left,
    first_difference,
    forget_failure,
    is_first_process,
    leave_failure,
    say,
    sharding,
)
from grpo.core.settings import LENGTH, Config, adapter_decides, given_by
from grpo.core.text import digest, human_bytes
from grpo.report import contents, report
from grpo.results.record import RunRecord
from grpo.runs import checkpoints, directory, facts, record, resume, source
from grpo.runs.differences import between_processes
from grpo.runs.directory import Claim
from grpo.runs.source import Source
from grpo.runs.stop import BY_LAUNCHER, Stop, signal_name
from grpo.task import prompts
from grpo.task.task import Task

CHECKPOINTING = "gradient_checkpointing", "activation_checkpointing"  # transformers' older and newer name


class Run:
    """The shared state of a run: whether it trains, whether it must end, and why.

    Attributes:
        config: what the user asked for.
        args: TRL's arguments: those of `config`, with the run's directory, its name and the checkpoint to resume from.
        output: the run's directory.
        checkpoint: the checkpoint to resume from; None: the run starts from the beginning.
        changed: what differs from the run that wrote the checkpoint, in words.
        remeasured: what of it makes evaluations another measure than before, once the run is open.
        rechosen: what of it makes the best value so far another one.
        notes: decisions about directory and checkpoint, for preflight's table.
        facts: what the run and its figures rest on (facts.py): before it is open, the code alone.
        source: the code of the run.
        record: `run.json` as this process has written it; None: it has not.
        step, planned: completed optimizer steps (None: it does not train), and steps of the whole run (0: unknown).
        best_step: the step of the final weights if they are those of the best checkpoint, else None.
        stop: whether it must end before its last step, and why.
        phase: what the run is doing, or was doing when it failed.
    """

    def __init__(self, config: Config, claim: Claim, source: Source) -> None:
        self.config, self.source, self.args = config, source, copy(config.training)
        self.checkpoint = Path(claim.checkpoint) if claim.checkpoint else None
        self.args.resume_from_checkpoint = claim.checkpoint
        self._use(Path(claim.output_dir))
        self.changed: list[str] = []
        self.remeasured: list[str] = []
        self.rechosen: list[str] = []
        self.notes = list(claim.notes)
        self.facts: dict[str, Any] = {"sources": source.hashes}
        self.record: RunRecord | None = None
        self.step: int | None = checkpoints.step_of(self.checkpoint) if self.checkpoint else 0
        self.planned = 0
        self.best_step: int | None = None
        self.phase = LOADING
        self.stop = Stop(lambda: self.phase.repeated)
        self._trained = self._ended = False

    def _use(self, output: Path) -> None:
        """Write to this directory. Its number (`-2`, …) is in a default run name, too."""
        config, name = self.config, self.config.training.run_name or ""
        number = re.fullmatch(rf"{re.escape(config.default_dir)}(-\d+)", str(output))
        self.output, self.args.output_dir = output, str(output)
        self.args.run_name = name + number[1] if number and config.origin["run_name"] == "machine" else name

    def settings(self) -> dict[str, Any]:
        """All settings by name, as this run uses them."""
        return self.config.settings() | self.args.to_dict()

    def use_checkpointing(self, on: bool, why: str) -> None:
        """Turn gradient checkpointing on or off, where the settings leave it open, and note why."""
        for name in CHECKPOINTING:
            if hasattr(self.args, name):
                setattr(self.args, name, on)
        finding = f"gradient checkpointing {'on' if on else 'off'}: {why}"
        self.notes.append(Check("ok", "checkpointing", finding))

    @property
    def exit_status(self) -> int:
        """The first process' exit status in all processes, since torchrun kills the others if one fails."""
        return self.stop.status if is_first_process() else 0

    @contextlib.contextmanager
    def open(self, data: facts.Rows) -> Iterator[None]:
        """Lock the run's directory, handle signals, and make errors readable.

        Raises:
            UserError: another run has the directory, or the processes do not have the same settings, code and data.
        """
        by_default = self.config.origin["output_dir"] == "machine" and not self.config.training.resume_from_checkpoint
        with contextlib.ExitStack() as stack:
            output, refusal = self.output, ""
            try:
                default_dir = self.config.default_dir if by_default else ""
                output = stack.enter_context(directory.locked(output, self.args.resume_from_checkpoint, default_dir))
            except UserError as error:
                refusal = str(error)
            forget_failure()
            checkpoints.expect_tied_heads()
            # chosen by the first process, which locks for all
            output, refusal = broadcast_object_list([output, refusal])
            if refusal:
                raise UserError(refusal)
            if output != self.output:  # another run was faster
                say(f"note: {self.output} was taken meanwhile")
                self._use(output)
            self.facts = facts.facts_of(self.settings(), self.source.hashes, data, sharding(self.args))
            self._compare_processes()
            with self.stop.handling(), self._readable():
                yield

    def _compare_processes(self) -> None:
        """Raise UserError in all processes if one of them would train or measure something else than the first."""
        if self.config.geometry.world_size == 1:
            return
        checkpoint = checkpoints.identity(self.checkpoint) if self.checkpoint else None
        if found := first_difference(self.facts | {"checkpoint": checkpoint}, between_processes):
            raise UserError(f"{found}; start the same line with the same code and data on each machine")

    def begin_with(self, weights: str, configuration: str) -> None:
        """Add the model that training begins with to `facts`, and compare them all with the checkpoint's.

        Args:
            weights: their digest; "" if this process does not have them.
            configuration: a digest of the model's and of its generation's.

        Raises:
            UserError: the model of another process, or the weights of the run that wrote the checkpoint, are others.
        """
        first: str = broadcast_object_list([weights])[0]
        known = {facts.WEIGHTS: weights or first} if first else {}
        self.facts["sources"] |= known | {facts.CONFIGURATION: configuration}
        self._compare_processes()
        if not self.checkpoint:
            return
        if first:
            resume.check_weights(self.checkpoint, first, str(self.config.model.model_name_or_path))
        self.remeasured = resume.changed_measure(self.checkpoint, self.facts)
        self.rechosen = self.remeasured + resume.changed_chooser(self.checkpoint, self.facts)
        parts = resume.changed_parts(self.checkpoint, self.facts)
        self.changed = list(dict.fromkeys([*self.changed, *parts, *self.remeasured]))

    @property
    def measure(self) -> str:
        """A digest of what an evaluation of this run rests on."""
        return digest(json.dumps(facts.measure_of(self.facts), sort_keys=True))

    def begin(self, **values: Any) -> None:
        """Begin the run's record, with these values: prompt, data, rewards of a perfect completion."""
        say(f"Run: {self.args.run_name}, in {self.output}")
        if is_first_process():
            then = record.earlier(self.output, self.checkpoint)
            now = record.begun(self.config, then, self._session(), **self._recorded(), **values)
            record.start(self.output, self.checkpoint, then, now, self.source.files)
            self.record = now

    def _session(self) -> dict[str, Any]:
        """Return what is recorded of this session."""
        step = checkpoints.step_of(self.checkpoint) if self.checkpoint else 0
        changed = {"changed": self.changed} if self.changed else {}
        return {"from_step": step, **changed} | ({"best_from": step} if self.rechosen else {})

    def _recorded(self) -> dict[str, Any]:
        """Return what is recorded of settings and code."""
        decisions = [f"{note.name}: {note.finding}" for note in (*self.config.notes, *self.notes)]
        code = {"sources": self.facts["sources"], "code": self.source.code}
        return {**code, "decisions": decisions, "settings": self.settings()}

    @contextlib.contextmanager
    def during(self, phase: Phase) -> Iterator[None]:
        """Let this be the run's phase. A failure keeps it, so that it can be explained."""
        before, self.phase = self.phase, phase
        try:
            yield
        except GivenUp:  # the run goes on, and saves
            self.phase = before
            raise
        self.phase = before

    def begin_training(self, planned: int) -> None:
        self.stop.training, self._trained, self.planned = True, True, planned

    def end(self, status: str = "finished") -> None:
        """Record how the run ended, write the report, and print the next steps."""
        if self.stop.is_asked:
            status = self.stop.ending
        self._note(status)
        self._ended = True
        if is_first_process():
            written = self.output / "report.html"
            try:
                contents.draw(self.output)
            except UserError as error:  # a broken file must not cost the results
                say(f"note: no new report ({error})")
            complete = self._trained and not self.stop.is_asked
            say(f"Saved in {self.output}" + ("" if complete else f"; the report is {written}"))
            if self.stop.is_asked:
                say(f"{status[0].upper()}{status[1:]}. {self.how_to_resume()}")
            elif complete:
                if self.record and self.record.weights_of_best:
                    say(f"These are the {self.record.weights_of_best}")
                if self.stop.early:
                    resume = self.how_to_resume()
                    say(f"A callback ended training at step {self.step} of {self.planned}. {resume}")
                say(self.next_steps(written))

    def _note(self, status: str) -> None:
        if self.record:
            best = None if self.stop.is_asked else self.best_step
            seconds = time.perf_counter() - self.config.started
            self.record = self.record.ended(status, seconds, self.step, self.planned, best)
            self.record.write(self.output)

    # What to do next

    def how_to_resume(self) -> str:
        """Return the command that continues a run that ended early."""
        if not checkpoints.newest(self.output)[0]:
            if self._trained and any(self.output.glob("*.safetensors")):
                return (
                    f"Its model is saved in {self.output}, and no checkpoint to resume from. {self._how_to_report()}"
                )
            return "There is no checkpoint to resume from"
        return f"To resume: {commands.resume(record.started(self.config), self.output)}"

    def _how_to_report(self) -> str:
        return f"To draw its report: {commands.tool('report', str(self.output))}"

    def next_steps(self, written: Path) -> str:
        """Return the next steps with a finished run, as commands to copy."""
        run = str(self.output)
        name = re.sub(r"[^\w.-]+|[.-]{2,}", "-", self.output.name).strip("-.")  # as the Hub takes it
        lines = ["Next:", f"  read the report  {written}"]
        lines.append(f"  ask the model    {commands.tool('ask', run, 'your question')}")
        if (self.output / "adapter_config.json").exists():
            lines.append(f"  merge it         {commands.tool('merge', run)}")
        if not self.args.push_to_hub:
            lines.append(f"  publish it       {commands.tool('publish', run, f'your-name/{name}')}")
        return "\n".join(lines)

    # Errors

    @contextlib.contextmanager
    def _readable(self) -> Iterator[None]:
        """Record how the run failed. Turn known exceptions into one line that includes how to resume."""
        try:
            yield
        except KeyboardInterrupt as error:
            self.stop.has_told = True  # torchrun's SIGTERM may follow
            by = str(error) or f" by {signal_name(signal.SIGINT)}"
            if by == BY_LAUNCHER and (failed := failure_left()):
                raise self._of_another(*failed) from None
            self._break_off(f"interrupted{by}")
            what_next = self.how_to_resume()
            compared = self._trained and (self.output / "comparison.json").exists()  # a resumed run moves the old one
            if (self._ended or compared) and not self.stop.is_asked:
                what_next = f"The run had ended, and its results are saved. {self._how_to_report()}"
            raise Interrupted(f"{by}. {what_next}", getattr(error, "status", 128 + signal.SIGINT)) from None
        except Exception as error:
            self.stop.has_told = True
            line = str(error) if isinstance(error, UserError) else self._explanation(error)
            if line == LOST and (failed := failure_left()):
                raise self._of_another(*failed) from error
            if line != LOST:
                leave_failure(line or reason_of(error))
            self._break_off(f"failed: {line or reason_of(error)}")
            if not line:
                raise
            raise self._failure(line) from error

    def _of_another(self, process: int, line: str) -> UserError:
        """Record that another process has failed, and return its error."""
        self._break_off(f"failed: [process {process}] {line}")
        return self._failure(line, process)

    def _failure(self, line: str, process: int | None = None) -> UserError:
        return UserError(f"{line}. {self.how_to_resume()}" if self.stop.training else line, process)

    def _break_off(self, status: str) -> None:
        if self.stop.training and sys.stderr.isatty():
            print(file=sys.stderr)  # end the progress bar's line
        with contextlib.suppress(OSError, ValueError):  # the disk may be full
            if not self._ended:  # then only its report and its card are missing
                self._note(status)
        if self._trained and is_first_process():
            report.refresh(self.output)  # the page shows it, and stops reloading itself

    def _explanation(self, error: Exception) -> str:
        """Explain a full device or disk, a lost process, a damaged checkpoint or a user's mistake; "" otherwise."""
        # libraries wrap the exception of a full device or disk
        if full := next(filter(is_out_of_memory, origins(error)), None):
            return out_of_memory(full, self.phase)
        if any(map(is_disk_full, origins(error))):
            free = human_bytes(shutil.disk_usage(self.output).free)
            full_disk = f"the disk of {str(self.output)!r} is full ({free} free)"
            return f"output_dir: {full_disk}; free some space, or lower save_total_limit"
        if lost := next(filter(None, map(explain_lost, origins(error))), ""):
            return lost
        if self.phase is READING:
            remedy = "delete it, and --resume_from_checkpoint auto takes the one before it"
            return f"resume_from_checkpoint: {self.checkpoint} does not load ({reason_of(error)}); {remedy}"
        return users_mistake(error)


def choose_run(config: Config, task: Task, rewards: Mapping[str, Callable[..., Any]]) -> Run | None:
    """Choose a run's directory and the checkpoint to resume from. Writes nothing.

    Returns:
        None if there is nothing to do: the run has finished, and this command changes nothing of it.
    """
    inline = given_by(config.origin, "script") & config.functions.keys()
    code = source.read(
        Path(config.script_file), functions_of(config, task, rewards), config.recipe, inline, config.script.reward_args
    )
    code = code._replace(hashes=prompts.hashes(task.prompt, task.shots) | {facts.JUDGE: RULE} | code.hashes)

    def compared(settings: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in settings.items() if not adapter_decides(key, config.origin)}

    wanted = {"settings": compared(config.settings()), "sources": code.hashes}
    named = None if config.origin["output_dir"] == "machine" else config.training.output_dir
    claim = directory.claim(
        named, config.default_dir, config.training.resume_from_checkpoint, partial(resume.of_experiment, now=wanted)
    )
    run = Run(config, claim, code)
    if run.checkpoint is None:
        return run
    settings = compared(run.settings())
    now = {"settings": settings, "sources": code.hashes, "sharding": sharding(run.args)}
    changes = resume.since_checkpoint(run.checkpoint, now)
    run.changed = [str(change) for change in changes if change.means is not LENGTH]
    run.notes += resume.note_changes(run.checkpoint, now, config.geometry.world_size)
    still_open = CHECKPOINTING if config.checkpointing_is_open else ()
    decided = {key: value for key, value in settings.items() if key not in still_open}
    changed = resume.since_end(run.checkpoint, run.output, now | {"settings": decided})
    if changed == []:
        say(f"{run.output} has finished, and its settings and code have not changed; a larger max_steps trains on")
        return run if config.script.dry_run else None
    if changed and not any(change.means is LENGTH for change in changed):
        names = ", ".join(change.name for change in changed)
        finding = f"the run has finished, so it is only evaluated and saved again ({names} changed)"
        run.notes.append(Check("ok", "finished", finding))
    return run


def functions_of(
    config: Config, task: Task, rewards: Mapping[str, Callable[..., Any]]
) -> dict[str, Callable[..., Any]]:
    """Return the run's rewards, judge and `prepare` by label, without the parameters that settings bind."""
    functions = {name: config.functions["reward_funcs"].get(name) or innermost(rewards[name]) for name in rewards}
    functions |= {f"the judge {task.judge_name}": task.judge} if task.judge else {}
    return functions | ({"prepare": task.prepare} if task.prepare else {})
