"""The report: the numbers on its page, its sections, and which files it writes."""

import json
import re
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from html_page import Page
from made import made
from program import Here
from report_runs import ENCODINGS, EVIL, SEEDS, error_of, page, runs, text
from scipy import stats

from pe_lab.cli.report import MARK
from pe_lab.report.bands import bands
from pe_lab.report.pictures import heat_map
from pe_lab.report.sections import sections
from pe_lab.results.frame import by_split, read_runs

__all__ = ["page", "runs", "text"]


@pytest.fixture(scope="module")
def flipflop(page: Page) -> Any:
    return page.data()["flipflop"]


def test_cells_are_means_over_the_seeds_with_their_interval(flipflop: Any) -> None:
    for number, pe in enumerate(ENCODINGS):
        (setting,) = (s for s in flipflop["settings"] if s["pe"] == pe)
        assert setting["seeds"] == len(SEEDS)
        for place, band in enumerate(setting["cells"]["error"]):
            values = [error_of(number, seed, place) for seed in SEEDS]
            mean, low, high, least, most, n, median, rate, seeds = band
            assert [mean, least, most, n, median] == pytest.approx(
                [statistics.fmean(values), min(values), max(values), 3, statistics.median(values)],
                rel=1e-3,
                abs=1e-9,
            )
            assert seeds == pytest.approx(values, rel=1e-3)
            # The thresholds of flipflop in suite v1.
            assert rate == f"{sum(value <= (0.02 if place else 0.01) for value in values)}/3"
            if number:
                expected = stats.t.interval(0.95, 2, mean, stats.sem(values))
                assert (low, high) == pytest.approx(expected, rel=2e-3)
        others = [
            statistics.fmean(error_of(number, seed, place) for place in range(1, 7))
            for seed in SEEDS
        ]
        assert setting["ood"]["error"][0] == pytest.approx(statistics.fmean(others), abs=1e-9)


def test_one_seed_has_no_interval(page: Page) -> None:
    (setting,) = page.data()["selective_copy"]["settings"]
    for mean, low, high, least, most, n, median, rate, seeds in setting["cells"]["error"]:
        assert (low, high, n, rate) == (None, None, 1, "")
        assert mean == least == most == median
        assert seeds == [mean]


def test_two_clusters_are_marked_and_have_no_interval() -> None:
    rows = pl.DataFrame({"setting": ["a"] * 3, "error": [0.0, 0.22, 0.0]})
    band = bands(rows, ("setting",), "error", pl.lit(0.05))["a",]
    assert band is not None
    assert (band.rate, band.half, band.low, band.high, band.median) == (
        "2/3‡", None, None, None, 0
    )  # fmt: skip
    assert band.values == [0.0, 0.0, 0.22]
    without = bands(rows, ("setting",), "error")["a",]
    assert without is not None
    assert (without.rate, without.k) == ("‡", None)


def test_a_mean_has_two_clusters_where_one_of_its_splits_has(here: Here) -> None:
    """Its own values lie close together."""
    for seed, (sparse, dense) in enumerate([(0.0, 0.1), (0.0, 0.11), (0.09, 0.02), (0.1, 0.0)]):
        made("a", seed, errors={"in_domain": 0.0, "sparse": sparse, "dense": dense})
        made("b", seed, errors={"in_domain": sparse, "sparse": 0.1, "dense": 0.1})
    runs = read_runs()
    (section,) = sections(runs, by_split(runs))
    found = {setting.pe: setting.ood["error"] for setting in section.settings}
    assert found["a"] is not None
    assert (found["a"].rate, found["a"].half, found["a"].clusters) == ("‡", None, True)
    assert found["b"] is not None
    assert (found["b"].rate, found["b"].half) == ("", 0.0)
    means = [value for value in heat_map(section)["data"]["values"] if value["split"] == "OOD mean"]
    assert {cell["setting"]: cell["below"] for cell in means} == {
        "a (n = 4)": "5.25", "b (n = 4)": "± 0.0",
    }  # fmt: skip
    assert "seeds in two clusters" in " ".join(heat_map(section)["title"]["text"])


def test_settings_stand_from_best_to_worst(flipflop: Any) -> None:
    """By the mean rate out of domain, then by the mean error."""
    ranks = []
    for setting in flipflop["settings"]:
        outside = [[error <= 0.02 for error in band[8]] for band in setting["cells"]["error"][1:]]
        rate = statistics.fmean(sum(seeds) / len(seeds) for seeds in outside)
        ranks.append((-round(rate, 9), setting["ood"]["error"][0]))
    assert ranks == sorted(ranks)
    assert len(ranks) == len(ENCODINGS) + 1
    assert len({rate for rate, _ in ranks}) > 5


