"""The report: its numbers, sentences and sections, and which files it writes."""

import base64
import hashlib
import json
import re
import statistics
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from html_page import Page, values
from made import edit_summary, made
from program import Here, assert_refused
from report_runs import ENCODINGS, EVIL, SEEDS, error_of, page, runs, text

from pe_lab.cli.report import MARK
from pe_lab.core.console import percent
from pe_lab.report.data import Section, bands, sections
from pe_lab.report.tables import NOT_RUN, UNLEARNED, overview, sentence, table
from pe_lab.results.table import by_split, read_runs
from pe_lab.store.files import sealed

__all__ = ["page", "runs", "text"]


def found(where: str | None = None) -> list[Section]:
    """The sections of the finished runs in runs/."""
    read = read_runs(where=where)
    return sections(read, by_split(read))


@pytest.fixture(scope="module")
def flipflop(runs: Path) -> Section:
    finished = read_runs(runs, task="flipflop", state="finished")
    (section,) = sections(finished, by_split(finished))
    return section


def test_cells_are_success_rate_median_and_mean_over_the_seeds(flipflop: Section) -> None:
    rows = {row.name: row.cells for row in table(flipflop).rows}
    for number, pe in enumerate(ENCODINGS):
        (setting,) = (s for s in flipflop.settings if s.pe == pe)
        assert setting.seeds == SEEDS
        for place, split in enumerate(flipflop.splits):
            errors = [error_of(number, seed, place) for seed in SEEDS]
            band = setting.cells[split]
            assert band is not None
            mean, median = statistics.fmean(errors), statistics.median(errors)
            assert (band.mean, band.median, band.n) == pytest.approx((mean, median, 3))
            assert band.values == pytest.approx(errors)
            # The thresholds of flipflop in suite v1.
            k = sum(value <= (0.02 if place else 0.01) for value in errors)
            cell = rows[pe][1 + place]
            assert cell.text == f"{k}/3 {percent(median)}"
            assert cell.below == percent(mean)
        assert setting.ood is not None
        others = [error_of(number, seed, place) for seed in SEEDS for place in range(1, 7)]
        assert setting.ood.mean == pytest.approx(statistics.fmean(others))


def test_one_seed_has_no_rate_and_two_clusters_a_mark(here: Here) -> None:
    made("one", errors={"in_domain": 0.125, "sparse": 0.5})
    (section,) = found()
    cells = table(section).rows[0].cells
    assert [(cell.text, cell.below) for cell in cells[1:4]] == [
        ("12.5", ""), ("50.0", ""), ("50.0", ""),
    ]  # fmt: skip
    rows = pl.DataFrame({"setting": ["a"] * 3, "error": [0.0, 0.22, 0.0]})
    band = bands(rows, ("setting",), "error", pl.lit(0.05))["a",]
    assert band is not None
    assert (band.rate, band.median) == ("2/3‡", 0)
    assert band.values == [0.0, 0.0, 0.22]
    without = bands(rows, ("setting",), "error")["a",]
    assert without is not None
    assert (without.rate, without.k) == ("‡", None)


def test_a_mean_has_two_clusters_where_one_of_its_splits_has(here: Here) -> None:
    for seed, (sparse, dense) in enumerate([(0.0, 0.1), (0.0, 0.11), (0.09, 0.02), (0.1, 0.0)]):
        made("a", seed, errors={"in_domain": 0.0, "sparse": sparse, "dense": dense})
        made("b", seed, errors={"in_domain": sparse, "sparse": 0.1, "dense": 0.1})
    (section,) = found()
    grid = table(section)
    means = {row.name: (row.cells[4].text, row.cells[4].below) for row in grid.rows}
    assert means == {"a": ("‡ 5.25", "5.25"), "b": ("10.0", "")}
    assert "‡: the seeds form two clusters" in grid.caption


