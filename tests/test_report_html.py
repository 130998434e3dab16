"""The HTML of the report: structure, names for screen readers, and nothing but our scripts."""

import base64
import hashlib
import json
import re
from itertools import pairwise
from pathlib import Path

from html_page import Page
from program import Here
from report_runs import EVIL, page, runs, text

from pe_lab.store.digests import sealed

__all__ = ["page", "runs", "text"]


def test_ids_regions_and_landmarks_have_names(page: Page) -> None:
    ids = [e["attributes"]["id"] for e in page.elements if "id" in e["attributes"]]
    assert len(ids) == len(set(ids))
    for e in page.elements:
        for reference in ("aria-labelledby", "for", "form"):
            if reference in e["attributes"]:
                assert e["attributes"][reference] in ids
        if e["attributes"].get("role") == "region" or e["name"] == "section":
            assert e["attributes"].keys() & {"aria-labelledby", "aria-label"}, e["attributes"]
    assert page.all("html")[0]["attributes"]["lang"] == "en"
    for landmark in ("main", "header", "nav", "form"):
        assert len(page.all(landmark)) == 1
    (skip,) = (e for e in page.all("a") if e["attributes"].get("class") == "skip")
    assert skip["attributes"]["href"] == "#main"
    levels = [int(e["name"][1]) for e in page.all("h1", "h2", "h3", "h4", "h5", "h6")]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_tables_figures_and_controls_are_labelled(page: Page) -> None:
    ours = [t for t in page.all("table") if not any(
        "pe-inspect" in p["attributes"].get("class", "") for p in t["parents"]
    )]  # fmt: skip
    captions = [c["parents"][-1] for c in page.all("caption")]
    assert all(any(table is c for c in captions) for table in ours)
    assert len(ours) >= 7
    assert all(e["attributes"].get("scope") in ("row", "col") for e in page.all("th"))
    figures = page.all("figure")
    assert len(figures) >= 8
    for figure in figures:
        inside = [e["name"] for e in page.elements if any(p is figure for p in e["parents"])]
        assert {"figcaption", "h3", "details"} <= set(inside)
    labelled = {e["attributes"].get("for") for e in page.all("label")}
    fields = page.all("input", "select")
    assert len(fields) > 15
    for field in fields:
        assert "label" in field["within"] or field["attributes"]["id"] in labelled


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


def test_values_of_runs_are_text_never_html(page: Page, text: str) -> None:
    assert "<img" not in text.split('<script type="application/json"')[0]
    assert page.all("img") == []
    (why,) = (
        e["text"] for e in page.all("td") if e["attributes"].get("class") == "why" and e["text"]
    )
    assert why == f"no good: {EVIL}"
    assert any(EVIL in e["text"] for e in page.all("code"))


def test_a_name_cannot_end_the_data_of_the_page(here: Here, runs: Path) -> None:
    name = "<!--<script>&"
    for run in (runs / "flipflop" / "enc_1").iterdir():
        path = Path("odd/flipflop") / name / run.name
        path.mkdir(parents=True)
        text = (run / "summary.json").read_text().replace('"enc_1"', json.dumps(name))
        summary = json.loads(text)
        del summary["digest"]
        (path / "summary.json").write_text(sealed(summary))
    assert here("report", "runs_dir=odd", "inspect=none", "out=.").status == 0
    page = Page(Path("index.html").read_text())
    (data,) = (e["text"] for e in page.elements if e["attributes"].get("id") == "data")
    assert not set("<>&") & set(data)
    assert [s["pe"] for s in page.data()["flipflop"]["settings"]] == [name]
