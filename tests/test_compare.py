"""``pe-lab compare``: published numbers beside ours, and paired tests over shared seeds."""

import csv
import io
import itertools
import json
import math
import re
import statistics
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from made import errors_of, made, unfinished
from program import ROOT, Here

from pe_lab.common.errors import UsageError
from pe_lab.results.frame import read_runs
from pe_lab.results.paired import holm, paired, seed_by_seed
from pe_lab.results.published import Published, published
from pe_lab.results.vs_published import compared

# Importing scipy takes longer than a deadline.
quick = settings(deadline=None)
THEIRS = Published(
    source="S", where="table 1", task="flipflop", pe="rope", size={}, setting={"task.length": 64},
    split="sparse", metric="error", printed="20.0", error=0.2, low=0.1995, high=0.2005, seeds=3,
    reading=None, recipe="flipflop",
)  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs").mkdir()


def test_the_published_numbers_are_those_of_the_sources() -> None:
    numbers = published()
    found = {(n.where, n.pe, *n.size.values(), n.split): (n.error, n.printed) for n in numbers}
    assert found["arXiv 2405.18719, tables 2 and 7", "cope", 128, 4, 4, "sparse"] == (0.332, "33.2")
    assert found["arXiv 2405.18719, section 5.3", "cope", 1, "shorter"] == (0.04, "4.0")
    rambaud = found["selective copy, 128 letters and 128 blanks", "rope", "dense"]
    assert rambaud == (0.52, "52 (accuracy .48)")
    assert found["arXiv 2505.16381, one layer", "path", "sparse"] == (1e-6, "0.0001")
    assert len(found) == len(numbers)
    assert all(n.low <= n.error <= n.high and n.low >= 0 and n.high <= 1 for n in numbers)
    # 6.8 stands for 6.75 to 6.85, 0.1 for 0.05 to 0.15, 0 for 0 to 0.5.
    (row,) = [n for n in numbers if n.printed == "6.8"]
    assert (row.low, row.high) == pytest.approx((0.0675, 0.0685))
    path = next(n for n in numbers if n.pe == "path" and n.printed == "0")
    assert (path.low, path.high) == (0, 0.005)


def test_every_published_number_could_be_run() -> None:
    for number in published():
        if number.recipe is None:
            assert number.task == "text", "these are pe-lab extrapolate's"
            continue
        assert (ROOT / "conf/pe" / f"{number.pe}.yaml").is_file()
        task = yaml.safe_load((ROOT / "conf/task" / f"{number.task}.yaml").read_text())
        assert number.split in ("in_domain", *task["splits"])
        for size in ("paper", "small"):
            recipe = yaml.safe_load(
                (ROOT / "conf/experiment" / size / f"{number.recipe}.yaml").read_text()
            )
            assert number.pe in str(recipe)
        for key in number.setting:
            group, *names = key.split(".")
            files = [*(ROOT / "conf" / group).glob("*.yaml")]
            section = task if group == "task" else yaml.safe_load(files[0].read_text())
            for name in names:
                assert name in section, key
                section = section[name]


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([0.19, 0.2, 0.22], "agrees"),
        # 0.25 +- 2.484 * 0.01 is 0.225 to 0.275.
        ([0.24, 0.25, 0.26], "ours higher"),
        ([0.14, 0.15, 0.16], "ours lower"),
        ([0.2], "one seed: no verdict"),
        # No spread over seeds: the Wilson interval, here the error +- 0.01, decides.
        ([0.209, 0.209], "agrees"),
        ([0.2106, 0.2106], "ours higher"),
        # As rounded: 20.0 may be 20.05.
        ([0.2104, 0.2104], "agrees"),
        ([0.1894, 0.1894], "ours lower"),
    ],
)
def test_verdicts(values: list[float], verdict: str) -> None:
    errors_of("rope", values)
    (row,) = compared(read_runs(), [THEIRS]).rows(named=True)
    assert row["verdict"] == verdict
    assert (row["n"], row["differs"]) == (len(values), "")
    assert row["ours"] == pytest.approx(statistics.mean(values))


def test_what_differs_is_computed_and_named() -> None:
    errors_of("rope", [0.2, 0.2], **{"task.length": 32, "train.lr": 3e-4})
    told = Published(**{**vars(THEIRS), "setting": {
        "task.length": 64, "train.lr": 0.0003, "train.schedule": "linear", "task.block": 5,
        "model.tied_embeddings": True,
    }})  # fmt: skip
    (row,) = compared(read_runs(), [told]).rows(named=True)
    assert row["differs"] == (
        "task.length 32 for 64, train.schedule cosine for linear, task.block null for 5, "
        "model.tied_embeddings false for true"
    )
    assert row["verdict"] == "other protocol, agrees"


