"""Trains the runs of suite v2.1, one after the other, and goes on where it stopped.

    python examples/suite_v2_1/trains.py runs_dir=runs_v2_1 until=1795743300
    python examples/suite_v2_1/trains.py runs_dir=runs_v2_1 list=true     # what is left, and its cost

known=v2_1.parquet names a file of packs.py, whose runs are not trained again.

The rule for the learning rate, the lists and their order are those of docs/claims-v2.1.yaml.
"""

import csv
import itertools
import math
import resource
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import polars as pl

from pe_lab import run as train
from pe_lab.cli.train import arguments
from pe_lab.common.errors import PeLabError
from pe_lab.config.schema import register_resolvers
from pe_lab.results.leaderboard.file import shipped
from pe_lab.results.leaderboard.tuning import chosen_rate, next_runs
from pe_lab.results.suite import load_suite
from pe_lab.sweeps.launchers import register_choices
from pe_lab.sweeps.suite.runs import Base, Composer, SuiteRun

NOISE = 0.002
FAILED = math.inf, math.inf
TEN = ["none", "learned", "sinusoidal", "rope", "alibi", "t5", "fire", "cope", "fox", "path"]
OTHERS = ["conv", "path_published", "lstm", "linear_attention"]
FIVE = ["alibi", "fire", "none", "t5", "rope"]
SIX = ["fire", "alibi", "rope", "none", "cope", "path"]
PLACES = ["k", "q", "v", "embedding", "kv", "2", "4"]
# Chosen by v2 on rates that learn on the tuning seeds and in fewer than 80 % of the scored seeds.
CLIFFS = [
    ("copy_unique", "path"),
    ("majority", "learned"),
    ("majority", "learned+conv"),
    ("selective_copy", "alibi"),
    ("selective_copy", "cope"),
    ("counting", "none"),
    ("counting", "t5+conv"),
    ("brackets", "sinusoidal"),
]
# Fewer than half of v2's scored seeds learn these.
NOT_LEARNED = [
    ("flipflop", "none"),
    ("flipflop", "t5"),
    ("copy_unique", "none"),
    ("copy_unique", "sinusoidal"),
    ("copy_unique", "fox"),
    ("copy_unique", "fox+conv"),
    ("recall", "none"),
    ("recall", "sinusoidal"),
    ("recall", "alibi"),
    ("sort", "fox"),
    ("sort", "fox+conv"),
    ("counting", "none"),
    ("counting", "none+conv"),
    ("counting", "learned"),
    ("counting", "t5"),
    ("counting", "t5+conv"),
    ("counting", "conv"),
    ("counting", "conv+conv"),
]
NOT_LEARNED_CONTROLS = [
    ("flipflop", "linear_attention"),
    *(("copy_unique", e) for e in ("lstm", "lstm+conv")),
    *(("copy_unique", e) for e in ("linear_attention", "linear_attention+conv")),
    *(("recall", e) for e in ("lstm", "lstm+conv", "linear_attention")),
    *(("sort", e) for e in ("lstm", "lstm+conv")),
    *(("counting", e) for e in ("linear_attention", "linear_attention+conv")),
]
REST = [
    "brackets",
    "copy_unique",
    "recall",
    "counting",
    "sort",
    "selective_copy",
    "majority",
    "parity",
]
WIDE_GAP = ["fire", "alibi", "rope", "cope"]


def beyond_search() -> set[str]:
    """Tuning runs at rates that v2's search does not try, made under the rule's first version."""
    return {*Path(__file__).with_name("beyond.txt").read_text("utf-8").split()}


def both(names: list[str]) -> list[str]:
    """The entries alone and with the convolution."""
    return [n + c for n in names for c in ("", "+conv") if n != "path_published" or not c]


