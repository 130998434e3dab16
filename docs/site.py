"""The hooks of mkdocs.yml, by which ``make site`` makes the documentation site.

The pages are those of docs/, and README.md, CHANGELOG.md, CONTRIBUTING.md and the interactive
leaderboard, which are made here. No page loads anything from another host.
"""

import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from docs.leaderboard import shipped, verdicts
from pe_lab.report.leaderboard import leaderboard_page
from pe_lab.suite.tables import describe_runs

ROOT = Path(__file__).resolve().parent.parent
LEADERBOARD = "interactive.html"
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
"""Files of the repository's root -> pages of the site."""
TERMS = "Terms are defined in docs/method.md."
HOME = (
    'Terms are defined in <a href="method.html">How numbers are made</a>, verdicts in '
    '<a href="why.html">Why models fail</a>. <a href="index.html">All pages</a>.'
)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/."""
    texts = {page: (ROOT / name).read_text("utf-8") for name, page in PAGES.items()}
    for name, text in {**texts, LEADERBOARD: interactive_leaderboard()}.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The text of a page as the site needs it: without comments, and with links within the site.
    Of a link to a file that the site does not have, the file's path is left."""
    markdown = re.sub(r"<!--.*?-->", "\n", markdown, flags=re.DOTALL)
    return re.sub(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)", _link, markdown.replace("](docs/", "]("))


def _link(found: re.Match[str]) -> str:
    text, target = found.groups()
    file, hash, anchor = target.partition("#")
    if file.startswith("../"):
        return text if text.startswith("`") else f"{text} (`{file.removeprefix('../')}`)"
    return f"[{text}]({PAGES.get(file, file)}{hash}{anchor})"


def mathml(source: str, language: str, css_class: str, *_: Any, **__: Any) -> str:
    """A fence of LaTeX as MathML, which browsers draw by themselves."""
    return f'<div class="{css_class}">{convert(source, display="block")}</div>'


def interactive_leaderboard() -> str:
    """The page of the shipped results, which does not read runs/."""
    scores, command = shipped(), f"pe-lab leaderboard to={LEADERBOARD}"
    notes = list(describe_runs(scores, scores.tasks))
    page = leaderboard_page(scores, scores.tasks, verdicts(), notes, command)
    assert page.count(TERMS) == 1
    return page.replace(TERMS, HOME)