def test_the_nearest_setting_stands_beside_the_nearest_size() -> None:
    def size(width: int, layers: int) -> Published:
        keys = {"model.d_model": width, "model.n_layers": layers}
        return Published(**{**vars(THEIRS), "size": keys, "setting": {"task.length": 64, **keys}})

    numbers = [size(256, 4), size(128, 2), size(128, 4)]
    errors_of("rope", [0.1, 0.1])  # d 64, 2 layers: nearest to 128, 2
    errors_of("rope", [0.3], **{"model.d_model": 100})  # nearer to it
    errors_of("rope", [0.4], **{"model.d_model": 128, "model.n_layers": 4, "task.length": 9})
    found = compared(read_runs(), numbers).select("ours", "differs", "verdict").rows()
    assert found[0] == (None, "", "not run")
    assert found[1][:2] == (0.3, "model.d_model 100 for 128")
    assert found[2][:2] == (0.4, "task.length 9 for 64")
    errors_of("rope", [0.5], **{"model.d_model": 128})
    assert compared(read_runs(), numbers)["ours"].to_list() == [None, 0.5, 0.4]


def test_another_metric_and_a_split_that_was_too_long() -> None:
    made("rope", errors={"in_domain": 0.1, "sparse": None})
    in_domain = Published(**{**vars(THEIRS), "split": "in_domain", "metric": "error_seq"})
    rows = compared(read_runs(), [THEIRS, in_domain]).select("ours", "verdict").rows()
    assert rows == [(None, "not run"), (0.2, "one seed: no verdict")]


def test_the_tables_and_what_is_not_run(here: Here) -> None:
    errors_of("cope", [0.0, 0.1])
    unfinished("failed", "rope")
    out = here("compare", "task=flipflop", "pe=cope,rope,path").out
    line = next(line for line in out.splitlines() if "other protocol" in line and "cope" in line)
    assert re.search(r"d_model=128 n_layers=2 n_heads=4 .* 0.03 .* 0.00 .* 3, 2", line)
    assert "Protocol, ours for theirs: task.length 64 for 512, train.steps 400 for 10000" in out
    assert "Assumed: the source has one number out of domain" in out
    assert "pe-lab -m experiment=paper/flipflop runs the published setting" in out
    assert "failed at step 3 of 9: what went wrong" in out
    assert "counting" not in out
    assert "Yang 2025" in out
    assert "not run" in out
    everything = here("compare").out
    assert "pe-lab extrapolate task=text sets them beside ours" in " ".join(everything.split())
    assert "rerope" not in everything
    assert "not run" not in everything, "what was not run is a line, unless asked for"
    assert "rerope" in here("compare", "task=text").out
    rows = list(csv.DictReader(io.StringIO(here("compare", "format=csv").out)))
    assert len(rows) == len(published())
    beside = [row for row in rows if row["ours"]]
    assert {row["pe"] for row in beside} == {"cope"}
    content = json.loads(here("compare", "format=json", "pe=cope").out)
    assert {row["pe"] for row in content["rows"]} == {"cope"}
    assert content["unfinished"] == []
    assert r"\begin{tabular}" in here("compare", "format=latex").out
    assert "| cope |" in here("compare", "format=markdown").out
    assert "no published number is known with pe=alibi" in here("compare", "pe=alibi").out


def test_nothing_of_ours(here: Here) -> None:
    done = here("compare")
    assert done.status == 0, done.err
    assert "other protocol" not in done.out
    assert "pe-lab -m experiment=paper/counting" in done.out


# By hand: differences -1, -2, -3 (in tenths): mean -0.2, sd 0.1, t = -2 sqrt 3, df 2.
A, B = [0.1, 0.2, 0.3], [0.2, 0.4, 0.6]


def test_paired_numbers_by_hand_and_by_scipy() -> None:
    from scipy import stats

    found = seed_by_seed(A, B)
    assert found["difference"] == pytest.approx(-0.2)
    half = 4.302653 * 0.1 / math.sqrt(3)
    assert (found["low"], found["high"]) == pytest.approx((-0.2 - half, -0.2 + half))
    # P(|T_2| > t) = 1 - t / sqrt(2 + t^2).
    t = 2 * math.sqrt(3)
    assert found["p_t"] == pytest.approx(1 - t / math.sqrt(2 + t * t))
    assert found["p_t"] == pytest.approx(stats.ttest_rel(A, B).pvalue)
    # All signs alike: the farthest of the 8 ways, and its mirror.
    assert (found["p_flips"], found["p_least"]) == (0.25, 0.25)