class Runs:
    """What is known of runs, and what is left to train."""

    def __init__(self, runs_dir: str, known: str | None = None) -> None:
        register_resolvers()
        register_choices()
        self.suite = load_suite("v2_1")
        words = ["-m", f"runs_dir={runs_dir}", "tracker=none", "threads=1"]
        self.composer = Composer(arguments(words), self.suite)
        files = [shipped("v2"), *([known] if known else [])]
        rows = pl.concat(pl.read_parquet(file) for file in files).filter(split="in_domain")
        self.shipped = {
            row["run_id"]: (row["error"], row["loss"]) if row["state"] == "finished" else FAILED
            for row in rows.iter_rows(named=True)
        }
        self.gave_up: set[str] = set()
        self.beyond = beyond_search()
        times = rows.filter(pl.col("phase") == "score").group_by("task", "entry")
        seconds = times.agg(
            (pl.col("train_s") / pl.col("steps")).median(), pl.col("measure_s").median()
        )
        self.seconds = {(t, e): (step, end) for t, e, step, end in seconds.iter_rows()}

    def base(self, task: str, entry: str) -> Base | None:
        return self.composer.base(task, entry)

    def measured(self, run: SuiteRun) -> tuple[float, float] | None:
        """In-domain error and loss; None: not over."""
        if run.run_id in self.shipped:
            error, loss = self.shipped[run.run_id]
            return (math.inf if error is None else error, math.inf if loss is None else loss)
        if (run.folder.path / "summary.json").exists():
            metrics = run.folder.summary()["metrics"]
            error, loss = metrics["in_domain/error"], metrics["in_domain/loss"]
            return (math.inf if error is None else error, math.inf if loss is None else loss)
        return FAILED if run.run_id in self.gave_up else None

    def fits(self, task: str) -> float:
        return self.suite.tasks[task].fits

    def tuning(self, base: Base) -> dict[float, dict[int, tuple[float, float]]]:
        found: dict[float, dict[int, tuple[float, float]]] = defaultdict(dict)
        protocol = self.suite.protocol
        for rate, seed in itertools.product(protocol.all_rates, protocol.tuning_seeds):
            if (base.run("tuning", rate, seed).run_id) in self.beyond:
                continue
            if (one := self.measured(base.run("tuning", rate, seed))) is not None:
                found[rate][seed] = one
        return found

    def next_tuning(self, base: Base) -> list[tuple[float, int]]:
        """The tuning runs to do next; none once the rate is chosen."""
        found = self.tuning(base)
        if missing := next_runs(self.suite.protocol, found):
            return missing
        first, second = self.suite.protocol.tuning_seeds
        fits, grid = self.fits(base.task), self.suite.protocol.all_rates
        errors = {r: {s: e for s, (e, _) in of.items()} for r, of in found.items()}
        # May learn, by the seeds there are.
        hopeful = [r for r in grid if r in errors and max(errors[r].values()) <= fits]
        if not hopeful:
            return []
        # The best one, and every one as near to it, on both seeds.
        best = min(hopeful, key=lambda r: (sum(errors[r].values()) / len(errors[r]), r))
        if len(errors[best]) < 2:
            return [(best, seed) for seed in (first, second) if seed not in errors[best]]
        limit = sum(errors[best].values()) / 2 + NOISE
        near = [r for r in hopeful if sum(errors[r].values()) / len(errors[r]) <= limit]
        for rate in near:
            if len(errors[rate]) < 2:
                return [(rate, seed) for seed in (first, second) if seed not in errors[rate]]
        return []

    def before_failure(
        self, rate: float, errors: dict[float, dict[int, float]], fits: float
    ) -> bool:
        """Whether the next larger rate that was tried does not learn."""
        larger = [r for r in errors if r > rate]
        return bool(larger) and max(errors[min(larger)].values()) > fits

    def rate(self, base: Base) -> float | None:
        """The chosen rate of v2.1; None: tuning is not over, or all failed."""
        if self.next_tuning(base):
            return None
        found, fits = self.tuning(base), self.fits(base.task)
        errors = {r: {s: e for s, (e, _) in of.items()} for r, of in found.items()}
        learns = {
            r: sum(e.values()) / 2
            for r, e in errors.items()
            if len(e) == 2 and max(e.values()) <= fits
        }
        if not learns:
            return self.rate_v2(base)
        near = sorted(r for r, mean in learns.items() if mean <= min(learns.values()) + NOISE)
        safe = [r for r in near if not self.before_failure(r, errors, fits)]
        smaller = sorted(r for r in learns if r < near[0])
        return (safe or smaller[-1:] or near)[0]

    def rate_v2(self, base: Base) -> float | None:
        """The rate that v2 chooses."""
        return chosen_rate({rate: [*of.values()] for rate, of in self.tuning(base).items()})

    # The units of work, each a number of runs that may be trained now.

    def tune(self, task: str, entry: str) -> Iterator[SuiteRun]:
        if (base := self.base(task, entry)) is not None:
            while missing := self.next_tuning(base):
                for rate, seed in missing:
                    yield base.run("tuning", rate, seed)

    def score(
        self, cells: list[tuple[str, str]], seeds: range | list[int], times: int = 1, like: str = ""
    ) -> Iterator[SuiteRun]:
        """Seed by seed over all cells. ``like``: the column whose rate they have."""
        bases = [(b, self._rate_like(b, like)) for c in cells if (b := self.base(*c)) is not None]
        for seed in seeds:
            for base, rate in bases:
                if rate is not None:
                    name = "score" if times == 1 else f"steps_x{times}"
                    yield base.run(name, rate, seed, times * base.steps)

    def _rate_like(self, base: Base, like: str) -> float | None:
        if like:
            other = self.base(base.task, f"{self.suite.split(base.entry)[0]}+{like}")
            return None if other is None else self.rate(other)
        return self.rate(base)

    def learned(self, task: str, entry: str, times: int, seeds: int) -> bool:
        """Whether at least half of the first seeds learn the task at so many times the steps."""
        base = self.base(task, entry)
        rate = None if base is None else self.rate(base)
        if base is None or rate is None:
            return False
        errors = [self.measured(base.run("", rate, s, times * base.steps)) for s in range(seeds)]
        return sum(e is not None and e[0] <= self.fits(task) for e in errors) * 2 >= seeds

    def work(self) -> Iterator[tuple[str, Iterator[SuiteRun]]]:
        """All of it, the most informative first."""
        # a: flip-flop, the two of which the page says most; then b, c and h, what claims are about.
        yield from self.scored("a", [("flipflop", e) for e in both(["rope", "fire"])], range(8))
        yield from self.places("copy_unique", ["alibi"], ["k", "q", "v"])
        yield from self.longer([("copy_unique", "none"), ("recall", "none")])
        yield from self.places("copy_unique", ["alibi"], ["2"])
        yield from self.wide_gap(["fire"])
        yield from self.places("copy_unique", ["rope"], ["k"])
        yield from self.places("recall", ["alibi"], ["k", "q", "v", "2"])
        # All of flip-flop, and the cells whose rate was a cliff.
        yield from self.scored("a", [("flipflop", e) for e in both(TEN)], range(8))
        yield from self.scored("a", CLIFFS, range(8))
        yield from self.longer(NOT_LEARNED)
        yield from self.places("copy_unique")
        yield from self.wide_gap(WIDE_GAP)
        yield from self.places("recall")
        yield from self.longer(NOT_LEARNED_CONTROLS)
        yield from self.places("brackets")
        yield from self.scored("a", [("flipflop", e) for e in both(OTHERS)], range(8))
        # d: seeds 0 to 23 on copying and recall.
        for task in ("copy_unique", "recall"):
            yield from self.scored("d", [(task, e) for e in both(TEN)], range(24))
        # e: text.
        yield from self.scored("e", [("text", e) for e in both([*TEN, *OTHERS])], range(3))
        # f: the larger model.
        for task in ("copy_unique", "recall", "flipflop", "brackets"):
            cells = [(task, f"{e}+{c}") for e in SIX for c in ("large", "large_conv")]
            yield from self.scored("f", cells, range(5))
        # g: the other cells whose rate the rule changes.
        for task in REST:
            yield from self.scored("g", [(task, e) for e in both([*TEN, *OTHERS])], range(8))

    def scored(
        self, part: str, cells: list[tuple[str, str]], seeds: range
    ) -> Iterator[tuple[str, Iterator[SuiteRun]]]:
        """Tuning and score of some cells."""
        for cell in cells:
            yield f"{part} tuning {cell[0]}", self.tune(*cell)
        yield f"{part} score {cells[0][0]}", self.score(cells, seeds)

    def longer(self, cells: list[tuple[str, str]]) -> Iterator[tuple[str, Iterator[SuiteRun]]]:
        """b: twice the steps; the cells that are learned then on five more seeds."""
        for cell in cells:
            yield "b tuning", self.tune(*cell)
        yield "b steps", self.score(cells, range(3), times=2)
        more = [cell for cell in cells if self.learned(*cell, times=2, seeds=3)]
        yield "b steps, learned then", self.score(more, range(3, 8), times=2)

    def places(
        self, task: str, entries: list[str] = FIVE, at: list[str] = PLACES
    ) -> Iterator[tuple[str, Iterator[SuiteRun]]]:
        """c: the convolution at other places and of other widths, at the rate of conv."""
        for entry in entries:
            yield f"c tuning {task}", self.tune(task, f"{entry}+conv")
        cells = [(task, f"{e}+conv_{place}") for e in entries for place in at]
        yield f"c places {task}", self.score(cells, range(8), like="conv")
        yield from self.scored("c", [(task, f"{entry}+conv") for entry in entries], range(8))
        yield f"c retuning {task}", self.retuned(cells)

    def retuned(self, cells: list[tuple[str, str]]) -> Iterator[SuiteRun]:
        """Of places that fewer than half of the seeds learn: half and twice the rate on the tuning
        seeds, and the score at the better of these if that learns."""
        grid, seeds = self.suite.protocol.all_rates, self.suite.protocol.tuning_seeds
        for cell in cells:
            base = self.base(*cell)
            rate = None if base is None else self._rate_like(base, "conv")
            if base is None or rate is None:
                continue
            errors = [self.measured(base.run("", rate, seed)) for seed in range(8)]
            if None in errors or sum(e[0] <= self.fits(cell[0]) for e in errors if e) * 2 >= 8:
                continue
            at = grid.index(rate)
            others = [grid[i] for i in (at - 1, at + 1) if 0 <= i < len(grid)]
            yield from (base.run("tuning", other, seed) for other in others for seed in seeds)
            tried = {o: [self.measured(base.run("", o, seed)) for seed in seeds] for o in others}
            known = {o: [e[0] for e in of if e] for o, of in tried.items() if None not in of}
            learns = {o: sum(of) for o, of in known.items() if max(of) <= self.fits(cell[0])}
            if learns:
                best = min(learns, key=lambda o: (learns[o], o))
                yield from (base.run("score", best, seed) for seed in range(8))

    def wide_gap(self, entries: list[str]) -> Iterator[tuple[str, Iterator[SuiteRun]]]:
        """h: whether the convolution harms at wide gaps, on fresh seeds."""
        yield from self.scored("h", [("brackets", e) for e in both(entries)], range(8, 16))

    def cost(self, run: SuiteRun) -> float:
        base, column = self.suite.split(run.entry)
        known = (self.seconds.get((run.task, e)) for e in (run.entry, base, "rope"))
        step, end = next(one for one in known if one)
        if (run.task, run.entry) not in self.seconds:
            step *= self.suite.columns[column].cost
        return step * run.steps + end


