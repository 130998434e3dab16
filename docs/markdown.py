"""Tables in Markdown, and files that are written where they change."""

from pathlib import Path


def table(header: list[str], rows: list[list[str]]) -> str:
    cells = [
        [cell.replace("|", "\\|").replace("\n", " ") for cell in line]
        for line in (header, ["---"] * len(header), *rows)
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def write(path: Path, text: str) -> None:
    """Write the file and say so, unless it has this text."""
    if not path.exists() or path.read_text("utf-8") != text:
        path.write_text(text, "utf-8")
        print(f"wrote {path.name}")
