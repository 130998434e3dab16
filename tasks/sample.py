"""The sample text that comes along, tasks/sample.txt: written for this project, by this grammar.

    text    = story+                      about 800 000 characters
    story   = title, paragraph+           with people, a place, two things, a saying and a refrain
    paragraph = (sentence | speech | talk | song | rhyme | chain | signs | stone)+
    sentence = one of ``SENTENCES``, its slots filled with the story's names and words
    speech  = a name, a verb of saying, and the story's saying, always word by word the same
    talk    = a line that is new, and somebody who says it again
    song    = a line that is new, then the story's refrain, twice
    rhyme   = the story's invented words, in two halves, said twice
    chain   = a tale that grows, each sentence with all of the one before it
    signs   = an inscription in an unreadable script, which two people copy
    stone   = the story's inscription, always sign by sign the same

The names and the rhyme of a story are invented for it, its words are a few of ``WORDS``, its
script a few of ``SIGNS``. So the text before a character predicts it, the longer the better: which
words are used, how a name continues, which sign. Sayings, lines, refrains, rhymes, chains
and inscriptions come back sign by sign, after ten to thousands of characters. The rest can be
memorised.

``python -m pe_lab.tasks.sample`` writes the file again, the same to the byte.
"""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Final

LENGTH: Final = 800_000
PER_STORY: Final = 4
"""How many words of a kind, and signs, a story has."""
SEED: Final = 9708

SYLLABLES = {
    "onset": "b br d dr f g gr h j k l m n p r s st t th tr v w z",
    "vowel": "a e i o u ai ea ou",
    "coda": "l n r s th nd rk m ld v",
}
WORDS = {
    "adjective": "old small grey quiet heavy broken narrow bright hollow wet crooked early patient "
    "golden cold empty proud painted distant bitter yellow clumsy frozen gentle hungry iron jolly "
    "lonely merry noisy oaken polished rusty silver tangled ugly velvet wooden young zealous",
    "noun": "lantern bell kettle ladder boat basket mirror wheel letter hammer coat candle table "
    "spoon needle rope barrel clock drum saddle blanket anchor window key arrow bucket chisel "
    "door engine feather goblet hat ink jar knife loom medal net oven plough quill ring shovel "
    "thimble umbrella violin whistle yoke",
    "trade": "miller weaver fisher baker smith sailor shepherd tailor carter mason piper gardener "
    "hunter clerk",
    "place": "river bridge market harbour forest hill orchard tower well mill road garden cellar "
    "stable church meadow attic border canal dairy field gate inn kitchen lake marsh pier quarry "
    "ruin square valley wharf yard",
    "verb": "found carried sold mended hid lost painted borrowed cleaned broke followed counted "
    "guarded returned admired buried copied dropped emptied forgot grasped heated inherited kept "
    "lifted moved named opened pushed raised stole touched washed",
    "time": "morning evening winter spring night autumn summer week",
    "number": "two three four seven nine twelve twenty forty sixty",
    "manner": "slowly again gladly alone twice quietly",
    "said": "said answered sang whispered wrote shouted repeated",
}
SIGNS = "αβγδεζηθικλμνξοπρστυφχψωбгджзийлпфцчшщъыьэюя"
SENTENCES = (
    "{one} {verb} the {thing} near the {place}.",
    "In the {time} {one} went to {town} with {two}.",
    "{two} {verb} {number} of them and gave one to {one}.",
    "Nobody in {town} had seen the {thing} since the {time}.",
    "The {trade} asked {one} where the {other} was.",
    "{one} and {two} walked {manner} along the {place} of {town}.",
    "It was a {adjective} {time}, and the {trade} {verb} the {noun} {manner}.",
    "Then {three} {verb} the {other}, and {two} was {adjective}.",
    "The {noun} of {three} the {craft} was {adjective} and {adjective}.",
    "{three} came from {town} with {number} of the {adjective} ones.",
    "When {two} {verb} the {noun}, the {thing} was already at the {place}.",
)