def main() -> None:
    options = dict(word.split("=", 1) for word in sys.argv[1:])
    runs_dir, until = options["runs_dir"], float(options.get("until", "inf"))
    here = Runs(runs_dir, options.get("known"))
    if "list" in options:
        listed(here, Path(runs_dir))
        return
    log = Path(runs_dir) / "cpu.csv"
    log.parent.mkdir(exist_ok=True)
    for unit, runs in here.work():
        for run in runs:
            if here.measured(run) is not None:
                continue
            if time.time() >= until:
                print("the time is over", flush=True)
                return
            before, began = resource.getrusage(resource.RUSAGE_SELF), time.time()
            state = "finished"
            try:
                train(*run.words)
            except PeLabError as error:
                state = "failed"
                print(f"{run}: {error}", flush=True)
                here.gave_up.add(run.run_id)
            after = resource.getrusage(resource.RUSAGE_SELF)
            used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            row = (
                unit,
                run.task,
                run.entry,
                run.phase,
                run.lr,
                run.seed,
                run.steps,
                run.run_id,
                state,
            )
            with log.open("a", newline="") as file:
                csv.writer(file).writerow([*row, round(used, 1), round(time.time() - began, 1)])
            error = here.measured(run)
            print(
                time.strftime("%H:%M:%S"),
                unit,
                run,
                state,
                error and error[0],
                f"{used:.0f} s",
                flush=True,
            )
    print("nothing is left", flush=True)


