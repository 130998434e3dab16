"""Suites (conf/suite/) are frozen: their tasks compose to what results were made with."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from program import Here, assert_refused
from suites import suite_of_made, tiny_suite

from pe_lab.cli.main import main
from pe_lab.cli.train import checked_jobs
from pe_lab.config.choices import choices
from pe_lab.config.schema import plain
from pe_lab.core.errors import UsageError
from pe_lab.core.test_time import TEST_TIME
from pe_lab.results.suite import DEFAULT_THRESHOLD, load_suite, task_digest, threshold
from pe_lab.train.plan import build_task

SUITE = load_suite("v1")


def composed(task: str, entry: str, *words: str) -> dict[str, Any]:
    """As recorded; ``words`` replace those of the suite with the same key."""
    keys = {word.partition("=")[0] for word in words}
    of_suite = (*SUITE.common, *SUITE.tasks[task].words, *SUITE.words(entry))
    kept = [word for word in of_suite if word.partition("=")[0] not in keys]
    (job,) = checked_jobs([*kept, *words])
    return plain(job)


def test_v1_is_frozen() -> None:
    """A change of the file is another suite: its shipped results would not be of it."""
    assert SUITE.digest == "38c43db3"


@pytest.mark.parametrize("task", SUITE.tasks)
def test_a_task_composes_to_what_it_was(task: str) -> None:
    config = composed(task, "none")
    contents = build_task(config["task"]).contents()
    assert task_digest(config, contents) == SUITE.tasks[task].digest
    assert set(SUITE.tasks[task].generalises) <= set(config["task"]["splits"])


def test_entry_rate_seed_and_steps_are_not_of_the_task() -> None:
    of_rope = composed("flipflop", "rope", "train.lr=0.001", "seed=7")
    of_rope["train"]["steps"] *= 2
    assert SUITE.task_of(of_rope) == "flipflop"
    assert SUITE.task_of(composed("flipflop", "lstm")) == "flipflop"
    assert SUITE.task_of(composed("flipflop", "none", "positions=offset")) == "flipflop"


@pytest.mark.parametrize(
    "word", ["task.length=32", "train.batch_size=16", "train.clip=null", "eval.sequences=10"]
)
def test_other_tasks_training_and_measuring_are_of_no_task(word: str) -> None:
    assert SUITE.task_of(composed("flipflop", "none", word)) is None


def test_every_encoding_that_trains_is_an_entry() -> None:
    # Of the newest suite; `combined` is made of others.
    assert set(load_suite("v2").encodings) == set(choices("pe")) - TEST_TIME - {"combined"}
    assert set(SUITE.protocol.more_seeds_for) <= set(SUITE.encodings) <= set(choices("pe"))
    assert not set(range(SUITE.protocol.more_seeds)) & set(SUITE.protocol.tuning_seeds)


def test_thresholds() -> None:
    assert threshold("flipflop", "in_domain") == 0.01
    assert threshold("flipflop", "sparse_x4") == 0.02
    assert threshold("flipflop", "mine") == threshold("mine", "long_x2") == DEFAULT_THRESHOLD
    assert SUITE.tasks["text"].threshold("repeated_x2") is None


def test_an_unknown_suite() -> None:
    with pytest.raises(UsageError, match="unknown suite v0: choose from quick, v1, v2"):
        load_suite("v0")


def test_a_suite_of_the_users(here: Here, tmp_path: Path) -> None:
    """A threshold may be 1."""
    line = ["leaderboard", *tiny_suite(tmp_path, generalises={"sparse": 1.0})[2:4], "suite=tiny"]
    assert here(*line).status == 0
    assert_refused(
        here(*line, "thresholds=2"), "thresholds=2 takes that of flipflop, sparse", "to 2"
    )


@pytest.mark.parametrize(
    ("written", "said"),
    [
        *(
(digest, f"written.yaml: tasks.flipflop.digest={read} is not allowed: write it in quotes")
            for digest, read in (
                ("12345678", "12345678"), ("01234567", "342391"), ("1.5e+3", "1500.0"),
            )
        ),
        ("[a]", 'tasks.flipflop.digest=["a"] is not allowed'),
    ],
)  # fmt: skip
def test_a_digest_without_quotes(here: Here, tmp_path: Path, written: str, said: str) -> None:
    """YAML reads one of digits alone as a number, from which not every digest can be recovered."""
    path = tmp_path / "mine" / "suite" / "tiny.yaml"
    line = ["leaderboard", *tiny_suite(tmp_path, digest="QUOTED")[2:4]]
    text = path.read_text()
    # Each has its own name, as a suite is read once in a process.
    for name, digest in (("written", written), ("quoted", f"'{written}'")):
        path.with_name(f"{name}.yaml").write_text(text.replace("QUOTED", digest))
    assert_refused(here(*line, "suite=written"), *said.split(": write it "))
    assert here(*line, "suite=quoted").status == 0


def test_the_shipped_runs_of_fope_are_those_that_v1_composes(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are older than ``pe.fourier_norm``, whose default is another one."""
    words = ["suite", "v1", "tasks=majority", "pe=fope", "dry=true"]
    assert "nothing is missing" in here(*words).out
    monkeypatch.setattr("pe_lab.results.suite.PINNED", {})
    assert "nothing is missing" not in here(*words).out


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
        (b"protocol: [1", ", line 1, column 13: protocol: [1 ^: write it as in conf/suite/v2.yaml"),
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


def misspelt_rates(suite: dict[str, Any]) -> None:
    """Rates are missing, too; the name to correct is what is said."""
    suite["protocol"]["rate"] = suite["protocol"].pop("rates")


def twice(suite: dict[str, Any]) -> None:
    longer = {**suite["tasks"]["flipflop"], "words": ["task=flipflop", "train.steps=800"]}
    suite["tasks"]["longer"] = longer


WORDS = "tasks.flipflop.words"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (without_rates, "protocol.rates is missing: add it as in conf/suite/v2.yaml"),
        (misspelt_rates, "is not a key of protocol: did you mean rates?"),
        (of("protocol", rate=3), "protocol.rate=3 is not a key of protocol: did you mean rates?"),
        (of("suite", model=[[["a"] * 99] * 99]), "model.0=a list of 99 is not allowed: set it to"),
        (of("suite", taks={}), "taks={} is not a key of the file: did you mean tasks?"),
        (of("suite", times=2), "times=2 is not a key of the file: did you mean "),
        (of("task", fit=1), "fit=1 is not a key of tasks.flipflop: did you mean fits?"),
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
        ("pe/lstm", "pe/lstm.yaml: lstm is a control of the suite v2, which trains that and not"),
    ],
)
def test_names_that_are_taken(here: Here, tmp_path: Path, name: str, said: str) -> None:
    path = tmp_path / f"{name}.yaml"
    path.parent.mkdir()
    path.write_text("_target_: mine.Mine\n")
    for line in (["suite", "v2", "dry=true"], ["leaderboard"]):
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