def test_the_highest_rates_come_first_then_the_lowest_means(here: Here) -> None:
    """As in pe-lab results; of one seed each the means alone make the order."""
    errors = {"far": [0.0, 0.9], "near": [0.03, 0.03], "nearer": [0.025, 0.03], "one": [0.0]}
    for pe, values in errors.items():
        for seed, error in enumerate(values):
            made(pe, seed, errors={"in_domain": 0.5, "sparse": error})
    made("short", 0, errors={"in_domain": 0.0, "sparse": None})
    runs = read_runs()
    (section,) = sections(runs, by_split(runs))
    ranked = ["one", "far", "nearer", "near", "short"]
    assert [setting.pe for setting in section.settings] == ranked
    out = here("results", "format=markdown").out
    assert re.findall(r"^\| (\w+) \|", out, re.MULTILINE)[1:] == ranked
    assert here("report", "inspect=none", "out=.").status == 0
    page = Page(Path("index.html").read_text())
    heads = [
        e["attributes"]["data-column"] for e in page.all("th") if "data-column" in e["attributes"]
    ]
    assert heads[:5] == ["label", "seeds", "split:in_domain", "split:sparse", "ood"]
    (row,) = (e["text"] for e in page.all("tr") if e["attributes"].get("data-setting") == "1")
    assert re.sub(r"\s+", " ", row).strip().startswith("far 2 0/2 50.0")
    assert "Rows stand from the highest mean of k/n" in page.all("main")[0]["text"]
    ones = read_runs(where="seed=0")
    (section,) = sections(ones, by_split(ones))
    assert [s.pe for s in section.settings] == ["far", "one", "nearer", "near", "short"]


def test_error_stands_against_what_the_splits_change(flipflop: Any) -> None:
    groups = {group["name"]: group for group in flipflop["groups"]}

    def panels(name: str) -> dict[str, set[tuple[float, str]]]:
        return {
            panel["title"]: {(x, split) for _, x, split in panel["points"]}
            for panel in groups[name]["panels"]
        }

    assert panels("against-length") == {
        "p_ignore = 0.8": {(16, "in_domain"), (32, "long_x2"), (64, "long_x4")},
        "p_ignore = 0.98": {(16, "sparse"), (64, "sparse_x4")},
        "p_ignore = 0.1": {(16, "dense"), (64, "dense_x4")},
    }
    assert panels("against-p_ignore") == {
        "length = 16": {(0.98, "sparse"), (0.8, "in_domain"), (0.1, "dense")},
        "length = 64": {(0.98, "sparse_x4"), (0.8, "long_x4"), (0.1, "dense_x4")},
    }


def test_learning_curves_end_with_the_closing_measurement(flipflop: Any) -> None:
    (group,) = (group for group in flipflop["groups"] if group["name"] == "learning")
    (panel,) = (panel for panel in group["panels"] if panel["split"] == "dense")
    (place,) = (n for n, s in enumerate(flipflop["settings"]) if s["pe"] == "enc_7")
    points = {x: bands["error"][0] for setting, x, _, bands in panel["points"] if setting == place}
    assert sorted(points) == [10, 20]
    assert points[20] == pytest.approx(
        statistics.fmean(error_of(7, seed, 2) for seed in SEEDS), rel=1e-3
    )


def test_unfinished_runs_settings_and_provenance_are_listed(page: Page) -> None:
    (shown,) = (e["text"] for e in page.all("section") if e["attributes"].get("id") == "unfinished")
    for part in ("seed9-00000000", "3 of 20", "seed8-00000000", "not begun"):
        assert part in shown
    # Of flipflop, the first task.
    tables = {c["text"]: c["parents"][-1]["text"] for c in reversed(page.all("caption"))}
    assert "enc_3 ×3" in tables["Where the runs differ, with the number of runs"]
    assert "task.length" in tables["Keys that all runs share"]
    assert "pe.evil" in tables["Keys that go with the encoding"]
    provenance = page.all("dl")[0]["text"]
    for part in ("torch 2.", "pe-lab 0.", "×32", "pe-lab report out="):
        assert part in provenance


def test_a_run_that_did_not_look_for_untracked_files_has_its_provenance(
    here: Here, runs: Path
) -> None:
    (first,) = (runs / "flipflop" / "enc_1").glob("seed0-*")
    run = shutil.copytree(first, Path("odd/flipflop/enc_1") / first.name)
    starts = json.loads((run / "environment.json").read_text())
    del starts[-1]["git_untracked"]
    (run / "environment.json").write_text(json.dumps(starts))
    assert here("report", "runs_dir=odd", "inspect=none", "out=.").status == 0
    shown = Page(Path("index.html").read_text()).all("dl")[0]["text"]
    assert "torch 2." in shown
    assert "broken" not in shown


def inspected(page: Page) -> list[str]:
    """Task and encoding of the inspected runs."""
    titles = [e["text"] for e in page.all("h3") if "sequence 0" in e["text"]]
    return [title.split(", seed")[0] for title in titles]


def test_runs_with_weights_are_inspected_by_default_or_those_chosen(
    page: Page, here: Here, runs: Path
) -> None:
    assert inspected(page) == ["flipflop, cope", "selective_copy, cope"]
    (folder,) = runs.glob("selective_copy/cope/seed*")
    assert here("report", f"runs_dir={runs}", f"inspect={folder}", "out=one").status == 0
    assert inspected(Page(Path("one/index.html").read_text())) == ["selective_copy, cope"]
    wrong = here("report", f"runs_dir={runs}", "inspect=nowhere", "out=two")
    assert wrong.status == 2
    assert "nowhere" in wrong.err
    assert not Path("two").exists()