def listed(here: Runs, folder: Path) -> None:
    """Write jobs.csv, every run that can be named now, and print counts and hours of each unit."""
    done, left, hours = defaultdict(int), defaultdict(int), defaultdict(float)
    names: dict[str, None] = {}
    with (folder / "jobs.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["unit", "task", "entry", "phase", "lr", "seed", "steps", "run_id", "state"])
        for unit, runs in here.work():
            names[unit] = None
            seen: set[str] = set()
            for run in runs:
                if run.run_id in seen:  # tuning waits for it
                    break
                seen.add(run.run_id)
                over = here.measured(run) is not None
                state = "shipped" if run.run_id in here.shipped else "done" if over else "left"
                table.writerow(
                    [
                        unit,
                        run.task,
                        run.entry,
                        run.phase,
                        run.lr,
                        run.seed,
                        run.steps,
                        run.run_id,
                        state,
                    ]
                )
                done[unit] += state == "done"
                left[unit] += state == "left"
                hours[unit] += here.cost(run) / 3600 * (state == "left")
    for name in names:
        print(f"{name:32} done {done[name]:5} left {left[name]:5} {hours[name]:6.2f} core-hours")
    print(
        f"{'':32} done {sum(done.values()):5} left {sum(left.values()):5} {sum(hours.values()):6.2f}"
    )


if __name__ == "__main__":
    main()
