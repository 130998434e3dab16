"""``make docs``: write docs/encodings.md, its Chinese translation and the pictures.

Facts are computed (facts.py, pictures.py); the rest is written in encodings.yaml (an entry for
each encoding), positions.yaml and phrases.yaml, and translated in zh.yaml; what is missing there is
shown in English. tests/test_docs.py fails where the files on disk are not up to date.
"""

import json
import sys
from typing import Any

import yaml

from docs import costs, facts, heatmaps, pictures, tasks
from docs.entries import HERE, Entry, PositionsEntry, Translation, chinese, encodings, entries
from docs.markdown import linked, table, unwrapped

IMAGES = HERE / "img" / "encodings"
FINGERPRINTS = IMAGES / "fingerprints.json"
PAGES = {"en": HERE / "encodings.md", "zh": HERE / "encodings.zh.md"}
NOTICE = "<!-- Written by `make docs` from docs/*.yaml, conf/ and the code: edit those. -->"


class Page:
    """The page in one language, ``en`` or ``zh``."""

    def __init__(self, language: str) -> None:
        self.zh = language == "zh"
        self.say: dict[str, Any] = yaml.safe_load((HERE / "phrases.yaml").read_text("utf-8"))
        self.entries = encodings()
        self.position_entries = entries("positions.yaml", "positions", PositionsEntry)
        self.translations: dict[str, Translation] = {}
        self.position_translations: dict[str, Translation] = {}
        if self.zh:
            self._translate(chinese())
        self.facts = {name: facts.of(name) for name in self.entries}
        cfg = facts.small_model()
        self.model = {"layers": cfg.n_layers, "heads": cfg.n_heads, "width": cfg.d_model}

    def _translate(self, zh: dict[str, Any]) -> None:
        for key, text in zh["phrases"].items():
            self.say[key] = unwrapped(text) if isinstance(text, str) else text
        self.translations, self.position_translations = zh["encodings"], zh["positions"]
        for name, entry in self.entries.items():
            shown = self.translations.get(name, Translation()).model_dump(exclude_none=True)
            update = {key: text for key, text in shown.items() if key in Entry.model_fields}
            self.entries[name] = entry.model_copy(update=update)

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
        """How it uses the positions."""
        if not found.reads_positions:
            return str(self.say["reads"]["order"])
        return str(self.say["reads"]["distances" if found.shift_invariant else "absolute"])

    def reach(self, found: facts.Facts) -> str:
        if found.limit is not None:
            return f"`{found.limit}`"
        return str(self.say["own_length" if found.whole_sequence else "any"])

    def refuses(self, name: str) -> str:
        """What it refuses: found by trying, and added in its entry."""
        say, found = self.say["refusals"], []
        for what, choice in facts.refusals(name):
            text = say[what].format(key=self.facts[name].limit)
            found.append(say["with"].format(what=text, choice=choice) if choice else text)
        by_hand = filter(None, [self.entries[name].refuses])
        return ("；" if self.zh else "; ").join([*found, *by_hand])

    def library(self, witness: str) -> str:
        for english, translation in self.say["witness_words"].items():
            witness = witness.replace(english, translation)
        return witness

    def overview(self) -> str:
        say, rows = self.say, []
        for name, entry in self.entries.items():
            found = self.facts[name]
            title = [self.translations.get(name, Translation()).name or ""] if self.zh else []
            rows.append([f"[`{name}`](#{name})", *title])
            rows[-1] += [say["families"][entry.family], self.hooks(found), f"{found.parameters:,}"]
            rows[-1] += [self.reads(found), self.reach(found)]
            rows[-1] += [self.refuses(name) or say["nothing"]]
            rows[-1] += [entry.extrapolates]
            witnesses = self.join([self.library(w) for w in entry.witness])
            rows[-1] += [self.source(found, 1), witnesses or say["none"]]
        return table(say["columns"], rows)

    def section(self, name: str) -> list[str]:
        say, entry, found = self.say, self.entries[name], self.facts[name]
        translation = self.translations.get(name, Translation())
        lead = f"**{found.summary}**"
        if translation.name and translation.summary:
            lead = f"**{translation.name}**：{translation.summary}"
        held = {self.library(witness): test for witness, test in entry.witness.items()}
        if entry.alone is not None:
            held = {say["alone"]: entry.alone, **held}
        if entry.reference is not None:
            held = {say["loops"]: entry.reference, **held}
        tests = [say["by_test"].format(what=k, test=linked(test)) for k, test in held.items()]
        items = {
            say["acts"]: self.hooks(found),
            say["adds"][0]: say["adds"][1].format(n=f"{found.parameters:,}"),
            say["reads"]["title"]: self.reads(found),
            say["reaches"]: self.reach(found),
            say["refuses"]: self.refuses(name),
            say["source"]: self.source(found),
            say["held"]: self.join(tests),
        }
        if self.zh:
            items[say["class"]] = f"[{found.file}](encodings.md#{name})"
        return [
            f"### `{name}`",
            lead,
            *self.rule(name),
            self.picture(name),
            self.pair(f"**{say['use']}**", entry.use),
            self.pair(f"**{say['beyond']}**", entry.extrapolates),
            "\n".join(f"- {self.pair(key, text)}" for key, text in items.items() if text),
            *self.details(found),
        ]

    def rule(self, name: str) -> list[str]:
        """The formula and which keys its symbols are, or the steps in words."""
        entry = self.entries[name]
        if entry.maths is None:
            return ["\n".join(f"- {step}" for step in entry.steps)]
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
        caption = self.say["moved" if drawn.noisy else "caption"].format(what=what)
        alt = self.say["alt"].format(name=name, what=what)
        return f"![{alt}](img/encodings/{name}.png)\n\n*{caption}*"

    def details(self, found: facts.Facts) -> list[str]:
        """The yaml and, in English, the docstring."""
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
        for name, entry in self.position_entries.items():
            _, summary, text = facts.docstring(name, "positions")
            links = [f"[{label}]({address})" for label, address in facts.sources(text)]
            translation = self.position_translations.get(name, Translation())
            title = [translation.name or ""] if self.zh else []
            use = translation.use or entry.use
            rows.append([f"`{name}`", *title, translation.summary or summary, use])
            rows[-1].append(self.join(links))
        return table([*self.say["position_columns"], self.say["source"]], rows)