class Story:
    """The names, words and repeated lines of one story."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.words = {kind: self.some(words.split()) for kind, words in WORDS.items()}
        self.script = self.some(SIGNS)
        self.names = {role: self.name() for role in ("one", "two", "three", "town")}
        for role in ("thing", "other"):
            self.names[role] = f"{self.word('adjective')} {self.word('noun')}"
        self.names["craft"] = self.word("trade")
        self.saying = self.line()
        self.refrain = self.line()
        halves = [" ".join(self.name().lower() for _ in range(3)) for _ in range(2)]
        self.rhyme = ", ".join(halves)
        self.inscription = self.written()

    def word(self, kind: str) -> str:
        return self.among(self.words[kind])

    def some(self, choices: Sequence[str]) -> list[str]:
        """``PER_STORY`` of them, possibly equal."""
        return [self.among(choices) for _ in range(PER_STORY)]

    def among(self, choices: Sequence[str]) -> str:
        """One of them, uniform; by ``random`` alone, which is the same in every Python."""
        return choices[int(self.rng.random() * len(choices))]

    def name(self) -> str:
        n = 1 + int(self.rng.random() * 2)
        kinds = ["onset", "vowel"] * n + ["coda"]
        return "".join(self.among(SYLLABLES[kind].split()) for kind in kinds).capitalize()

    def line(self) -> str:
        return (
            f"the {self.word('adjective')} {self.word('noun')} {self.word('verb')} "
            f"the {self.word('noun')} of the {self.word('place')}"
        )

    def written(self) -> str:
        return "".join(self.among(self.script) for _ in range(6 + int(self.rng.random() * 9)))

    def signs(self) -> str:
        script, names = self.written(), self.names
        return (
            f"{names['one']} {self.word('said')} {script}, {names['two']} {self.word('said')} "
            f"{script}, and nobody knew what {script} was."
        )

    def stone(self) -> str:
        return f"The {self.word('noun')} in the {self.word('place')} said {self.inscription}."

    def sentence(self) -> str:
        sentence = self.among(SENTENCES)
        while "{" in sentence:
            slot = sentence[sentence.index("{") + 1 : sentence.index("}")]
            filler = self.names.get(slot) or self.word(slot)
            sentence = sentence.replace("{" + slot + "}", filler, 1)
        return sentence

    def speech(self) -> str:
        speaker = self.names[self.among(("one", "two", "three"))]
        return f'{speaker} {self.word("said")}: "{self.saying}."'

    def talk(self) -> str:
        line, speakers = self.line(), ("one", "two", "three")
        first, second = (self.names[self.among(speakers)] for _ in range(2))
        return f'"{line}," {self.word("said")} {first}. "{line}," {self.word("said")} {second}.'

    def song(self) -> str:
        return " ".join(f"{self.line()}, {self.refrain}.".capitalize() for _ in range(2))

    def chain(self) -> str:
        """A tale that grows: this is the bell, this is the smith that lost the bell, .."""
        chain = f"the {self.word('noun')}"
        links = [chain]
        for _ in range(2 + int(self.rng.random() * 2)):
            chain = f"the {self.word('noun')} that {self.word('verb')} {chain}"
            links.append(chain)
        return " ".join(f"This is {link}." for link in links)

    def paragraph(self) -> str:
        parts = []
        for _ in range(4 + int(self.rng.random() * 6)):
            drawn = self.rng.random()
            for share, kind in SHARES:
                if drawn < share:
                    parts.append(kind(self))
                    break
        return " ".join(parts)

    def __str__(self) -> str:
        title = f"{self.names['one']} and the {self.names['thing']}"
        paragraphs = [self.paragraph() for _ in range(3 + int(self.rng.random() * 5))]
        return "\n".join([title, *paragraphs, "\n"])


SHARES = (
    (0.10, Story.speech),
    (0.24, Story.talk),
    (0.32, Story.song),
    (0.40, lambda story: f"{story.rhyme}, {story.rhyme}!".capitalize()),
    (0.46, Story.chain),
    (0.56, Story.signs),
    (0.62, Story.stone),
    (1.0, Story.sentence),
)
"""The cumulative probability of each part of a paragraph."""


def sample() -> str:
    rng, text = random.Random(SEED), ""
    while len(text) < LENGTH:
        text += str(Story(rng))
    return text


if __name__ == "__main__":
    Path(__file__).with_suffix(".txt").write_text(sample(), encoding="utf-8", newline="\n")
