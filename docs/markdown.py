"""Bits of Markdown."""

from pathlib import Path


def row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def table(header: list[str], rows: list[list[str]]) -> str:
    return "\n".join([row(*header), row(*["---"] * len(header)), *(row(*cells) for cells in rows)])


def insert(page: Path, text: str, command: str) -> None:
    """Put the text between the comments ``<!-- COMMAND -->`` and ``<!-- end -->`` of a page."""
    begin, end = f"<!-- {command} -->", "<!-- end -->"
    old = page.read_text("utf-8")
    before, _, rest = old.partition(begin)
    new = f"{before}{begin}\n{text}\n{end}{rest.partition(end)[2]}"
    if new != old:
        page.write_text(new, "utf-8")
        print(f"wrote {page.name}")