def test_the_highest_rates_come_first_then_the_lowest_means(here: Here) -> None:
    """As in pe-lab results; of one seed each the means alone make the order."""
    errors = {"far": [0.0, 0.9], "near": [0.03, 0.03], "nearer": [0.025, 0.03], "one": [0.0]}
    for pe, several in errors.items():
        for seed, error in enumerate(several):
            made(pe, seed, errors={"in_domain": 0.5, "sparse": error})
    made("short", 0, errors={"in_domain": 0.0, "sparse": None})
    ranked = ["one", "far", "nearer", "near", "short"]
    assert [setting.pe for setting in found()[0].settings] == ranked
    out = here("results", "format=markdown").out
    assert re.findall(r"^\| (\w+) \|", out, re.MULTILINE)[1:] == ranked
    ones = [setting.pe for setting in found("seed=0")[0].settings]
    assert ones == ["far", "one", "nearer", "near", "short"]


def test_a_mean_without_one_of_its_splits_is_no_mean(here: Here) -> None:
    """Else an encoding that cannot read the longest split would seem to be the best."""
    made("learned", errors={"in_domain": 0.0, "sparse": 0.0, "long_x4": None})
    made("rope", errors={"in_domain": 0.0, "sparse": 0.25, "long_x4": 0.5})
    rope, learned = table(found()[0]).rows
    assert (rope.name, rope.cells[4].text) == ("rope", "37.5")
    assert [cell.text for cell in learned.cells[3:5]] == ["n/a", "n/a"]


def test_the_overview_counts_the_seeds_that_generalise_everywhere(here: Here) -> None:
    """k/n and the mean rate; grey where most seeds do not fit; too long counts as a failure."""
    for seed in range(4):
        split = {"sparse": 0.0 if seed else 0.5, "dense": 0.0 if seed < 2 else 0.5}
        made("cope", seed, errors={"in_domain": 0.0, **split})
        made("poor", seed, errors={"in_domain": 0.0 if seed == 0 else 0.5, "sparse": 0.0})
    made("cope", 0, errors={"in_domain": 0.0, "sparse": 0.0, "dense": 0.0}, **{"train.lr": 0.1})
    made("short", errors={"in_domain": 0.0, "sparse": 0.0, "dense": None})
    made("cope", task="copy", errors={"in_domain": 0.0, "longer": 0.0})
    grid = overview(found())
    assert [column.name for column in grid.columns] == ["copy", "flipflop"]
    cells = {row.name: row.cells for row in grid.rows}
    assert grid.rows[0].name == "cope"
    shown = {name: (of[1].text, of[1].below, of[1].share, of[1].kind) for name, of in cells.items()}
    # Not the one seed at another learning rate, which is better.
    assert shown["cope"] == ("1/4", "62 %", 0.625, "")
    assert shown["poor"] == ("4/4", "not learned", None, UNLEARNED)
    assert shown["short"] == ("0/1", "50 %", 0.5, "")
    assert [cells[name][0].kind for name in ("cope", "poor")] == ["", NOT_RUN]
    assert "sparse 3/4, dense 2/4" in cells["cope"][1].title


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        (
            {"a": [[0.0, 0.0], [0.0, 0.5], [0.0, 0.0]], "b": [[0.0, 0.5]] * 3},
            "a generalises to all 2 OOD splits; at least 2 of 3 seeds succeed on each. "
            "1 other reaches fewer.",
        ),
        (
            {"a": [[0.0, 0.5]] * 2, "b": [[0.5, 0.5]] * 2},
            "a generalises to sparse (1 of 2 OOD splits); both seeds succeed on each.",
        ),
        (
            {"a": [[0.0, 0.0]], "b": [[0.0, 0.0]]},
            "a and b generalise to all 2 OOD splits; a: one seed was trained.",
        ),
        (
            {"a": [[0.5, 0.5]], "unfit": [[0.0, 0.0]]},
            "No encoding generalises to an OOD split in most of its seeds. "
            "unfit did not learn it in domain.",
        ),
        ({"a": [[]]}, "No OOD split was measured."),
    ],
)
def test_a_sentence_says_what_generalises(
    here: Here, errors: dict[str, list[list[float]]], expected: str
) -> None:
    for pe, seeds in errors.items():
        for seed, (*outside,) in enumerate(seeds):
            inside = {"in_domain": 0.9 if pe == "unfit" else 0.0}
            splits = dict(zip(("sparse", "dense"), outside, strict=False))
            made(pe, seed, errors={**inside, **splits})
    assert sentence(found()[0]) == expected


