"""``pe-lab -m``: all jobs of a line through a launcher of Hydra's, and what became of them.

Hydra's sweeper would launch the finished jobs too, lose the jobs of a broken pool and report
only the first failure. So its launcher is called here, for the missing jobs. A sweeper that
searches is run by Hydra: it chooses its jobs as it goes.
"""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from omegaconf import DictConfig

from pe_lab.common.console import console
from pe_lab.common.errors import Interrupted, PeLabError, RunError, sentence
from pe_lab.common.output import counted
from pe_lab.config.overrides import as_typed
from pe_lab.experiment.provenance import changed_code, made_otherwise, unchanged, without_effect
from pe_lab.experiment.run import look_at
from pe_lab.experiment.tracking import track_rest
from pe_lab.store.run_id import swept
from pe_lab.sweeps.jobs import (
    UNFINISHED,
    Job,
    best,
    closing_table,
    make_jobs,
    over_seeds,
    unfinished,
)
from pe_lab.sweeps.progress import Progress
from pe_lab.sweeps.retry import launch_all
from pe_lab.sweeps.search import search
from pe_lab.sweeps.sweep import Sweep, check_launcher
from pe_lab.training.plan import Plan


def multirun(
    args: Any, composed: Sequence[DictConfig], plans: Sequence[Plan], tables: bool = True
) -> None:
    """Do all jobs of a sweep.

    Args:
        tables: print what is to be done and the closing tables.

    Raises:
        PeLabError: not all of it is finished.
        Interrupted: a signal came; the same command continues.
    """
    if check_launcher(composed[0]):
        return _every_combination(args, composed, plans, tables)
    sweep = Sweep(args, composed[0], plans[0].config.runs_dir)
    console().print(f"{sweep.cfg.hydra.sweeper.get('n_trials', '')} trials")
    with sweep.running():
        search(sweep.hydra, sweep.cfg, args.overrides, sweep.name, sweep.pool)
    return None


def _every_combination(
    args: Any, composed: Sequence[DictConfig], plans: Sequence[Plan], tables: bool
) -> None:
    words = [list(cfg.hydra.overrides.task) for cfg in composed]
    jobs = make_jobs(plans, words, swept(as_typed(args.overrides)))
    missing = [job for job in jobs if job.missing]
    done = sum(job.finished_before for job in jobs)
    all_jobs = counted(len(jobs), "job")
    if tables:
        console().print(all_jobs + (f", {done} of them finished before" if done else ""))
    for job, plan in zip(jobs, plans, strict=True):
        if job.finished_before:
            track_rest(plan, job.folder)
    pairs = zip(jobs, plans, strict=True)
    _note_other_conditions([(job, plan) for job, plan in pairs if job.finished_before])
    _warn_once([(job, plan) for job, plan in zip(jobs, plans, strict=True) if job.missing])
    ended: Exception | Interrupted | None = None
    if missing:
        sweep = Sweep(args, composed[0], plans[0].config.runs_dir)
        batch_size = sweep.cfg.hydra.sweeper.max_batch_size
        try:
            with sweep.running():
                sweep.callbacks.on_multirun_start(config=sweep.cfg, config_name="config")
                with Progress(missing, len(jobs)).shown():
                    launch_all(missing, sweep.launch(jobs), batch_size)
                sweep.callbacks.on_multirun_end(config=sweep.cfg, config_name="config")
        except (Exception, Interrupted) as error:
            ended = error
    outcomes = {job.number: job.outcome() for job in jobs}
    table, counts = closing_table(jobs, outcomes)
    if tables:
        console().print(table)
        over_seeds(jobs)
        if (lowest := best(jobs, outcomes)) is not None:
            look_at(lowest.folder, plans[0].config.runs_dir)
    again = "the same command" + " without force=true" * any(plan.config.force for plan in plans)
    if isinstance(ended, Interrupted):
        console().print(f"stopped by a signal: run {again} to continue")
        raise ended
    left = unfinished(counts)
    if ended is not None:
        reason = sentence(ended)
        raise RunError(f"the launcher failed: {reason}; {left} of {all_jobs}") from ended
    if left:
        failed = [job for job in jobs if outcomes[job.twin or job.number].state in UNFINISHED]
        first = "" if tables else f" ({failed[0].label}: {outcomes[failed[0].number]})"
        raise PeLabError(f"{left} of {all_jobs}{first}: {again} runs only what is missing")


def _warn_once(missing: Sequence[tuple[Job, Plan]]) -> None:
    """Print each warning of ``without_effect`` once, however many jobs it concerns."""
    found = (m for job, plan in missing for m in without_effect(plan, as_typed(job.words)))
    for message in dict.fromkeys(found):
        console().print(message, soft_wrap=True)


def _note_other_conditions(finished: Sequence[tuple[Job, Plan]]) -> None:
    """Print how many finished runs were made with other settings, or before their code changed."""
    notes: Counter[str] = Counter()
    for job, plan in finished:
        if found := made_otherwise(job.folder, plan.config):
            notes[f"made with {found}, so the last digits may differ"] += 1
        # The closing table says which files are damaged.
        with suppress(PeLabError):
            summary = job.folder.summary()
            if summary and (found := unchanged(summary["config"], plan.resolved)):
                notes[found] += 1
        if found := changed_code(job.folder, plan.resolved):
            said = f"made before the file of {found} changed: their numbers are those of that code"
            notes[said] += 1
    for note, n in notes.items():
        console().print(
            f"{n} of the finished runs {note}; force=true runs them again", soft_wrap=True
        )
