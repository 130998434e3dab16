"""A wrong line ends in one sentence with status 2, before anything is written; null keys."""

import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import yaml
from made import made
from numbers_task import Numbers
from program import ROOT, Here, assert_refused, checked_jobs, succeeded, summary, the_run, tiny
from trainers import planned

from pe_lab.cli.main import COMMANDS
from pe_lab.config.schema import check, to_dict
from pe_lab.core.rng import generator
from pe_lab.experiment.run import find_folder
from pe_lab.train import plan as planning
from pe_lab.train.plan import make_plan

FILES = {
    "mine/task/broken.yaml": "_target_: pe_lab.tasks.flipflop.FlipFlop\nlength: [16\n",
    "twice/pe/rope.yaml": "base: 5\n",
    "mine/pe/syntax.yaml": "_target_: bad_syntax.PE\n",
    "mine/bad_syntax.py": "class PE(\n",
    "config.json": '{"model_type": "${oc.env:HOME}"}',
    "theirs.jsonl": '{"pe_lab_data": "${oc.env:HOME}", "vocab": [], "in_order": false}\n{}\n',
    "claims.yaml": "{suite: v2, claims: '${oc.env:HOME}'}",
}
# The words, and what the sentence holds.
BAD = {
    "a choice": (["pe=coep"], "unknown pe=coep: did you mean cope?"),
    "a preset": (["preset=flipflip"], "did you mean flipflop?"),
    "a key of a closed group": (["train.stepz=3"], "did you mean train.steps?"),
    "a key without its group": (["lr=1"], "did you mean train.lr?"),
    "a key of an open group": (["pe=rope", "pe.bse=3"], "did you mean pe.base?"),
    "a key added to a class": (["pe=rope", "+pe.bse=3"], "did you mean pe.base?"),
    "a literal": (["train.schedule=cosin"], "did you mean cosine?"),
    "text for a number": (["train.lr=fast"], "train.lr=fast is not allowed"),
    "true for a number": (["train.steps=true"], "train.steps=true is not allowed"),
    "a negative number": (["train.steps=-1"], "greater than 0"),
    "a key of a split": (["task.splits.sparse.p=1"], "task.splits.sparse.p"),
    "a split's vocabulary": (
        ["task=modular", "task.splits.other.m=7", "task.max_length=9"],
        "vocab",
    ),
    "a launcher of one run": (["hydra/launcher=joblib"], "add -m"),
    "a split to remove": (["~task.splits.spars"], "only a split, a file or a layer can be removed"),
    "a key to remove": (["~train.steps"], "only a split, a file or a layer can be removed"),
    "a part": (["pe=combined", "pe.parts=[cope,roppe]"], "did you mean rope?"),
    "several without -m": (["pe=rope,cope"], "add -m"),
    "a key twice": (["pe=rope", "seed=0", "seed=1"], "seed is given 2 times"),
    "a word": (["rope"], "did you mean pe=rope?"),
    "a command": (["resluts"], "did you mean results?"),
    "a flag": (["--multirum", "pe=rope"], "--multirum"),
    "quotes": (["train.lr='3"], "is not understood"),
    "a sweep of nothing": (["-m", "seed=range(0,0)"], "has no values"),
    "a job of a sweep": (["-m", "pe=rope,roppe"], "did you mean rope?"),
    "broken yaml": (["--config-dir", "mine", "task=broken"], "broken.yaml"),
    "broken code": (["--config-dir", "mine", "pe=syntax"], "SyntaxError"),
    "a packaged name": (["--config-dir", "twice", "pe=rope"], "twice/pe/rope.yaml has the name"),
    "no folder": (["--config-dir", "nowhere", "pe=rope"], "is not a folder"),
    "heads": (["model.n_heads=3"], "d_model=16"),
    "heads of layers that share from the second on": (
        [
            "pe=combined",
            "pe.parts=[{pe: rope, layers: [0]},{pe: tape, layers: [1,2]}]",
            "model.n_layers=3",
            "model.layers={1: {n_heads: 1}}",
        ],
        "n_heads cannot differ",
    ),
    "a short table": (["pe=learned", "pe.max_len=20"], "20 positions"),
    "a large table": (["pe=learned", "pe.max_len=100000000000"], "set smaller ones"),
    "a large model": (["model.d_model=10000000"], "GiB"),
    "a wide feed-forward": (["model.d_ff=100000000"], "GiB"),
    "a long split": (["task.splits.sparse.length=3000000000"], "GiB"),
    "a long training set": (["task.train_sequences=3000000000"], "GiB"),
    "a large batch": (["train.batch_size=3000000000"], "GiB"),
    "a long file": (["show", "task=flipflop", "n=3000000000", "to=a.jsonl"], "GiB"),
    # What others wrote is shown as it is, never resolved.
    "a config.json": (["check", "hf=config.json", "pe=rope"], "${oc.env:HOME}"),
    "their sequences": (["task.files={sparse: theirs.jsonl}"], "${oc.env:HOME}"),
    "their claims": (["leaderboard", "claims=claims.yaml"], "${oc.env:HOME}"),
    "a length": (["train.length=7"], "train.length=7"),
    "a command after a flag": (["--config-dir", "mine", "check"], "a command is the first word"),
}