def test_unfinished_runs_settings_and_provenance_are_listed(page: Page) -> None:
    for part in ("seed9-00000000", "3 of 20", "seed8-00000000", "not begun", f"no good: {EVIL}"):
        assert part in page.inside("unfinished")
    settings = page.inside("task-1")
    for part in ("enc_3 ×3", "All runs share", "task.length=16", f"{EVIL} 0 ×3"):
        assert part in settings
    for part in ("torch2.", "pe-lab 0.", "×32", "pe-lab report out="):
        assert part in page.inside("provenance")


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
    assert_refused(here("report", f"runs_dir={runs}", "inspect=nowhere", "out=two"), "nowhere")
    assert not Path("two").exists()


@pytest.mark.extended
def test_words_select_the_runs_of_the_page_which_is_reproducible(here: Here, runs: Path) -> None:
    words = ("inspect=none", "pe=enc_1,enc_2", "where=seed<2", "title=<Two> & two")
    texts = []
    for folder in ("one", "two"):
        assert here("report", f"runs_dir={runs}", *words, f"out={folder}").status == 0
        texts.append(Path(folder, "index.html").read_text())
    page = Page(texts[0])
    assert page.all("h1")[0]["text"] == "<Two> & two"
    heads = [e["text"] for e in page.all("th") if e["attributes"].get("scope") == "row"]
    assert sorted(heads) == ["enc_1", "enc_1", "enc_2", "enc_2"]
    assert "4 finished" in page.all("header")[0]["text"]
    now = r"2\d{3}-\d\d-\d\d[ T][\d:]+(\+[\d:]+)?|out=\w+"
    one, two = (re.sub(now, "", text) for text in texts)
    assert one == two


def test_a_page_of_others_is_never_overwritten(here: Here, runs: Path) -> None:
    Path("index.html").write_text("<p>mine")
    assert_refused(
        here("report", f"runs_dir={runs}", "inspect=none", "out=."),
        "index.html was not written by pe-lab report",
    )
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


# int() reads the last one, an Arabic 3; polars does not.
@pytest.mark.parametrize("bucket", ["x", "\u0663"])
def test_a_breakdown_that_cannot_be_read_leaves_its_run_out_of_it_alone(
    here: Here, caplog: pytest.LogCaptureFixture, bucket: str
) -> None:
    run = made("rope")
    sound = {f"{n}": {"error": 0.5, "loss": 1.0, "n": 4} for n in (1, 2)}
    for folder, by_length in ((run, {**sound, bucket: sound["1"]}), (made("cope"), sound)):
        by = {"in_domain": {"length": by_length, "distance": sound}}
        edit_summary(folder.path, lambda summary, by=by: summary.update(by=by))
    assert here("report", "inspect=none", "out=.").status == 0
    page = Page(Path("index.html").read_text())
    titles = [e["text"].split(".")[0] for e in page.all("figcaption")]
    shown: dict[str, Any] = dict(zip(titles, page.specs(), strict=True))
    encodings = {
        title: sorted({row["label"][:4] for row in values(shown[title]) if "y" in row})
        for title in ("Error by tokens read", "Error by distance")
    }
    assert encodings == {"Error by tokens read": ["cope"], "Error by distance": ["cope", "rope"]}
    message = (
        f"{run.path}/summary.json: the breakdown by length has {bucket!r}, not a number: make the "
        "run again with force=true"
    )
    assert [text for text in caplog.messages if "breakdown" in text] == [
        f"{message}; until then it is left out"
    ]
    assert f"Left out: {message}." in page.inside("task-1")


def test_without_a_finished_run_the_page_says_so(here: Here, runs: Path) -> None:
    assert here("report", f"runs_dir={runs}", "where=state!=finished", "out=.").status == 0
    page = Page(Path("index.html").read_text())
    assert "None of these runs has finished" in page.inside("main")
    assert f"no good: {EVIL}" in page.inside("main")
    assert page.all("h1")[0]["text"] == "Positional encodings: no finished run"


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
    assert_refused(here("report", *words), expected)
    assert not (runs / "report").exists()


