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
            say["contract"],
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
        return self.join(links) or str(self.say[unlinked])

    def reads(self, found: facts.Facts) -> str:
        """What it makes of the positions that it is given."""
        if not found.reads_positions:
            return str(self.say["reads"]["order"])
        return str(self.say["reads"]["distances" if found.shift_invariant else "absolute"])

    def reach(self, found: facts.Facts) -> str:
        if found.limit is not None:
            return f"`{found.limit}`"
        return str(self.say["own_length" if found.whole_sequence else "any"])

    def refuses(self, name: str) -> str:
        """What was found by trying, and what the entry adds."""
        entry, say = self.entries[name], self.say["refusals"]
        told = []
        for what, choice in facts.refusals(name):
            text = say[what].format(key=self.facts[name].limit)
            told.append(say["with"].format(what=text, choice=choice) if choice else text)
        by_hand = entry.zh.refuses if self.zh else entry.refuses
        return ("；" if self.zh else "; ").join([*told, *filter(None, [by_hand])])

    def library(self, witness: str) -> str:
        for word, own in self.say["witness_words"].items():
            witness = witness.replace(word, own)
        return witness

    def overview(self) -> str:
        say, rows = self.say, []
        for name, entry in self.entries.items():
            found = self.facts[name]
            rows.append([f"[`{name}`](#{name})", *([entry.zh.name] if self.zh else [])])
            rows[-1] += [say["families"][entry.family], self.hooks(found), f"{found.parameters:,}"]
            rows[-1] += [self.reads(found), self.reach(found)]
            rows[-1] += [self.refuses(name) or say["nothing"]]
            rows[-1] += [entry.zh.extrapolates if self.zh else entry.extrapolates]
            witnesses = self.join([self.library(w) for w in entry.witness])
            rows[-1] += [self.source(found, 1), witnesses or say["none"]]
        return table(say["columns"], rows)

    def section(self, name: str) -> list[str]:
        say, entry, found = self.say, self.entries[name], self.facts[name]
        own = entry.zh if self.zh else entry
        lead = f"**{entry.zh.name}**：{entry.zh.summary}" if self.zh else f"**{found.summary}**"
        held = {self.library(witness): test for witness, test in entry.witness.items()}
        if entry.alone is not None:
            held = {say["alone"]: entry.alone, **held}
        if entry.reference is not None:
            held = {say["loops"]: entry.reference, **held}
        tests = [say["by_test"].format(what=k, test=linked(test)) for k, test in held.items()]
        told = {
            say["acts"]: self.hooks(found),
            say["adds"][0]: say["adds"][1].format(n=f"{found.parameters:,}"),
            say["reads"]["title"]: self.reads(found),
            say["reaches"]: self.reach(found),
            say["refuses"]: self.refuses(name),
            say["source"]: self.source(found),
            say["held"]: self.join(tests),
        }
        if self.zh:
            told[say["class"]] = f"[{found.file}](encodings.md#{name})"
        return [
            f"### `{name}`",
            lead,
            *self.rule(name),
            self.picture(name),
            self.pair(f"**{say['use']}**", own.use),
            self.pair(f"**{say['beyond']}**", own.extrapolates),
            "\n".join(f"- {self.pair(key, text)}" for key, text in told.items() if text),
            *self.own_words(found),
        ]

    def rule(self, name: str) -> list[str]:
        """The formula and which keys its symbols are, or the steps in words."""
        entry = self.entries[name]
        if entry.maths is None:
            steps = entry.zh.steps if self.zh else entry.steps
            return ["\n".join(f"- {step}" for step in steps)]
        shown, defaults = [f"```math\n{entry.maths}\n```"], facts.section(name)
        where = [
            self.say["symbol"].format(
                symbol=symbol,
                key=key,
                value=self.say["null"] if defaults[key] is None else defaults[key],
            )
            for symbol, key in entry.symbols.items()
        ]
        return [*shown, self.say["where"].format(symbols=self.join(where))] if where else shown

    def join(self, words: list[str]) -> str:
        return ("、" if self.zh else ", ").join(words)

    def pair(self, key: str, text: str) -> str:
        return f"{key}：{text}" if self.zh else f"{key}: {text}"

    def picture(self, name: str) -> str:
        drawn = pictures.draw(name)
        what = self.join(drawn.quantities)
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
            rows[-1].append(self.join(links))
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