@quick
@given(st.lists(st.tuples(*[st.integers(0, 50)] * 2), min_size=2, max_size=7))
def test_sign_flips_are_counted(pairs: list[tuple[int, int]]) -> None:
    differences = [x - y for x, y in pairs]
    found = seed_by_seed([x / 50 for x, _ in pairs], [y / 50 for _, y in pairs])
    sums = [
        sum(sign * d for sign, d in zip(signs, differences, strict=True))
        for signs in itertools.product((1, -1), repeat=len(pairs))
    ]
    seen = sum(differences)
    tail = min(sum(s >= seen for s in sums), sum(s <= seen for s in sums)) / len(sums)
    assert found["p_flips"] == pytest.approx(min(1.0, 2 * tail))
    assert found["low"] - 1e-12 <= found["difference"] <= found["high"] + 1e-12
    assert (found["p_t"] is None) == (len(set(differences)) == 1)


def test_many_seeds_are_drawn_at_random() -> None:
    found = seed_by_seed([0.1 + n / 1000 for n in range(20)], [0.2] * 20)
    assert 0 < found["p_flips"] < 0.001
    assert (
        found["p_flips"] == seed_by_seed([0.1 + n / 1000 for n in range(20)], [0.2] * 20)["p_flips"]
    )


def test_holm() -> None:
    # By hand: sorted 0.01, 0.03, 0.04 times 3, 2, 1, made to rise.
    assert holm([0.04, 0.01, None, 0.03]) == pytest.approx([0.06, 0.03, None, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([None]) == [None]


@given(st.lists(st.one_of(st.none(), st.floats(0, 1, allow_subnormal=False))))
def test_holm_never_lowers_and_keeps_the_order(ps: list[float | None]) -> None:
    corrected = holm(ps)
    both = [(p, c) for p, c in zip(ps, corrected, strict=True) if p is not None]
    assert all(p <= c <= 1 for p, c in both if c is not None)
    assert [c for _, c in sorted(both)] == sorted(c for _, c in both)
    assert [p is None for p in ps] == [c is None for c in corrected]


def test_paired_over_the_shared_seeds() -> None:
    errors_of("cope", [*A, 0.9])
    errors_of("rope", B)
    made("rope", 7)
    tests = paired(read_runs(), "cope", "rope")
    assert tests["split"].to_list() == ["in_domain", "sparse"]
    flat, sparse = tests.rows(named=True)
    assert (sparse["n"], sparse["seeds"]) == (3, [0, 1, 2])
    assert sparse["mean_a"] == pytest.approx(0.2)
    assert sparse["p_t_holm"] == sparse["p_t"] == pytest.approx(seed_by_seed(A, B)["p_t"])
    assert sparse["p_flips_holm"] == 0.5
    # No difference at any seed: nothing for a t-test.
    assert (flat["difference"], flat["p_t"], flat["p_t_holm"], flat["p_flips"]) == (
        0,
        None,
        None,
        1,
    )
    turned = paired(read_runs(), "rope", "cope").rows(named=True)[1]
    assert turned["difference"] == pytest.approx(-sparse["difference"])


def test_a_split_that_one_of_them_lacks_is_told(here: Here) -> None:
    for seed in range(3):
        long, dense = None if seed else 0.1, 0.2 + seed / 10
        made("cope", seed, errors={"in_domain": 0.1, "dense": dense, "long": long})
        made("rope", seed, errors={"in_domain": 0.2, "dense": None, "long": 0.3})
    tests = {row["split"]: row for row in paired(read_runs(), "cope", "rope").rows(named=True)}
    assert (tests["dense"]["n"], tests["dense"]["seeds"], tests["dense"]["p_t"]) == (0, [], None)
    assert (tests["long"]["n"], tests["long"]["seeds"]) == (1, [0])
    assert tests["long"]["difference"] == pytest.approx(-0.2)
    # With one test left, there is nothing to correct.
    assert tests["in_domain"]["p_flips"] == tests["in_domain"]["p_flips_holm"] == 0.25
    out = here("compare", "a=cope", "b=rope").out
    assert re.search(r"dense +│ +n/a │ +n/a │ +n/a", out)
    assert "long n=1" in out
    assert "Seeds 0,1,2" in out


def test_the_encodings_own_rate_is_no_difference() -> None:
    errors_of("cope", A)
    errors_of("t5", B, **{"train.lr": 6e-3})  # conf/preset/rate/flipflop_t5.yaml
    assert len(paired(read_runs(), "cope", "t5")) == 2
    errors_of("alibi", B, **{"train.lr": 6e-3})
    with pytest.raises(UsageError, match=r"differ in train\.lr \(preset; 0\.006\)"):
        paired(read_runs(), "cope", "alibi")


@pytest.mark.parametrize(
    ("runs", "told"),
    [
        ({}, "no finished run of pe=cope"),
        ({"cope": {}}, "no finished run of pe=rope"),
        ({"cope": {}, "rope": {"train.steps": 9}}, "the nearest differ in train.steps (400; 9)"),
        ({"cope": {}, "rope": {"seed": 3}}, "share no seed in equal settings: cope has 0, "),
    ],
)
def test_what_cannot_be_paired_is_one_sentence(
    here: Here, runs: dict[str, dict[str, int]], told: str
) -> None:
    for pe, changes in runs.items():
        made(pe, **{"seed": 0, **changes})
    done = here("compare", "a=cope", "b=rope")
    assert (done.status, done.out, done.err.count("\n")) == (2, "", 1)
    assert told in done.err


def test_several_settings_of_one_encoding_want_a_choice(here: Here) -> None:
    for npos in (8, 16):
        errors_of("cope", A, **{"pe.npos": npos})
    errors_of("rope", B)
    done = here("compare", "a=cope", "b=rope")
    assert done.status == 2
    (where,) = re.findall(r"where='(.*)'", done.err)
    assert "pe=cope has 2 settings here that differ in pe.npos" in done.err
    assert here("compare", "a=cope", "b=rope", f"where={where}").status == 0


def test_every_pair_of_settings_has_a_table(here: Here) -> None:
    for lr in (0.01, 0.02):
        for pe in ("cope", "rope"):
            errors_of(pe, A if pe == "cope" else B, **{"train.lr": lr})
    out = here("compare", "a=cope", "b=rope").out
    titles = [line.strip() for line in out.splitlines() if "seed by seed" in line]
    assert [title.rpartition(", ")[2] for title in titles] == ["train.lr=0.01", "train.lr=0.02"]


def test_the_paired_table(here: Here) -> None:
    errors_of("cope", A)
    errors_of("rope", B)
    out = here("compare", "a=cope", "b=rope").out
    assert "flipflop: error in %, cope against rope, seed by seed" in out
    assert re.search(r"sparse +│ 20.00 │ 40.00 │ -20.00 \(-44.84..\+4.84\) │ 0.0742 │ 0.0742", out)
    assert re.search(r"in_domain │ +0.00 │ +0.00 │ +\+0.00 at every seed │ +- │ +- │ +1 │ +1 ", out)
    assert "With 3 seeds sign flips cannot go below p = 0.25" in out
    both = here("compare", "pe=cope,rope").out
    assert "seed by seed" in both
    assert "Golovneva 2024" in both
    rows = list(csv.DictReader(io.StringIO(here("compare", "a=cope", "b=rope", "format=csv").out)))
    assert [row["seeds"] for row in rows] == ["0 1 2", "0 1 2"]
    content = json.loads(here("compare", "pe=cope,rope", "format=json").out)
    assert content["paired"][1]["p_flips"] == 0.25


def test_one_seed_is_no_test(here: Here) -> None:
    errors_of("cope", [0.1])
    errors_of("rope", [0.3])
    row = paired(read_runs(), "cope", "rope").row(1, named=True)
    assert (row["n"], row["p_t"], row["p_flips"], row["low"]) == (1, None, None, None)
    assert row["difference"] == pytest.approx(-0.2)
    assert "One seed: nothing can be tested" in here("compare", "a=cope", "b=rope").out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["a=cope"], "a and b go together"),
        (["a=cope", "b=cope"], "the same encoding"),
        (["format=pdf"], "format=pdf"),
        (["taks=flipflop"], "did you mean task"),
        (["runs_dir=nowhere"], "runs_dir=nowhere is no folder"),
        (["where=pe"], "character 3"),
    ],
)
def test_a_wrong_word_is_one_sentence(here: Here, words: list[str], told: str) -> None:
    made("rope")
    done = here("compare", *words)
    assert (done.status, done.out, done.err.count("\n")) == (2, "", 1)
    assert told in done.err