def test_ids_regions_and_headings(page: Page) -> None:
    ids = [e["attributes"]["id"] for e in page.elements if "id" in e["attributes"]]
    assert len(ids) == len(set(ids))
    for e in page.elements:
        if e["attributes"].get("role") == "region" or e["name"] == "section":
            assert e["attributes"].get("aria-label"), e["attributes"]
    assert page.all("html")[0]["attributes"]["lang"] == "en"
    assert [len(page.all(landmark)) for landmark in ("main", "header")] == [1, 1]
    levels = [int(e["name"][1]) for e in page.all("h1", "h2", "h3", "h4", "h5", "h6")]
    assert (levels[0], levels.count(1)) == (1, 1)
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_tables_figures_and_controls_are_labelled(page: Page) -> None:
    assert len(page.all("table")) >= 4
    named = {c["parents"][-1]["text"] for c in page.all("caption")}
    for found_table in page.all("table"):
        assert found_table["attributes"].get("aria-label") or found_table["text"] in named
    assert all(e["attributes"].get("scope") in ("row", "col") for e in page.all("th"))
    names = ("figure", "figcaption")
    figures, captions = (len(page.all(name)) for name in names)
    assert figures == captions >= 8
    (field,) = page.all("input")
    assert "label" in field["within"]


def test_tasks_are_folded_below_the_overview(page: Page) -> None:
    folded = [e for e in page.all("details") if e["attributes"].get("class") == "task"]
    assert [e["attributes"]["id"] for e in folded] == ["task-1", "task-2"]
    assert not any("open" in e["attributes"] for e in page.all("details"))
    before = page.elements[: page.elements.index(folded[0])]
    assert [e["name"] for e in before].count("table") == 1
    links = [e["attributes"]["href"] for e in before if e["name"] == "a"]
    assert links == ["#main", "#task-1", "#task-2"]


def test_nothing_is_loaded_and_only_our_scripts_run(page: Page, text: str) -> None:
    for e in page.elements:
        for key, value in e["attributes"].items():
            assert not key.startswith("on")
            if key in ("src", "href", "action", "data", "poster", "srcset"):
                assert value.startswith("#"), (e["name"], key, value)
    assert not re.search(r"url\(|@import", page.all("style")[0]["text"])
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]+)"', text)
    rules = dict(rule.split(" ", 1) for rule in policy.replace("&#39;", "'").split("; "))
    assert rules["default-src"] == "'none'"
    scripts = [e["text"] for e in page.all("script") if not e["attributes"]]
    digests = [base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts]
    assert rules["script-src"].split() == [f"'sha256-{digest}'" for digest in digests]


def test_values_of_runs_are_text_never_html(page: Page) -> None:
    assert page.all("img") == []
    why = [e["text"] for e in page.all("td") if "no good" in e["text"]]
    assert why == [f"no good: {EVIL}"]
    assert any(EVIL in e["text"] for e in page.all("dd"))


def test_a_name_cannot_end_the_data_or_reach_a_terminal(here: Here, runs: Path) -> None:
    name = "<!--<script>&\x1b[2J\u202e"
    for run in (runs / "flipflop" / "enc_1").iterdir():
        path = Path("odd/flipflop") / name / run.name
        path.mkdir(parents=True)
        text = (run / "summary.json").read_text().replace('"enc_1"', json.dumps(name))
        summary = json.loads(text)
        del summary["digest"]
        (path / "summary.json").write_text(sealed(summary))
    assert here("report", "runs_dir=odd", "inspect=none", "out=.").status == 0
    html = Path("index.html").read_text()
    assert not {"\x1b", "\u202e"} & set(html)
    page = Page(html)
    json_type = ("type", "application/json")
    charts = [e["text"] for e in page.all("script") if json_type in e["attributes"].items()]
    assert charts
    assert not any(set("<>&") & set(chart) for chart in charts)
    shown = "<!--<script>&\\x1b[2J\\u202e"
    assert page.all("table")[0]["text"].count(shown) == 1
    labels = {row["label"] for spec in page.specs() for row in values(spec) if "label" in row}
    assert labels == {f"{shown} (n = 3)"}
