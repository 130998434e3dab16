"""What docs/suite-v2_1.md and leaderboard.md count and test beyond the tables of ``pe-lab``, in
their words: above all what the rule for the learning rate changes.

    python -m examples.suite_tests
"""

from collections.abc import Iterator
from dataclasses import replace

import polars as pl
from scipy.stats import wilcoxon

from docs.leaderboard import ENTRIES, OTHERS, PLAN, decide, shipped
from pe_lab.results.statistics import LEVEL, holm
from pe_lab.suite.scores import RANKED, Scores, compare_with_text, fisher, spearman
from pe_lab.suite.tables import compare_columns

V2, V2_1, CELL = shipped("v2"), shipped(), ["task", "entry"]
COPY_RECALL = "copy_unique", "recall"
SHARE, LEARNED = pl.col("k") / pl.col("n"), 2 * pl.col("learned") >= pl.col("n")
# PaTH with and without its paper's convolution counts as one encoding.
ENCODING = pl.col("entry").str.split("+").list.first().replace("path_published", "path")
# Those with all tasks in v2.
IN_FULL = ENCODING.is_in([*V2.cells.filter(task="counting").select(ENCODING).to_series()])


def compare_rates() -> pl.DataFrame:
    """Return the cells that have another ``lr`` in v2.1 (``lr_new``) and at least five seeds there:
    the ``share`` of seeds that generalise and ``share_new``, their ``change``, and ``paired``, the
    change over the seeds that both suites have."""
    sides = []
    for scores, other in ((V2, V2_1), (V2_1, V2)):
        rates = scores.cells.group_by(CELL).agg(pl.first("lr"))
        shares = scores.success().select(*CELL, "n", share=SHARE)
        in_both = scores.rows.join(other.rows.filter("counts"), [*CELL, "seed"], how="semi")
        paired = replace(scores, rows=in_both).success().select(*CELL, paired=SHARE)
        sides.append(shares.join(rates, CELL).join(paired, CELL))
    cells = sides[0].join(sides[1], CELL, suffix="_new")
    return cells.filter(pl.col("lr") != pl.col("lr_new"), pl.col("n_new") >= 5).with_columns(
        encoding=ENCODING,
        change=pl.col("share_new") - pl.col("share"),
        paired=pl.col("paired_new") - pl.col("paired"),
    )


def say_which_rates_fail() -> Iterator[str]:
    """Yield in how many cells v2's rate fits both tuning seeds and fails on others."""
    runs = V2.rows.filter(pl.col("lr") == pl.col("chosen"), split="in_domain")
    fits = (pl.col("error").fill_null(1) <= pl.col("threshold")).cast(pl.Float64)
    tuned, scored = (fits.filter(pl.col("phase") == phase) for phase in ("tuning", "score"))
    cells = runs.group_by(*CELL, "chosen").agg(tuned=tuned.sum(), scored=scored.mean())
    failed = cells.filter(tuned=2).filter(pl.col("scored") < 0.8)
    yield f"{len(failed)} chosen rates fit both tuning seeds and under 80 % of the scored ones"
    new = V2_1.rows.select(*CELL, new="chosen").unique()
    changed = failed.join(new, CELL).filter(pl.col("new") != pl.col("chosen"))
    yield f"changes the rate of {len(changed)} of these {len(failed)} cells"


def correct_p_values(ps: list[float]) -> list[float]:
    """Return p-values with Holm's correction, none of which is missing."""
    return [p for p in holm(ps) if p is not None]


def summarize_changes(cells: pl.DataFrame, change: str = "change") -> tuple[int, int, int, float]:
    """Return how many encodings have a mean change below, at and above zero, and the p-value of
    Wilcoxon's signed-rank test."""
    # Rounded: a mean of equal shares can differ from zero by 1e-17.
    means = cells.group_by("encoding").agg(pl.mean(change).round(12))[change]
    # Without the zeros, which it does not rank, scipy's p-value is exact.
    p = float(wilcoxon(means.filter(means != 0).to_numpy()).pvalue)
    return int((means < 0).sum()), int((means == 0).sum()), int((means > 0).sum()), p


