"""``make docs``: writes docs/encodings.md, its Chinese twin and the pictures.

What can be computed is computed (facts.py, pictures.py); the rest stands in encodings.yaml (a
mapping for each encoding), positions.yaml (for where positions come from) and phrases.yaml.
tests/test_docs.py says when the pages on disk are not what this makes.
"""

import sys
from pathlib import Path
from typing import Any

import yaml

from docs import costs, facts, pictures, svg
from docs.entries import HERE, PositionsEntry, encodings, entries
from docs.markdown import linked, table, unwrapped

IMAGES = HERE / "img"
PAGES = {"en": HERE / "encodings.md", "zh": HERE / "encodings.zh.md"}
NOTICE = "<!-- Written by `make docs` from docs/*.yaml, conf/ and the code: edit those. -->"


class Page:
    """One language's page."""

    def __init__(self, language: str) -> None:
        self.zh = language == "zh"
        say: dict[str, Any] = yaml.safe_load((HERE / "phrases.yaml").read_text("utf-8"))[language]
        texts = {key: unwrapped(text) for key, text in say.items() if isinstance(text, str)}
        self.say = {**say, **texts} if self.zh else say
        self.entries = encodings()
        self.facts = {name: facts.of(name) for name in self.entries}
        cfg = facts.small_model()
        self.model = {"layers": cfg.n_layers, "heads": cfg.n_heads, "width": cfg.d_model}

    def text(self) -> str:
        """The whole page."""
        say, families = self.say, dict.fromkeys(e.family for e in self.entries.values())
        size = {**self.model, "vocab": facts.VOCAB, "length": facts.LENGTH}
        free = [f"`{name}`" for name, entry in self.entries.items() if entry.reference is None]
        drawn = {"length": pictures.LENGTH, "last": pictures.LENGTH - 1}
        parts = [NOTICE, f"# {say['title']}", say["twin"], say["intro"]]
        parts += [
            f"## {say['table']}",
            self.overview(),
            say["legend"].format(**size, free=self.join(free)),
        ]
        parts += [f"## {say['cost']}", *costs.shown(say, list(self.entries))]
        parts += [f"## {say['positions']}", say["positions_text"], self.positions()]
        parts += [f"## {say['pictures']}", say["pictures_text"].format(**drawn)]
        for family in families:
            parts.append(f"## {say['sections'][family]}")
            members = (name for name, entry in self.entries.items() if entry.family == family)
            parts += [part for name in members for part in self.section(name)]
        return "\n\n".join(parts) + "\n"

    def hooks(self, found: facts.Facts) -> str:
        named = dict.fromkeys(self.say["hooks"][hook] for hook in found.hooks)
        return self.join(list(named)) or str(self.say["nowhere"])

    def source(self, found: facts.Facts, most: int | None = None) -> str:
        links = [f"[{label}]({address})" for label, address in found.sources[:most]]
        # The teaching baselines say "in no paper"; another may name a source without an address.
        unlinked = "in_no_paper" if "in no paper" in " ".join(found.text.split()) else "unlinked"
        return ", ".join(links) or str(self.say[unlinked])

    def reads(self, found: facts.Facts) -> str:
        """What it makes of the positions that it is given."""
        if not found.reads_positions:
            return str(self.say["reads"]["order"])
        return str(self.say["reads"]["distances" if found.shift_invariant else "absolute"])

    def reach(self, found: facts.Facts) -> str:
        if found.limit is not None:
            return f"`{found.limit}`"
        return str(self.say["own_length" if found.whole_sequence else "any"])

    def overview(self) -> str:
        say, rows = self.say, []
        for name, entry in self.entries.items():
            found = self.facts[name]
            rows.append([f"[`{name}`](#{name})", *([entry.zh.name] if self.zh else [])])
            rows[-1] += [say["families"][entry.family], self.hooks(found), f"{found.parameters:,}"]
            rows[-1] += [self.reads(found), self.reach(found)]
            rows[-1] += [entry.zh.extrapolates if self.zh else entry.extrapolates]
            rows[-1] += [self.source(found, 1), ", ".join(entry.witness) or say["none"]]
        return table(say["columns"], rows)

    def section(self, name: str) -> list[str]:
        say, entry, found = self.say, self.entries[name], self.facts[name]
        own = entry.zh if self.zh else entry
        lead = f"**{entry.zh.name}**：{entry.zh.summary}" if self.zh else f"**{found.summary}**"
        tests = [f"{library} ({linked(test)})" for library, test in entry.witness.items()]
        if entry.reference is not None:
            tests.insert(0, f"{say['loops']} ({linked(entry.reference)})")
        told = {
            say["acts"]: self.hooks(found),
            say["adds"][0]: say["adds"][1].format(n=f"{found.parameters:,}"),
            say["reads"]["title"]: self.reads(found),
            say["reaches"]: self.reach(found),
            say["source"]: self.source(found),
            say["held"]: self.join(tests),
        }
        if self.zh:
            told[say["class"]] = f"[{found.file}](encodings.md#{name})"
        return [
            f"### `{name}`",
            lead,
            f"```math\n{entry.maths}\n```",
            self.picture(name),
            self.pair(f"**{say['use']}**", own.use),
            self.pair(f"**{say['beyond']}**", own.extrapolates),
            "\n".join(f"- {self.pair(key, text)}" for key, text in told.items() if text),
            *self.own_words(found),
        ]

    def join(self, words: list[str]) -> str:
        return ("、" if self.zh else ", ").join(words)

    def pair(self, key: str, text: str) -> str:
        return f"{key}：{text}" if self.zh else f"{key}: {text}"

    def picture(self, name: str) -> str:
        drawn = pictures.draw(name)
        what = ", ".join(drawn.quantities)
        caption = self.say["moved" if drawn.moved else "caption"].format(what=what)
        alt = self.say["alt"].format(name=name, what=what)
        return f"![{alt}](img/{name}.svg)\n\n*{caption}*"

    def own_words(self, found: facts.Facts) -> list[str]:
        """The yaml, and in English the docstring."""
        keys = facts.keys(found.name)
        shown = [f"```yaml\n{keys}\n```"] if keys else []
        if not self.zh and found.text:
            shown.append(f"```text\n{found.text}\n```")
        if not shown:
            return []
        title = self.say["keys" if keys else "no_keys"].format(file=found.file)
        return [f"<details><summary>{title}</summary>", *shown, "</details>"]

    def positions(self) -> str:
        rows = []
        for name, entry in entries("positions.yaml", "positions", PositionsEntry).items():
            _, summary, text = facts.docstring(name, "positions")
            links = [f"[{label}]({address})" for label, address in facts.sources(text)]
            if self.zh:
                rows.append([f"`{name}`", entry.zh.name, entry.zh.summary, entry.zh.use])
            else:
                rows.append([f"`{name}`", summary, entry.use])
            rows[-1].append(", ".join(links))
        return table([*self.say["position_columns"], self.say["source"]], rows)


def images() -> dict[Path, list[svg.Panel]]:
    """The picture of every encoding, and where it belongs."""
    return {IMAGES / f"{name}.svg": pictures.draw(name).panels for name in encodings()}


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    drawn = images()
    for path, panels in drawn.items():
        # A cell at the edge of two colours may fall to the other on another machine.
        if not path.exists() or not svg.shows(path.read_text("utf-8"), panels, path.stem):
            path.write_text(svg.write(panels, path.stem), "utf-8")
            print(f"wrote {path.relative_to(facts.ROOT)}")
    for path in set(IMAGES.glob("*.svg")) - set(drawn):
        path.unlink()
        print(f"removed {path.relative_to(facts.ROOT)}: no such encoding")
    for language, path in PAGES.items():
        text = Page(language).text()
        if not path.exists() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")
            print(f"wrote {path.relative_to(facts.ROOT)}")
    given = yaml.safe_load((HERE / "encodings.yaml").read_text("utf-8"))
    for name in given.keys() - set(facts.names()):
        print(f"docs/encodings.yaml: {name} has no conf/pe/{name}.yaml, left out", file=sys.stderr)


if __name__ == "__main__":
    main()
