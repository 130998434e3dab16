"""The HTML of the report: structure, names for screen readers, and nothing but our scripts."""

import base64
import hashlib
import json
import re
from itertools import pairwise
from pathlib import Path

from html_page import Page, values
from program import Here
from report_runs import EVIL, page, runs, text

from pe_lab.store.schema import sealed

__all__ = ["page", "runs", "text"]


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
    for table in page.all("table"):
        assert table["attributes"].get("aria-label") or table["text"] in named
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
