"""The report: its numbers, sentences and sections, and which files it writes."""

import re
from pathlib import Path

import pytest
from html_page import Page, values
from made import made
from program import Here, assert_refused, succeeded
from report_runs import ENCODINGS, EVIL, SEEDS, error_of, page, runs, text

from pe_lab.explain.inspect import inspect_run
from pe_lab.report.page import Section, overview_of, sections_of, sentence_of, shades_of
from pe_lab.results.table import read_runs

__all__ = ["page", "runs", "text"]


def sections() -> list[Section]:
    return sections_of(read_runs())[0]


def test_charts_hold_every_seed_of_the_first_eight_encodings(runs: Path) -> None:
    (section,) = sections_of(read_runs(runs, task="flipflop", state="finished"))[0]
    splits = section.charts[0]
    assert splits.title == "Error by split"
    shown = {(row["label"], row["x"]): [] for row in values(splits.spec) if "label" in row}
    for row in values(splits.spec):
        if "label" in row:
            shown[row["label"], row["x"]].append(row["value"])
    names = section.table.frame["pe"].to_list()
    assert {label for label, _ in shown} == set(names[:8])
    for number, pe in enumerate(ENCODINGS):
        for place, split in enumerate(["in_domain", "sparse", "dense", "long_x2"]):
            if pe in names[:8]:
                errors = [100 * error_of(number, seed, place) for seed in SEEDS]
                assert sorted(shown[pe, split]) == pytest.approx(sorted(errors))
    limits = {row["x"]: row["limit"] for row in values(splits.spec) if "limit" in row}
    assert limits == {split: 1 if split == "in_domain" else 2 for split in limits}
    assert len(limits) == 7


def test_sentences_and_the_overview_rank_by_success_rate_out_of_domain(here: Here) -> None:
    errors = {"far": [0.0, 0.9], "near": [0.03, 0.03], "both": [0.0, 0.0]}
    for pe, several in errors.items():
        for seed, error in enumerate(several):
            made(pe, seed, errors={"in_domain": 0.5, "sparse": error, "dense": 0.0})
            made(pe, seed, task="copy", errors={"in_domain": 0.0, "longer": 0.9})
    copy, flipflop = sections()
    assert "both, 100 % of 2 seeds" in flipflop.sentence
    assert copy.sentence == "No encoding generalises to a split out of domain."
    table = overview_of([copy, flipflop]).frame
    rates = {row["encoding"]: (row["copy"], row["flipflop"]) for row in table.to_dicts()}
    assert rates == {"both": (0, 1), "far": (0, 0.75), "near": (0, 0.5)}
    assert table["encoding"].to_list() == ["both", "far", "near"]
    # encoding, n, in_domain, sparse, dense and their mean: a colour is the success rate, or none.
    shades = dict(zip(flipflop.table.frame["pe"], shades_of(flipflop.table), strict=True))
    assert shades["near"] == [None, None, 0, 0, 1, None]
    assert shades["far"] == [None, None, 0, 0.5, 1, None]


def test_rows_whose_settings_differ_and_charts_of_one_panel_say_so(here: Here) -> None:
    for seed in (0, 1):
        made("rope", seed, errors={"in_domain": 0.0, "sparse": 0.0}, **{"model.d_model": 32})
        made("none", seed, errors={"in_domain": 0.0, "sparse": 0.0})
        made("rope", seed, task="copy", errors={"in_domain": 0.0, "far": 0.0}, **{"train.lr": 9})
    assert set(overview_of(sections()).frame["encoding"]) == {"none", "rope", "rope d_model=32"}
    copy, flipflop = sections()
    assert all("Setting: the defaults of the task." in chart.note for chart in flipflop.charts)
    assert ["facet" in chart.spec for chart in flipflop.charts] == [False, True, True]
    points = values(flipflop.charts[0].spec)
    assert {row["label"] for row in points if "label" in row} == {"none", "rope d_model=32"}
    assert all(" lr=9." in chart.note for chart in copy.charts)
    assert "The mean of far:" in copy.charts[-1].note