@pytest.mark.parametrize(("words", "said"), BAD.values(), ids=BAD)
def test_one_sentence_and_nothing_done(
    here: Here, tmp_path: Path, words: list[str], said: str
) -> None:
    if words[0] == "check" and find_spec("transformers") is None:
        pytest.skip("needs the extra hf")
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert_refused(here(*(words if words[0] in ("resluts", *COMMANDS) else tiny(*words))), said)
    assert not (tmp_path / "runs").exists()


# The line of a command, and what the sentence holds.
WRONG = [
    ("results by=pee", "pee"),
    ("results splits=sparze", "did you mean sparse?"),
    ("results metric=eror", "did you mean error?"),
    ("results sort=sparce", "did you mean sparse?"),
    ("results format=cvs", "did you mean csv?"),
    ("results threshold=5", "threshold=5"),
    ("results to=x.csv", "give a new FILE.parquet"),
    ("results to=none/x.parquet", "in a folder"),
    ("results by=not_finite", "none of the runs has a key not_finite"),
    ("results by=splits", "none of the runs has a key splits"),
    ("report runs_dir=nowhere", "nowhere"),
    ("report format=svg title=mine", "leave title and inspect out"),
    ("inspect run=", "no run is named"),
    ("report pe=none", "no runs in runs as selected"),
    ("report otu=here", "none of the runs has a key otu: choose from format, to,"),
    ("report to", "to"),
    ("compare a=cope", "a and b go together"),
    ("compare a=cope b=cope", "the same encoding"),
    ("compare taks=flipflop", "did you mean task"),
    ("compare a=cope b=conv_only", "no finished run of pe=cope"),
    ("leaderboard task=flip", "did you mean flipflop"),
    ("leaderboard pe=copee", "did you mean cope"),
    ("leaderboard suite=v1", "unknown suite v1"),
    ("leaderboard view=tunin", "did you mean tuning"),
    ("leaderboard claims=none.yaml", "there is no none.yaml"),
    ("leaderboard to=x.txt", "give a new FILE.html"),
    ("leaderboard figure=lengths", "give a new FILE.pdf"),
    ("leaderboard figure=lengths to=x.html", "give a new FILE.pdf"),
    ("leaderboard to=none/x.html", "in a folder"),
    ("leaderboard claims=true to=x.html", "leave to out: claims"),
    ("leaderboard claims=true task=recall thresholds=2", "leave task, thresholds out"),
    ("leaderboard figure=lengths task=recall to=x.svg", "leave task out: figure"),
    ("leaderboard task=recall pe=cope to=x.parquet", "leave task, pe out: parquet"),
    ("leaderboard suite=quick claims=true", "there is no quick.claims.yaml; claims=FILE.yaml"),
    ("suite v0", "unknown suite v0: choose from hybrids, quick, v2"),
    ("suite", "suite needs the name of a suite"),
    ("suite v2 tasks=flip", "tasks=flip: did you mean flipflop?"),
    ("suite v2 phases=scores", "phases=scores: did you mean score?"),
    ("suite v2 pe=copee", "pe=copee: did you mean cope?"),
    ("suite v2 train.steps=3", "suite train.steps=3: "),
    ("suite v2 force=true", "suite force=true: "),
    ("check pe=coop", "did you mean"),
    ("check pe=cope pe.npso=3", "did you mean pe.npos?"),
    ("check pe=cope,rope pe.base=3", "pe.base"),
    ("check pe=cope trian.steps=3", "trian.steps"),
    ("check pe=cope model.n_heads=3", "keys of model have no part in it"),
    ("eval run=flipflop/rope/seed0 k=4", "pe="),
    ("check task=copi", "did you mean copy?"),
    ("check --config-dir none", "none"),
    ("check --config-dir .", ""),
    ("check cope", "cope"),
    ("show task=flipflop lenght=3", "did you mean task.length?"),
    *(
        (f"new encoding {name}", name)
        for name in ("rope", "json", "class", "my-own", "../up", "Mine")
    ),
    ("new encodings mine", "encodings"),
    ("new encoding", ""),
    ("new", ""),
    ("new encoding mine too=x", "did you mean to?"),
    ("dashboard mode=onlin", "did you mean online?"),
    ("dashboard nam=x", "did you mean name?"),
    ("dashboard where=seed>1", ""),
    ("dashboard state=failed", ""),
    ("dashboard pe=alibi", "alibi"),
    ("dashboard to=x.json", "to="),
]


@pytest.mark.parametrize(("line", "said"), WRONG)
def test_a_wrong_word_of_a_command_beside_runs(
    here: Here, tmp_path: Path, line: str, said: str
) -> None:
    for task in ("flipflop", "copy"):
        made("rope", task=task)
    before = sorted(tmp_path.rglob("*"))
    assert_refused(here(*line.split()), said)
    assert sorted(tmp_path.rglob("*")) == before