def write_pictures() -> None:
    """Draw the encodings whose picture is missing or out of date."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    known = json.loads(FINGERPRINTS.read_text("utf-8")) if FINGERPRINTS.exists() else {}
    for name in encodings():
        panels, path = pictures.draw(name).panels, IMAGES / f"{name}.png"
        expected = [heatmaps.fingerprint(panel) for panel in panels]
        if not path.exists() or not heatmaps.same(known.get(name, []), expected):
            changed = ": the encoding has changed" if path.exists() and name in known else ""
            path.write_bytes(heatmaps.png(panels))
            known[name] = expected
            print(f"wrote {path.relative_to(facts.ROOT)}{changed}")
    for path in IMAGES.glob("*.png"):
        if path.stem not in facts.names():
            path.unlink()
            print(f"removed {path.relative_to(facts.ROOT)}: no such encoding")
    lines = (f"{json.dumps(name)}: {json.dumps(known[name])}" for name in facts.names())
    FINGERPRINTS.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")


def main() -> None:
    write_pictures()
    pages = {path: Page(language).text() for language, path in PAGES.items()}
    for path, text in {**pages, tasks.PAGE: tasks.page()}.items():
        if not path.exists() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")
            print(f"wrote {path.relative_to(facts.ROOT)}")
    written = yaml.safe_load((HERE / "encodings.yaml").read_text("utf-8"))
    for name in written.keys() - set(facts.names()):
        print(f"docs/encodings.yaml: {name} has no conf/pe/{name}.yaml, left out", file=sys.stderr)


if __name__ == "__main__":
    main()
