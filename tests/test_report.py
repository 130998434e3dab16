"""The report: the numbers on its page, the page's HTML, and what is never written over."""

import base64
import hashlib
import json
import re
import shutil
import statistics
import subprocess
import sys
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from program import Here, command
from report_runs import ENCODINGS, EVIL, SEEDS, error_of, shared_runs
from scipy import stats

from pe_lab.cli.report import MARK
from pe_lab.common.console import percent
from pe_lab.report.pictures import heat_map, png
from pe_lab.report.sections import sections
from pe_lab.results.frame import by_split, read_runs

VOID = {"meta", "input", "br", "img", "link", "wbr"}


class Page(HTMLParser):
    """Every element with its attributes and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[dict[str, Any]] = []
        self.open: list[dict[str, Any]] = []
        self.feed(text)
        assert not self.open, f"not closed: {[e['name'] for e in self.open]}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        parents = [e["name"] for e in self.open]
        element = {"name": tag, "text": "", "within": parents, "parents": list(self.open)}
        element |= {"attributes": dict(attrs)}
        self.elements.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID | {"path", "svg"}:
            assert self.open.pop()["name"] == tag

    def handle_data(self, data: str) -> None:
        for element in self.open:
            element["text"] += data

    def all(self, *names: str) -> list[dict[str, Any]]:
        return [e for e in self.elements if e["name"] in names]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared_runs(tmp_path_factory)


@pytest.fixture(scope="module")
def text(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    made = command("report", f"out={tmp_path_factory.mktemp('out')}", cwd=runs.parent)
    assert made.returncode == 0, made.stderr
    path = Path(made.stdout.split(": ")[0])
    assert "32 finished, 1 failed, 1 not begun" in made.stdout
    return path.read_text()


@pytest.fixture(scope="module")
def page(text: str) -> Page:
    return Page(text)


@pytest.fixture(scope="module")
def data(page: Page) -> Any:
    return json.loads(next(e for e in page.elements if e["attributes"].get("id") == "data")["text"])


def test_cells_are_means_over_the_seeds_with_their_interval(data: Any) -> None:
    flipflop = next(section for section in data if section["task"] == "flipflop")
    for number, pe in enumerate(ENCODINGS):
        (setting,) = (s for s in flipflop["settings"] if s["pe"] == pe)
        assert setting["seeds"] == len(SEEDS)
        for place, band in enumerate(setting["cells"]["error"]):
            values = [error_of(number, seed, place) for seed in SEEDS]
            mean, low, high, least, most, n = band
            assert [mean, least, most, n] == pytest.approx(
                [statistics.fmean(values), min(values), max(values), 3], rel=1e-3, abs=1e-9
            )
            if number:
                expected = stats.t.interval(0.95, 2, mean, stats.sem(values))
                assert (low, high) == pytest.approx(expected, rel=2e-3)
        others = [
            statistics.fmean(error_of(number, seed, place) for place in range(1, 7))
            for seed in SEEDS
        ]
        assert setting["ood"][0] == pytest.approx(statistics.fmean(others), rel=1e-3, abs=1e-9)


def test_one_seed_has_no_interval(data: Any) -> None:
    (copying,) = (section for section in data if section["task"] == "selective_copy")
    (setting,) = copying["settings"]
    for mean, low, high, least, most, n in setting["cells"]["error"]:
        assert (low, high, n) == (None, None, 1)
        assert mean == least == most


def test_settings_stand_from_best_to_worst(data: Any) -> None:
    (flipflop,) = (section for section in data if section["task"] == "flipflop")
    means = [setting["ood"][0] for setting in flipflop["settings"]]
    assert means == sorted(means)
    assert len(means) == len(ENCODINGS) + 1


def test_error_stands_against_what_the_splits_change(data: Any) -> None:
    (flipflop,) = (section for section in data if section["task"] == "flipflop")
    groups = {group["name"]: group for group in flipflop["groups"]}

    def panels(name: str) -> dict[str, set[tuple[float, str]]]:
        return {
            panel["title"]: {(x, split) for _, x, _, split in panel["points"]}
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


def test_learning_curves_end_with_the_closing_measurement(data: Any) -> None:
    (flipflop,) = (section for section in data if section["task"] == "flipflop")
    (group,) = (group for group in flipflop["groups"] if group["name"] == "learning")
    (panel,) = (panel for panel in group["panels"] if panel["split"] == "dense")
    (place,) = (n for n, s in enumerate(flipflop["settings"]) if s["pe"] == "enc_7")
    points = {x: band[0] for setting, x, band in panel["points"] if setting == place}
    assert sorted(points) == [10, 20]
    assert points[20] == pytest.approx(
        statistics.fmean(error_of(7, seed, 2) for seed in SEEDS), rel=1e-3
    )


def test_every_element_has_the_name_it_needs(page: Page) -> None:
    ids = [e["attributes"]["id"] for e in page.elements if "id" in e["attributes"]]
    assert len(ids) == len(set(ids))
    for e in page.elements:
        for reference in ("aria-labelledby", "for"):
            if reference in e["attributes"]:
                assert e["attributes"][reference] in ids
        if e["attributes"].get("role") == "region" or e["name"] == "section":
            assert e["attributes"].keys() & {"aria-labelledby", "aria-label"}, e["attributes"]
    assert page.all("html")[0]["attributes"]["lang"] == "en"
    for landmark in ("main", "header", "nav", "form"):
        assert len(page.all(landmark)) == 1
    (skip,) = (e for e in page.all("a") if e["attributes"].get("class") == "skip")
    assert skip["attributes"]["href"] == "#main"


def test_headings_skip_no_level(page: Page) -> None:
    levels = [int(e["name"][1]) for e in page.all("h1", "h2", "h3", "h4", "h5", "h6")]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_tables_have_captions_and_headers_scopes(page: Page) -> None:
    ours = [t for t in page.all("table") if not any(
        "pe-inspect" in p["attributes"].get("class", "") for p in t["parents"]
    )]  # fmt: skip
    captions = [c["parents"][-1] for c in page.all("caption")]
    assert all(any(table is c for c in captions) for table in ours)
    assert len(ours) >= 8
    assert all(e["attributes"].get("scope") in ("row", "col") for e in page.all("th"))


def test_controls_have_labels(page: Page) -> None:
    labelled = {e["attributes"].get("for") for e in page.all("label")}
    fields = page.all("input", "select")
    assert len(fields) > 15
    for field in fields:
        assert "label" in field["within"] or field["attributes"]["id"] in labelled


def test_every_figure_has_a_caption_and_its_numbers(page: Page) -> None:
    figures = page.all("figure")
    assert len(figures) >= 8
    for figure in figures:
        inside = [e["name"] for e in page.elements if any(p is figure for p in e["parents"])]
        assert {"figcaption", "h3", "details"} <= set(inside)


def test_nothing_is_loaded_and_only_our_scripts_run(page: Page, text: str) -> None:
    for e in page.elements:
        for key, value in e["attributes"].items():
            assert not key.startswith("on")
            if key in ("src", "href", "action", "data", "poster", "srcset"):
                assert value.startswith("#"), (e["name"], key, value)
    style = page.all("style")[0]["text"]
    assert "url(" not in style
    assert "@import" not in style
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]+)"', text)
    rules = dict(rule.split(" ", 1) for rule in policy.replace("&#39;", "'").split("; "))
    assert rules["default-src"] == "'none'"
    scripts = [e["text"] for e in page.all("script") if not e["attributes"]]
    digests = [base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts]
    assert rules["script-src"].split() == [f"'sha256-{digest}'" for digest in digests]


def test_data_is_text_never_html(page: Page, text: str) -> None:
    assert "<img" not in text.split('<script type="application/json"')[0]
    assert page.all("img") == []
    (why,) = (
        e["text"] for e in page.all("td") if e["attributes"].get("class") == "why" and e["text"]
    )
    assert why == f"no good: {EVIL}"
    assert any(EVIL in e["text"] for e in page.all("code"))


def test_runs_without_a_result_are_listed(page: Page) -> None:
    told = next(e for e in page.all("section") if e["attributes"].get("id") == "unfinished")["text"]
    assert "seed9-00000000" in told
    assert "3 of 20" in told
    assert "seed8-00000000" in told
    assert "not begun" in told


def test_settings_and_provenance_are_told(page: Page) -> None:
    # Of flipflop, the first task.
    tables = {c["text"]: c["parents"][-1]["text"] for c in reversed(page.all("caption"))}
    differing = tables["Where the runs differ, with the number of runs"]
    assert "enc_3 ×3" in differing
    assert "task.length" in tables["Keys that all runs share"]
    assert "pe.evil" in tables["Keys that go with the encoding"]
    provenance = page.all("dl")[0]["text"]
    for told in ("torch 2.", "pe-lab 0.", "×32", "pe-lab report out="):
        assert told in provenance


def test_a_run_that_did_not_look_for_untracked_files_has_its_provenance(
    here: Here, runs: Path
) -> None:
    (first,) = (runs / "flipflop" / "enc_1").glob("seed0-*")
    run = shutil.copytree(first, Path("odd/flipflop/enc_1") / first.name)
    starts = json.loads((run / "environment.json").read_text())
    del starts[-1]["git_untracked"]
    (run / "environment.json").write_text(json.dumps(starts))
    assert here("report", "runs_dir=odd", "inspect=none", "out=.").status == 0
    told = Page(Path("index.html").read_text()).all("dl")[0]["text"]
    assert "torch 2." in told
    assert "broken" not in told


def test_an_encoding_is_looked_into(page: Page) -> None:
    """The two runs with weights, of which one task each."""
    titles = [e["text"] for e in page.all("h3") if "sequence 0" in e["text"]]
    assert [title.split(", seed")[0] for title in titles] == [
        "flipflop, cope",
        "selective_copy, cope",
    ]


def test_runs_to_look_into_are_chosen(here: Here, runs: Path) -> None:
    (folder,) = runs.glob("selective_copy/cope/seed*")
    assert here("report", f"runs_dir={runs}", f"inspect={folder}", "out=one").status == 0
    titles = [e["text"] for e in Page(Path("one/index.html").read_text()).all("h3")]
    assert [t.split(", seed")[0] for t in titles if "sequence 0" in t] == ["selective_copy, cope"]
    wrong = here("report", f"runs_dir={runs}", "inspect=nowhere", "out=two")
    assert wrong.status == 2
    assert "nowhere" in wrong.err
    assert not Path("two").exists()


def test_torch_is_not_imported_for_tables_and_charts(runs: Path, tmp_path: Path) -> None:
    program = (
        "import sys; from pe_lab.cli.main import main\n"
        f"assert main(['report', {f'runs_dir={runs}'!r}, 'inspect=none', 'out=.']) == 0\n"
        "assert not {'torch', 'wandb', 'hydra'} & sys.modules.keys()"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


def test_filters_select_the_runs_of_the_page(here: Here, runs: Path) -> None:
    words = ("inspect=none", "pe=enc_1,enc_2", "where=seed<2", "title=<Two> & two")
    assert here("report", f"runs_dir={runs}", *words, "out=.").status == 0
    text = Path("index.html").read_text()
    page = Page(text)
    assert page.all("h1")[0]["text"] == "<Two> & two"
    rows = [e for e in page.all("tr") if "data-setting" in e["attributes"]]
    # In the heat map and in the results.
    assert len(rows) == 4
    assert "4 finished" in page.all("header")[0]["text"]


def test_the_same_runs_give_the_same_page(here: Here, runs: Path) -> None:
    for folder in ("one", "two"):
        assert here("report", f"runs_dir={runs}", "inspect=none", f"out={folder}").status == 0
    one, two = (
        re.sub(
            r"2\d{3}-\d\d-\d\d[ T][\d:]+(\+[\d:]+)?|out=\w+", "", Path(f, "index.html").read_text()
        )
        for f in ("one", "two")
    )
    assert one == two


def test_a_page_of_others_is_never_written_over(here: Here, runs: Path) -> None:
    Path("index.html").write_text("<p>mine")
    refused = here("report", f"runs_dir={runs}", "inspect=none", "out=.")
    assert refused.status == 2
    assert "index.html was not written by pe-lab report" in refused.err
    assert Path("index.html").read_text() == "<p>mine"
    Path("index.html").write_text(f"<!doctype html>{MARK} old")
    assert here("report", f"runs_dir={runs}", "inspect=none", "out=.").status == 0
    assert "flipflop" in Path("index.html").read_text()


def test_a_failed_write_leaves_the_page_that_is_there(
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


def test_without_a_finished_run_the_page_says_so(here: Here, runs: Path) -> None:
    assert here("report", f"runs_dir={runs}", "where=state!=finished", "out=.").status == 0
    page = Page(Path("index.html").read_text())
    assert "None of these runs has finished" in page.all("main")[0]["text"]
    assert "no good" in page.all("main")[0]["text"]
    assert page.all("form") == []
    assert page.all("h1")[0]["text"] == "Positional encodings: no finished run"
    # Without filters no column is kept for them.
    assert not any(e["attributes"].get("class") == "columns" for e in page.all("div"))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["runs_dir=nowhere"], "runs_dir=nowhere is not a folder"),
        (["pe=typo"], "no runs in"),
        (["otu=here"], "otu"),
        (["out"], "key=value"),
    ],
)
def test_wrong_words_are_one_sentence(here: Here, runs: Path, words: list[str], told: str) -> None:
    Path("runs").symlink_to(runs)
    outcome = here("report", *words)
    assert outcome.status == 2
    assert told in outcome.err
    assert outcome.err.count("\n") == 1
    assert not (runs / "report").exists()


def test_a_name_cannot_end_the_data_of_the_page(here: Here, runs: Path) -> None:
    name = "<!--<script>&"
    for run in (runs / "flipflop" / "enc_1").iterdir():
        path = Path("odd/flipflop") / name / run.name
        path.mkdir(parents=True)
        told = (run / "summary.json").read_text().replace('"enc_1"', json.dumps(name))
        (path / "summary.json").write_text(told)
    assert here("report", "runs_dir=odd", "inspect=none", "out=.").status == 0
    page = Page(Path("index.html").read_text())
    (told,) = (e["text"] for e in page.elements if e["attributes"].get("id") == "data")
    assert not set("<>&") & set(told)
    assert [s["pe"] for s in json.loads(told)[0]["settings"]] == [name]


def test_the_heat_map_as_a_picture(runs: Path) -> None:
    flipflop = read_runs(runs, task="flipflop", state="finished")
    (section,) = sections(flipflop, by_split(flipflop))
    spec = heat_map(section)
    shown = {(v["setting"], v["split"]): v["text"] for v in spec["data"]["values"]}
    mean = statistics.fmean(error_of(9, seed, 1) for seed in SEEDS)
    assert shown["enc_9", section.splits[1]] == percent(mean)
    assert png(spec).startswith(b"\x89PNG")