def test_debug_adds_the_traceback(here: Here) -> None:
    ended = here(*tiny("pe=rop", "debug=true"))
    assert (ended.status, "Traceback" in ended.err) == (2, True)


def test_too_long_a_split_can_be_left_out(here: Here, tmp_path: Path) -> None:
    ended = succeeded(here(*tiny("pe=learned", "pe.max_len=32", "eval.skip_too_long=true")))
    result = summary(the_run(tmp_path / "runs"))
    assert result["too_long"] == {"long_x4": 63, "sparse_x4": 63, "dense_x4": 63}
    assert result["config"]["eval"]["skip_too_long"] is True
    assert not [key for key in result["metrics"] if "_x4" in key]
    assert "long_x4" in ended.out
    # Where no split is too long, the key changes nothing.
    skipping = planned("pe=rope", "eval.skip_too_long=true")
    assert find_folder(skipping).path == find_folder(planned("pe=rope")).path


PAGE = Path(ROOT, "docs", "aliases.md").read_text("utf-8")
LINES = re.findall(r"^\|[^|]+\|[^|]*\| `([^`]+)` \|", PAGE, re.MULTILINE)
LINES += [
    *re.findall(r"`(pe=[^`]+)` without", PAGE),
    # Layers of different heads, which share nothing.
    "pe=combined pe.parts=[rope,alibi] 'model.layers={0: {n_heads: 1}}'",
]


@pytest.mark.parametrize("line", LINES)
def test_every_line_of_the_aliases_is_a_model(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = shlex.split(line)
    keys = {word.partition("=")[0] for word in changed}
    words = [word for word in tiny("model.n_layers=2") if word.partition("=")[0] not in keys]
    if "coupled" in line or "rows" in line:
        monkeypatch.setattr(planning, "build_task", lambda section: Numbers(splits={}))
    (job,) = checked_jobs([*words, *changed])
    made = make_plan(job)
    data = made.task.sample(generator(0), 2)
    pos = made.positions.of_batch(generator(1), data, training=True)
    assert made.model()(torch.from_numpy(data.tokens), torch.from_numpy(pos)).isfinite().all()


def test_glob_is_a_list_of_files() -> None:
    jobs = checked_jobs(["-m", *tiny("pe=glob(rope*)")])
    assert [job.names["pe"] for job in jobs] == ["rope", "rope_2d"]


def with_null(kind: str) -> list[str]:
    """The yamls of a group in which a key is null."""
    yamls = sorted((ROOT / "conf" / kind).glob("*.yaml"))
    return [path.stem for path in yamls if None in yaml.safe_load(path.read_text()).values()]


@pytest.mark.parametrize(
    "words",
    [
        *([f"pe={name}"] for name in with_null("pe")),
        *([f"pe={name}", "pe.logn=test"] for name in ("rope", "yarn", "self_extend")),
        ["pe=deberta", "pe.absolute_layers=1"],
        ["pe=normalized", "pe.scale=sequence"],
        ["pe=combined", "pe.parts=[{pe: yarn, layers: [0]}, cope]"],
        ["model=linear_attention", "pe=none"],
        ["model=encoder_decoder", "pe=none", "task=reverse"],
        ["model.activation=swiglu", "pe=rope"],
    ],
    ids=" ".join,
)
def test_null_stands_for_a_value_that_makes_the_same_run(words: list[str]) -> None:
    one = planned(*words, "model.n_layers=2")
    config = dict(one.resolved)
    other = make_plan(check(config, config.pop("names")))
    assert find_folder(one).path == find_folder(other).path
    assert other.null_values == {}
    ours, theirs = one.model(), other.model()
    for kind in ("named_parameters", "named_buffers"):
        pairs = zip(getattr(ours, kind)(), getattr(theirs, kind)(), strict=True)
        assert all(a == b and torch.equal(x, y) for (a, x), (b, y) in pairs)


def test_the_configuration_is_validated_to_itself() -> None:
    config = planned("pe=combined", "pe.parts=[cope,{pe: rope, base: 500}]", "seed.init=1").config
    values = to_dict(config)
    assert to_dict(check(values, values.pop("names"))) == to_dict(config)
    assert config.pe["parts"][1]["base"] == 500.0
    assert isinstance(config.pe["parts"][1]["base"], float)


SHORT = ("train.steps=2", "train.warmup=0")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["train.warmup=2"], "train.warmup=2 does not end before the last step, train.steps=2"),
        (["pe=cope", "positions=randomized"], "positions=randomized has no effect on pe=cope"),
        (["pe=yarn"], "pe=yarn is made for a trained rope at test time"),
        (["pe=rope", "positions=randomized"], None),
    ],
)
def test_a_sweep_says_once_what_gives_another_number(
    here: Here, words: list[str], sentence: str | None
) -> None:
    given = [word for word in SHORT if word.partition("=")[0] not in str(words)]
    line = ["-m", *tiny(*words, *given, "seed=0,1")]
    out = " ".join(succeeded(here(*line)).out.split())
    assert out.count(sentence) == 1 if sentence else "no effect" not in out
