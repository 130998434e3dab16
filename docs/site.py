"""The hooks of mkdocs.yml, by which ``make site`` makes the documentation site.

The pages are those of docs/, the notebook, README.md, CHANGELOG.md and CONTRIBUTING.md. They load
nothing from another host, and all of them, search too, work when opened from the folder.
"""

import json
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOK = "first_steps.ipynb"
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    NOTEBOOK: "first_steps.md",
}
"""Files that are not pages in docs/ -> pages of the site."""


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/."""
    texts = {name: (ROOT / name).read_text("utf-8") for name in PAGES if name != NOTEBOOK}
    for name, text in {**texts, NOTEBOOK: notebook_page()}.items():
        files.append(File.generated(config, PAGES[name], content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The text of a page as the site needs it: without comments, with links within the site, and
    with pictures that a click opens. Of a link to a file that the site does not have, the file's
    path is left."""
    markdown = re.sub(r"<!--.*?-->", "\n", markdown, flags=re.DOTALL).replace("](docs/", "](")
    markdown = re.sub(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)", _link, markdown)
    return re.sub(r"!\[[^\]]*\]\((img/[^)\s]+)\)", r"[\g<0>](\1)", markdown)


def _link(found: re.Match[str]) -> str:
    text, target = found.groups()
    file, hash, anchor = target.partition("#")
    if file.startswith(("../", "examples/")):
        return text if text.startswith("`") else f"{text} (`{file.removeprefix('../')}`)"
    return f"[{text}]({PAGES.get(file, file)}{hash}{anchor})"


def mathml(source: str, language: str, css_class: str, *_: Any, **__: Any) -> str:
    """A fence of LaTeX as MathML, which browsers draw by themselves."""
    return f'<div class="{css_class}">{convert(source, display="block")}</div>'


def notebook_page() -> str:
    """The notebook with the outputs that are stored in it."""
    parts = []
    for cell in json.loads((ROOT / "docs" / NOTEBOOK).read_text("utf-8"))["cells"]:
        fenced = "{}" if cell["cell_type"] == "markdown" else "```python\n{}\n```"
        parts.append(fenced.replace("{}", "".join(cell["source"])))
        for output in cell.get("outputs", []):
            shown = output.get("data", {"text/plain": output.get("text")})
            text = f"```text\n{''.join(shown['text/plain']).rstrip()}\n```"
            parts.append(
                f"![The figure](data:image/png;base64,{shown['image/png'].strip()})"
                if "image/png" in shown
                else text
            )
    return "\n\n".join(parts)
