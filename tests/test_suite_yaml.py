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
        (b"", ": the file: null is not allowed: set it to a mapping"),
        (b"[a, b]", ': the file: ["a", "b"] is not allowed: set it to a mapping'),
        (b"protocol: [1", ", line 1, column 13: protocol: [1 ^: write it as in conf/suite/v1.yaml"),
        (b"protocol: a\x07b", " cannot be read as YAML: "),
        (b"protocol: \xff\xfe", " cannot be read as YAML: "),
        (b"protocol: !mine 3", "could not determine a constructor for the tag '!mine'"),
        (b"protocol: !!bool 3", " cannot be read as YAML: "),
        (b"protocol: 2026-13-01", "month must be in 1..12: write it as in"),
        (b"protocol: 2026-11-23", ": protocol=2026-11-23 is not allowed: set it to a mapping"),
        (b"protocol: &a [*a]", ": protocol=a list of 1 is not allowed: set it to a mapping"),
        (
            b"a: 1\nb:\n  - {c: 1, d: 2, c: 3}",
            '"c" is there 2 times, keep one in "<byte string>", line 3',
        ),
        (b"protocol: 3", ": protocol=3 is not allowed: set it to a mapping"),
        (
            b"a0: &a0 [1, 2, 3, 4, 5, 6, 7, 8, 9]\n"
            + b"".join(
                b"a%d: &a%d [%s]\n" % (n, n, b", ".join([b"*a%d" % (n - 1)] * 9))
                for n in range(1, 30)
            )
            + b"protocol: *a29",
            ": a0=[1, 2, 3, 4, 5, 6, 7, 8, 9] is not a key of the file: choose from ",
        ),
        (b"protocol: 0x" + b"f" * 6000, ": protocol=a number of more than 64 bits is not allowed"),
    ],
)
def test_what_is_no_suite(tmp_path: Path, content: bytes, said: str) -> None:
    assert said in refusal(tmp_path, content)


def test_a_key_beside_one_that_is_merged(tmp_path: Path) -> None:
    # That of the mapping counts; nothing is there twice.
    said = refusal(
        tmp_path, b"a: {b: &b {<<: &c {x: 1}, x: 2}}\nd: {<<: *b, <<: *c, x: 3}\ncommon: []"
    )
    assert "times" not in said


def test_a_folder_in_place_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "suite" / "mine.yaml").mkdir(parents=True)
    with pytest.raises(UsageError, match=r"mine\.yaml cannot be read as YAML: .* Is a directory"):
        load_suite("mine", tmp_path)


def test_the_exit_status(here: Here, tmp_path: Path) -> None:
    (suite_of_made(tmp_path) / "suite" / "mine.yaml").write_text("")
    for line in (["suite", "mine"], ["leaderboard", "suite=mine"]):
        assert_refused(
            here(*line, "--config-dir", str(tmp_path)), "mine.yaml: the file: null is not allowed"
        )


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


WORDS = "tasks.flipflop.words"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (without_rates, "protocol.rates is missing: add it as in conf/suite/v1.yaml"),
        (of("protocol", rate=3), "protocol.rate=3 is not a key of protocol: did you mean rates?"),
        (of("suite", model=[[["a"] * 99] * 99]), "model.0=a list of 99 is not allowed: set it to"),
        (of("suite", taks={}), "taks={} is not a key of the file: did you mean tasks?"),
        (of("suite", times=2), "times=2 is not a key of the file: did you mean "),
        (
            of("task", fit=1),
            "fit=1 is not a key of tasks.flipflop: did you mean fits?",
        ),
        (of("task", fits=2), "tasks.flipflop.fits=2 is not allowed: set it to a value of at most"),
        (
            of("task", words=["task=flipflop", "train.steps=9", "train.lr=0.1"]),
            f"{WORDS}.2: train.lr=0.1 is not used, as the suite sets rates, seeds",
        ),
        (of("suite", common=["seed.data=3"]), "common.0: seed.data=3 is not used, as the suite"),
        (of("suite", common=["eval.every=5"]), "common.0: eval.every=5 is not used"),
        (of("suite", model=["+seed=3"]), "model.0: +seed=3 is not used"),
        (of("suite", model=["~seed"]), "model.0: ~seed is not used"),
        (of("suite", controls={"lstm": ["seed=3"]}), "controls.lstm.0: seed=3 is not used"),
        (of("suite", tasks={}), "tasks={} is not allowed: set it to 1 values or more"),
        (of("suite", encodings=[]), "encodings=[] is not allowed: set it to 1 values or more"),
        (of("protocol", rates=[0.1]), "protocol.rates=[0.1] is not allowed: set it to 4"),
        (
            of("task", words=["task=flipflop"]),
            f"{WORDS}: no train.steps is not allowed: add train.steps=NUMBER",
        ),
        (of("task", words=["train.steps=1e3"]), f"{WORDS}: train.steps=1e3 is not allowed: add"),
        (of("task", words=["train.steps=0"]), f"{WORDS}: train.steps=0 is not allowed"),
        (
            of("protocol", tuning_seeds=[1000, 3]),
            "protocol.more_seeds: 4 scores seeds 0 to 3, and 3 is one of tuning_seeds: choose tun",
        ),
        (
            of("protocol", tuning_seeds=[7, 7]),
            "protocol.tuning_seeds: 7 is there 2 times: keep one",
        ),
        (
            of("protocol", tuning_seeds=[-1]),
            "protocol.tuning_seeds.0=-1 is not allowed: set it to",
        ),
        (of("protocol", rates=[0.1, 0.2, 0.3, 0.1]), "protocol.rates: 0.1 is there 2 times"),
        (of("protocol", rates=[0.1, 0.2, 0.3, 0]), "protocol.rates.3=0 is not allowed: set it to"),
        (of("protocol", seeds=-1), "protocol.seeds=-1 is not allowed: set it to a value of at"),
        (of("protocol", more_seeds=3), "protocol.more_seeds: 3 is not above protocol.seeds, 3: "),
        (of("protocol", longer=[1]), "protocol.longer.0=1 is not allowed: set it to a value of "),
        (of("protocol", longer=[2, 2]), "protocol.longer: 2 is there 2 times"),
        (
            of("protocol", more_seeds_for=["rpoe"]),
            "protocol.more_seeds_for: rpoe is neither of encodings nor of controls: did you mean r",
        ),
        (of("suite", encodings=["rope", "rope"]), "encodings: rope is there 2 times: keep one"),
        (of("suite", encodings=[b"rope"]), "Object of type bytes is not JSON serializable"),
        (of("suite", controls={"rope": []}), "controls.rope: rope is one of encodings too"),
        (of("suite", controls={False: []}), "controls.0=false is not allowed: set it to a te"),
        (
            of("task", generalises={"in_domain": 0.1}),
            "tasks.flipflop.generalises.in_domain: it is no split to generalise to",
        ),
        (twice, "is that of flipflop too (train.steps is not part of it), so a run could be of ei"),
    ],
)
def test_keys_that_are_not_right(tmp_path: Path, change: Change, said: str) -> None:
    assert said in refusal(tmp_path, change)


def test_a_split_that_the_task_does_not_have(tmp_path: Path) -> None:
    suite = load_suite("mine", suite_of_made(tmp_path))
    suite.check_splits("flipflop", ["sparse", "dense"])
    with pytest.raises(UsageError, match=r"suite mine: tasks\.flipflop\.generalises: the task has"):
        suite.check_splits("flipflop", ["sparser", "dense"])


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