def test_a_rate_is_of_the_seeds_of_the_best_that_are_measured_everywhere(here: Here) -> None:
    made("one", errors={"in_domain": 0.125, "sparse": 0.0, "dense": 0.0})
    assert "one seed" in sentence_of(sections()[0].table)
    for seed in range(4):
        made("partly", seed, errors={"in_domain": 0.0, "sparse": 0.0, "dense": None})
        made("fails", seed, errors={"in_domain": 0.0, "sparse": 0.5, "dense": 0.0})
    assert "fails, 50 % of 4 seeds" in sentence_of(sections()[0].table)
    for seed in (0, 1):
        made("two", seed, errors={"in_domain": 0.0, "sparse": 0.0, "dense": 0.0})
    assert "domain: two, 100 % of 2 seeds" in sentence_of(sections()[0].table)


def test_unfinished_runs_and_settings_are_listed(page: Page) -> None:
    for part in ("seed9-00000000", "seed8-00000000", "not begun", f"no good: {EVIL}"):
        assert part in page.inside("unfinished")
    settings = page.inside("task-1")
    for part in ("enc_3 x3", "All runs share", "task.length=16"):
        assert part in settings


def test_runs_with_weights_are_inspected_by_default_or_those_chosen(
    page: Page, here: Here, runs: Path
) -> None:
    def inspected(shown: Page) -> list[str]:
        titles = [e["text"] for e in shown.all("figcaption") if ", sequence " in e["text"]]
        return [title.split(".")[0] for title in titles]

    assert [title.split(", seed")[0] for title in inspected(page)] == ["selective_copy, cope"]
    (folder,) = runs.glob("flipflop/cope/seed*")
    assert here("report", f"runs_dir={runs}", f"inspect={folder}", "to=one").status == 0
    one, expected = Page(Path("one/index.html").read_text()), inspect_run(folder, None, None)
    assert inspected(one) == [expected.heading]
    # The last row is that of the first wrong answer.
    wrong = next(answer.position for answer in expected.answers if not answer.correct)
    assert max(row["query"] for row in values(one.specs()[-1])) == wrong
    assert_refused(here("report", f"runs_dir={runs}", "inspect=nowhere", "to=two"))
    assert not Path("two").exists()


def test_a_page_of_others_is_never_overwritten(here: Here, runs: Path) -> None:
    Path("index.html").write_text("<p>mine")
    assert_refused(here("report", f"runs_dir={runs}", "inspect=none", "to=."))
    assert Path("index.html").read_text() == "<p>mine"


def test_charts_are_files_on_demand(here: Here, runs: Path) -> None:
    succeeded(here("report", f"runs_dir={runs}", "pe=enc_1", "format=svg", "to=charts"))
    assert "flipflop-Error-by-split.svg" in {path.name for path in Path("charts").iterdir()}
    assert all(path.read_text().startswith("<svg") for path in Path("charts").iterdir())


def test_without_a_finished_run_the_page_says_so(here: Here, runs: Path) -> None:
    assert here("report", f"runs_dir={runs}", "where=state!=finished", "to=.").status == 0
    page = Page(Path("index.html").read_text())
    assert "None of these runs has finished" in page.inside("main")
    assert f"no good: {EVIL}" in page.inside("main")


def test_everything_is_labelled_and_unique(page: Page) -> None:
    ids = [e["attributes"]["id"] for e in page.elements if "id" in e["attributes"]]
    assert len(ids) == len(set(ids))
    for element in page.elements:
        if element["attributes"].get("role") == "region" or element["name"] == "section":
            assert element["attributes"].get("aria-label"), element["attributes"]
    assert all(e["attributes"].get("scope") in ("row", "col") for e in page.all("th"))
    assert len(page.all("figure")) == len(page.all("figcaption")) >= 6


def test_a_picture_is_open_above_the_folded_tasks(page: Page) -> None:
    folded = [e for e in page.all("details") if e["attributes"].get("class") == "task"]
    assert [e["attributes"]["id"] for e in folded] == ["task-1", "task-2"]
    before = page.elements[: page.elements.index(folded[0])]
    assert [e["name"] for e in before].count("figure") == 2


def test_nothing_is_loaded_and_values_of_runs_are_text(page: Page, text: str) -> None:
    for element in page.elements:
        for key, value in element["attributes"].items():
            assert not key.startswith("on")
            if key in ("src", "href", "action", "data", "poster", "srcset"):
                assert value.startswith("#"), (element["name"], key, value)
    assert not re.search(r"url\(|@import", page.all("style")[0]["text"])
    assert page.all("img") == []
    assert [e["text"] for e in page.all("td") if "no good" in e["text"]] == [f"no good: {EVIL}"]
