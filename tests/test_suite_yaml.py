"""A suite's yaml that is not right is refused in one sentence: the file, the key, the remedy."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from program import Here, assert_refused
from suites import suite_of_made

from pe_lab.cli.main import main
from pe_lab.common.errors import UsageError
from pe_lab.results.suite import load_suite
from pe_lab.results.suite_checks import check_splits

Change = Callable[[dict[str, Any]], object]


def refusal(folder: Path, content: bytes | Change) -> str:
    """Why a suite is refused: that of ``suite_of_made`` changed, or with this content."""
    path = suite_of_made(folder) / "suite" / "mine.yaml"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        suite = yaml.safe_load(path.read_text())
        content(suite)
        path.write_text(yaml.safe_dump(suite, sort_keys=False))
    with pytest.raises(UsageError) as refused:
        load_suite("mine", folder)
    message = str(refused.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", " is empty, and a suite is a mapping: write it as in conf/suite/v1.yaml"),
        (b"[a, b]", " is a list, and a suite is a mapping"),
        (b"protocol: [1", " is not valid YAML at line "),
        (b"protocol: a\x07b", " (the character #x07 at position 11): control characters are not a"),
        (b"protocol: \xff\xfe", " is not valid YAML"),
        (b"--- {}\n--- {}", " is not valid YAML at line 2, column 1: "),
        (b"protocol: !mine 3", "could not determine a constructor for the tag '!mine'"),
        (b"protocol: !!bool 3", " is not valid YAML: "),
        (b"protocol: 2026-13-01", " is not valid YAML: month must be in 1..12: correct it, or "),
        (b"protocol: 2026-11-23", ": protocol: 2026-11-23 is not allowed: YAML reads this one as "),
        (b"tasks: {a: [1, 2026-11-23]}", ": tasks.a.1: 2026-11-23 is not allowed"),
        (b"1: 2", ": 1: a key is a text, and YAML reads this one as 1: write it in quotes"),
        (b"tasks: {no: 2, b: 3}", ": tasks.False: a key is a text, and YAML reads this one as f"),
        (b"protocol: &a [*a]", " is nested too deep or contains itself"),
        (
            b"a: 1\nb:\n  - {c: 1, d: 2, c: 3}",
            '"c" is there twice in the mapping that begins at line 3',
        ),
        (
            b"a: 1\nb: 2\na: 3",
            ': "a" is there twice in the mapping that begins at line 1: keep one',
        ),
        (b"protocol: 3", "set it to a mapping"),
        (
            b"a0: &a0 [1, 2, 3, 4, 5, 6, 7, 8, 9]\n"
            + b"".join(
                b"a%d: &a%d [%s]\n" % (n, n, b", ".join([b"*a%d" % (n - 1)] * 9))
                for n in range(1, 30)
            ),
            " has more than 100,000 values, those of aliases counted each time: write it as in",
        ),
        (b"protocol: 0x" + b"f" * 6000, "a number of more than 64 bits: write a smaller one"),
    ],
)
def test_what_is_no_suite(tmp_path: Path, content: bytes, said: str) -> None:
    assert said in refusal(tmp_path, content)


def test_a_key_beside_one_that_is_merged(tmp_path: Path) -> None:
    # That of the mapping counts; nothing is there twice.
    said = refusal(
        tmp_path, b"a: {b: &b {<<: &c {x: 1}, x: 2}}\nd: {<<: *b, <<: *c, x: 3}\ncommon: []"
    )
    assert "twice" not in said


def test_a_folder_in_place_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "suite" / "mine.yaml").mkdir(parents=True)
    with pytest.raises(UsageError, match=r"mine\.yaml cannot be read \(Is a directory\): make it"):
        load_suite("mine", tmp_path)


def test_the_exit_status(here: Here, tmp_path: Path) -> None:
    (suite_of_made(tmp_path) / "suite" / "mine.yaml").write_text("")
    for line in (["suite", "mine"], ["leaderboard", "suite=mine"]):
        assert_refused(here(*line, "--config-dir", str(tmp_path)), "mine.yaml is empty")


def of(part: str, **values: Any) -> Change:
    """Sets keys of a part; of a task: of ``flipflop``."""

    def change(suite: dict[str, Any]) -> None:
        parts = {"suite": suite, "task": suite["tasks"]["flipflop"], "protocol": suite["protocol"]}
        parts[part].update(values)

    return change


def without_rates(suite: dict[str, Any]) -> None:
    del suite["protocol"]["rates"]


def twice(suite: dict[str, Any]) -> None:
    longer = {**suite["tasks"]["flipflop"], "words": ["task=flipflop", "train.steps=800"]}
    suite["tasks"]["longer"] = longer


STEPS = "tasks.flipflop.words: train.steps"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (without_rates, "protocol.rates is missing: add it as in conf/suite/v1.yaml"),
        (of("protocol", rate=3), "protocol.rate is not a key of a suite: did you mean rates?"),
        (of("suite", taks={}), "taks is not a key of a suite: did you mean tasks?"),
        (of("task", fit=1), "tasks.flipflop.fit is not a key of a suite: did you mean fits?"),
        (of("task", fits=2), "tasks.flipflop.fits: 2 is not allowed: set it to a value of at most"),
        (
            of("task", words=["task=flipflop", "train.steps=9", "train.lr=0.1"]),
            "tasks.flipflop.words: train.lr=0.1 is not used, as the suite sets rates, seeds",
        ),
        (of("suite", common=["seed.data=3"]), "common: seed.data=3 is not used, as the suite sets"),
        (of("suite", common=["eval.every=5"]), "common: eval.every=5 is not used, as the suite"),
        (of("suite", model=["+seed=3"]), "model: +seed=3 is not used"),
        (of("suite", model=["~seed"]), "model: ~seed is not used"),
        (of("suite", controls={"lstm": ["seed=3"]}), "controls.lstm: seed=3 is not used"),
        (of("suite", tasks={}), "tasks: {} is not allowed: it has 0 and needs 1 or more"),
        (of("suite", encodings=[]), "encodings: [] is not allowed: it has 0 and needs 1 or more"),
        (of("protocol", rates=[0.1]), "protocol.rates: [0.1] is not allowed: it has 1 and needs 4"),
        (of("task", words=["task=flipflop"]), f"{STEPS} is missing: add train.steps=NUMBER"),
        (of("task", words=["train.steps=1e3"]), f"{STEPS}=1e3 is not allowed: set it to a whole"),
        (of("task", words=["train.steps=0"]), f"{STEPS}=0 is not allowed"),
        (
            of("protocol", tuning_seeds=[1000, 3]),
            "protocol.tuning_seeds: 3 is scored too (seeds 0 to 3): choose seeds of 4 or more",
        ),
        (
            of("protocol", tuning_seeds=[7, 7]),
            "protocol.tuning_seeds: 7 is there 2 times: keep one",
        ),
        (
            of("protocol", tuning_seeds=[-1]),
            "protocol.tuning_seeds.0: -1 is not allowed: set it to",
        ),
        (of("protocol", rates=[0.1, 0.2, 0.3, 0.1]), "protocol.rates: 0.1 is there 2 times"),
        (of("protocol", seeds=-1), "protocol.seeds: -1 is not allowed: set it to a value greater"),
        (of("protocol", more_seeds=3), "protocol.more_seeds: 3 is not above protocol.seeds, 3: "),
        (of("protocol", longer=[1]), "protocol.longer.0: 1 is not allowed: set it to a value of "),
        (of("protocol", longer=[2, 2]), "protocol.longer: 2 is there 2 times"),
        (
            of("protocol", more_seeds_for=["rpoe"]),
            "protocol.more_seeds_for: rpoe is neither of encodings nor of controls: did you mean r",
        ),
        (of("suite", encodings=["rope", "rope"]), "encodings: rope is there 2 times: keep one"),
        (of("suite", controls={"rope": []}), "controls.rope: rope is one of encodings too"),
        (
            of("task", generalises={"in_domain": 0.1}),
            "tasks.flipflop.generalises: in_domain is no split to generalise to",
        ),
        (twice, "is that of flipflop too, and a run could be of either (train.steps is not part"),
    ],
)
def test_keys_that_are_not_right(tmp_path: Path, change: Change, said: str) -> None:
    assert said in refusal(tmp_path, change)


def test_a_split_that_the_task_does_not_have(tmp_path: Path) -> None:
    suite = load_suite("mine", suite_of_made(tmp_path))
    check_splits("mine", "flipflop", suite.tasks["flipflop"], ["sparse", "dense"])
    with pytest.raises(UsageError, match=r"suite mine: tasks\.flipflop\.generalises: the task has"):
        check_splits("mine", "flipflop", suite.tasks["flipflop"], ["sparser", "dense"])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("suite/v1", "suite/v1.yaml is not used: suite/v1.yaml of pe-lab has the same name"),
        ("pe/rope", "pe/rope.yaml is not used: pe/rope.yaml of pe-lab has the same name"),
        ("pe/lstm", "pe/lstm.yaml: lstm is a control of the suite v1, which trains that and not"),
    ],
)
def test_names_that_are_taken(here: Here, tmp_path: Path, name: str, said: str) -> None:
    path = tmp_path / f"{name}.yaml"
    path.parent.mkdir()
    path.write_text("_target_: mine.Mine\n")
    for line in (["suite", "v1", "dry=true"], ["leaderboard"]):
        ended = here(*line, "--config-dir", str(tmp_path))
        assert_refused(ended, said, "rename this file")


def test_no_new_encoding_is_named_as_a_control(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new", "encoding", "lstm"]) == UsageError.exit_status
    said = "new encoding lstm: lstm is a control of a suite; choose another name"
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