@pytest.mark.extended
def test_torch_is_not_imported_for_tables_and_charts(runs: Path, tmp_path: Path) -> None:
    program = (
        "import sys; from pe_lab.cli.main import main\n"
        f"assert main(['report', {f'runs_dir={runs}'!r}, 'inspect=none', 'out=.']) == 0\n"
        "assert not {'torch', 'wandb', 'hydra'} & sys.modules.keys()"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.extended
def test_words_select_the_runs_of_the_page_which_is_reproducible(here: Here, runs: Path) -> None:
    words = ("inspect=none", "pe=enc_1,enc_2", "where=seed<2", "title=<Two> & two")
    texts = []
    for folder in ("one", "two"):
        assert here("report", f"runs_dir={runs}", *words, f"out={folder}").status == 0
        texts.append(Path(folder, "index.html").read_text())
    page = Page(texts[0])
    assert page.all("h1")[0]["text"] == "<Two> & two"
    assert len([e for e in page.all("tr") if "data-setting" in e["attributes"]]) == 2
    assert "4 finished" in page.all("header")[0]["text"]
    now = r"2\d{3}-\d\d-\d\d[ T][\d:]+(\+[\d:]+)?|out=\w+"
    one, two = (re.sub(now, "", text) for text in texts)
    assert one == two


def test_a_page_of_others_is_never_overwritten(here: Here, runs: Path) -> None:
    Path("index.html").write_text("<p>mine")
    refused = here("report", f"runs_dir={runs}", "inspect=none", "out=.")
    assert refused.status == 2
    assert "index.html was not written by pe-lab report" in refused.err
    assert Path("index.html").read_text() == "<p>mine"


@pytest.mark.extended
def test_a_failed_write_leaves_the_old_page(
    here: Here, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = f"<!doctype html>{MARK} old"
    Path("index.html").write_text(old)

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        failed = here("report", f"runs_dir={runs}", "inspect=none", "out=.")
    assert failed.status == 1
    assert "index.html cannot be written (No space left on device)" in failed.err
    assert Path("index.html").read_text() == old
    assert [path.name for path in Path().iterdir()] == ["index.html"]
    assert here("report", f"runs_dir={runs}", "inspect=none", "out=.").status == 0
    assert "flipflop" in Path("index.html").read_text()


def test_a_breakdown_that_cannot_be_read_leaves_its_run_out_of_it_alone(
    here: Here, caplog: pytest.LogCaptureFixture
) -> None:
    """The run is named; its table, and the other runs and kinds, are shown."""
    run = made("rope")
    sound = {f"{n}": {"error": 0.5, "loss": 1.0, "n": 4} for n in (1, 2)}
    for folder, by_length in ((run, {**sound, "x": sound["1"]}), (made("cope"), sound)):
        summary = json.loads((folder.path / "summary.json").read_text())
        summary["by"] = {"in_domain": {"length": by_length, "distance": sound}}
        (folder.path / "summary.json").write_text(json.dumps(summary))
    assert here("report", "inspect=none", "out=.").status == 0
    section = Page(Path("index.html").read_text()).data()["flipflop"]
    groups = {group["name"]: group["panels"][0]["points"] for group in section["groups"]}
    shown = {
        name: sorted({section["settings"][point[0]]["pe"] for point in groups[name]})
        for name in ("by-length", "by-distance")
    }
    assert shown == {"by-length": ["cope"], "by-distance": ["cope", "rope"]}
    (warning,) = (message for message in caplog.messages if "breakdown" in message)
    assert warning.startswith(f"{run.path}/summary.json: the breakdown by length has 'x', not a")


def test_without_a_finished_run_the_page_says_so(here: Here, runs: Path) -> None:
    assert here("report", f"runs_dir={runs}", "where=state!=finished", "out=.").status == 0
    page = Page(Path("index.html").read_text())
    assert "None of these runs has finished" in page.all("main")[0]["text"]
    assert f"no good: {EVIL}" in page.all("main")[0]["text"]
    assert page.all("form") == []
    assert page.all("h1")[0]["text"] == "Positional encodings: no finished run"
    # Without filters no column is kept for them.
    assert not any(e["attributes"].get("class") == "columns" for e in page.all("div"))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["runs_dir=nowhere"], "runs_dir=nowhere is not a folder"),
        (["pe=none"], "no runs in"),
        (["pe=typo"], "pe=typo: there is no pe typo"),
        (["otu=here"], "otu"),
        (["out"], "key=value"),
        (["to=x.html"], "report writes a folder, give it with out=FOLDER: the page is FOLDER/"),
    ],
)
def test_wrong_words_are_one_sentence(
    here: Here, runs: Path, words: list[str], expected: str
) -> None:
    Path("runs").symlink_to(runs)
    outcome = here("report", *words)
    assert outcome.status == 2
    assert expected in outcome.err
    assert outcome.err.count("\n") == 1
    assert not (runs / "report").exists()