def say_what_the_rule_changes() -> Iterator[str]:
    """Yield what section "What the rule changes" says."""
    cells = compare_rates()
    yield f"the {len(cells)} cells that have another rate"
    old, new = 100 * cells["share"].to_numpy().mean(), 100 * cells["share_new"].to_numpy().mean()
    yield f"{old:.0f} % at v2's rates and {new:.0f} % at the rule's"
    large, others = cells.filter(pl.col("change").abs() >= 0.25), cells.filter(~IN_FULL)
    yield f"In {len(large)} cells the share changes by a quarter or more"
    risen = large.filter(pl.col("change") > 0).group_by("task").len().sort("task")
    of_task = ", ".join(f"{task} {n}" for task, n in risen.iter_rows())
    down, up = (large["change"] < 0).sum(), (large["change"] > 0).sum()
    yield f"It falls in {down} and rises in {up} ({of_task})"
    for task, entry, rate in large.select(*CELL, "lr").sort(CELL).iter_rows():
        yield f"| {task} | {entry} | {rate:g} |"
    full = cells.filter(IN_FULL)
    without, gaps = full.filter(pl.col("task") != "brackets"), full.filter(task="brackets")
    down, same, up, p = summarize_changes(without)
    yield f"Without brackets {down} of their mean changes are negative, {same} are zero and {up}"
    tests = p, summarize_changes(full)[3], summarize_changes(gaps)[3]
    yield "has p = {:.1g}; over all tasks p = {:.1g}, on brackets alone p = {:.1g}".format(*tests)
    down, same, up, p = summarize_changes(others, "paired")
    yield f"The {others['encoding'].n_unique()} other encodings"
    yield f"{down} of their mean changes are negative, {same} zero and {up} positive (p = {p:.1g})"
    pairs = compare_columns(V2_1)
    significant = (pairs["p_holm"] <= LEVEL).sum()
    yield f"{significant} significant pairs, with Holm's correction over {len(pairs)}"


def say_what_else_was_tested() -> Iterator[str]:
    """Yield what other sections say of tests beyond the claims."""
    counts = {tuple(row[:3]): row[3:] for row in V2_1.cells.select(*CELL, "split", "k", "n").rows()}

    def compare_cells(a: str, b: str, task: str = "brackets", split: str = "wide_gap") -> float:
        return fisher(counts[task, a, split], counts[task, b, split])

    tested = [compare_cells(entry, f"{entry}+conv") for entry in ("fire", "alibi", "cope", "rope")]
    yield "p = {:.1g}, {:.1g}, {:.1g} and {:.1g} after Holm's correction".format(
        *correct_p_values(tested)
    )
    p = compare_cells("fire+large", "fire+large_conv", "copy_unique", "long_x3")
    yield f"is not significant (p = {p:.2g})"
    columns = [f"conv_{place}" for place in ("k", "kv", "2", "v", "4", "q", "embedding")]
    pairs = [(entry, f"{entry}+{of}") for entry in ("alibi", "fire", "rope") for of in columns]
    ps = correct_p_values([compare_cells(*pair) for pair in pairs])
    yield f"Of {len(ps)} tests of a place or width of these three against no convolution"
    found = {name: p for (_, name), p in zip(pairs, ps, strict=True) if p <= LEVEL}
    yield f"{len(found)} are significant after Holm's correction"
    yield from (f"`{name}` (p = {p:.1g})" for name, p in found.items())
    longer = V2_1.success("steps_x2").join(V2.success().filter(~LEARNED), CELL, how="semi")
    longer = longer.filter(pl.col("task") != "selective_copy")
    learned = f"{len(longer.filter(LEARNED))} of {len(longer)} cells"
    yield f"makes {learned} learned that few seeds of v2 learn"


def say_what_is_in_claims() -> Iterator[str]:
    """Yield what section "Claims" says of all claims, and of one mean for each encoding."""
    entries = V2_1.cells.filter(ENTRIES["planned"])
    planned = compare_with_text(Scores(V2.suite, V2.rows, entries), 12).filter(split="long_x8")
    claims = decide("v2_1", PLAN).group_by("claim").agg(pl.max("p"))
    short, longer = (
        [of.filter(entry=entry, task=task).select("k", "n").row(0) for task in COPY_RECALL]
        for of, entry in ((V2.success(), "none+conv"), (V2_1.success("steps_x2"), "none"))
    )
    p = max(fisher(a, b, "greater") for a, b in zip(short, longer, strict=True))
    yield f"generalises on both in {short[0][0]} of {short[0][1]} (p = {p:.1g} each)"
    ps = sorted(correct_p_values([*claims["p"], p, *planned["p"]]))
    texts = [f"{p:.2g}" for p in ps if p <= LEVEL]
    yield f"Holm's correction over all {len(ps)} claims, {len(texts)} are significant"
    yield f"The last {texts.count(texts[-1])} have corrected p-values of {texts[-1]}"
    tasks = V2_1.success().filter(pl.col("task").is_in(RANKED)).group_by("entry")
    shares = tasks.agg(share=SHARE.mean(), tasks=pl.len()).filter(tasks=len(RANKED))
    text = V2_1.cells.filter(task="text", split="long_x8").drop_nulls("mean").join(shares, "entry")
    means = text.group_by(entry=ENCODING).agg(pl.mean("share", "mean"))
    for of in (means, means.filter(OTHERS)):
        rho, _, _, p = spearman(of["share"].to_numpy(), of["mean"].to_numpy())
        yield f"{rho:.2f} over {len(of)} (p = {p:.1g})"


SECTIONS = (
    say_which_rates_fail,
    say_what_is_in_claims,
    say_what_the_rule_changes,
    say_what_else_was_tested,
)

if __name__ == "__main__":
    for say in SECTIONS:
        print(*say(), sep="\n")
