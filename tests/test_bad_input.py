"""Bad input is refused in one sentence with value, key, limit and remedy, before any work."""

import re
import shlex
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import yaml
from bad_words import ALWAYS, BAD
from made import made
from numbers_task import Numbers
from program import ROOT, Here, assert_refused, succeeded, summary, the_run, tiny
from trainers import planned

from pe_lab.cli.train import checked_jobs
from pe_lab.config.choices import choices
from pe_lab.config.schema import check, to_dict
from pe_lab.core.rng import generator
from pe_lab.experiment.load_run import load
from pe_lab.experiment.run import folder_of
from pe_lab.pe.base import AttentionInputs, Dims
from pe_lab.pe.fox import FoX
from pe_lab.store.run_folder import run_folders
from pe_lab.train import plan as planning
from pe_lab.train.plan import plan

FILES = {
    "bad.txt": "w1i0i1r1\nw0xxi1r0\n",
    "conf/task/broken.yaml": (
        "_target_: pe_lab.tasks.flipflop.FlipFlop\nlength: [16\np_ignore: 0.5\n"
    ),
    "conf/task/bad_file.yaml": (
        "_target_: pe_lab.tasks.flipflop.FlipFlop\n"
        "length: 8\np_ignore: 0.5\nsplits: {}\nfiles: {in_domain: bad.txt}\n"
    ),
    "conf/pe/no_target.yaml": "base: 3\n",
    "conf/pe/syntax.yaml": "_target_: bad_syntax.PE\n",
    "conf/pe/name.yaml": "_target_: bad_name.PE\n",
    "conf/pe/raising.yaml": "_target_: raising.PE\n",
    "far.py": (
        "from pe_lab.pe.positions import Sequential\n"
        "class Far(Sequential):\n"
        "    def limit(self, length, *, training):\n"
        "        return length if training else 3 * length\n"
    ),
    "bad_syntax.py": "class PE(\n",
    "bad_name.py": "x = undefined\n",
    "raising.py": (
        "from pe_lab.pe.base import PositionalEncoding\n"
        "class PE(PositionalEncoding):\n"
        "    def __init__(self, dims, *args, **kwargs):\n"
        "        raise KeyError('lost')\n"
    ),
}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "conf/pe/blob.yaml").write_bytes(b"\xff\xfe\x00\xd8")


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        pytest.param(*case, id=name, marks=[] if name in ALWAYS else [pytest.mark.extended])
        for name, case in BAD.items()
    ],
)
def test_one_sentence_and_nothing_done(
    here: Here, tmp_path: Path, files: None, words: list[str], parts: list[str]
) -> None:
    if "device=cuda" in words and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    verb = words[0] in ("results", "list", "resluts")
    assert_refused(here(*(words if verb else tiny(*words))), *parts)
    assert not list(tmp_path.glob("runs/*/*"))


@pytest.mark.parametrize("yes", ["true", "True", "yes", "1"])
def test_debug_adds_the_traceback(here: Here, yes: str) -> None:
    ended = here(*tiny("pe=rop", f"debug={yes}"))
    assert (ended.status, "Traceback" in ended.err) == (2, True)
    assert ended.err.splitlines()[-1].startswith("pe-lab: unknown encoding pe=rop")


def test_too_long_a_split_can_be_left_out(here: Here, tmp_path: Path) -> None:
    ended = succeeded(here(*tiny("pe=learned", "pe.max_len=32", "eval.skip_too_long=true")))
    result = summary(the_run(tmp_path / "runs"))
    assert result["too_long"] == {"long_x4": 63, "sparse_x4": 63, "dense_x4": 63}
    assert result["splits"]["long_x4"] is None
    assert not [key for key in result["metrics"] if "_x4" in key]
    assert re.search(r"long_x4 .*not applicable .*needs 63", ended.out)
    assert re.search(r"learned .*n/a", here("results").out)


def test_in_domain_is_never_left_out(here: Here, files: None) -> None:
    words = tiny("pe=learned", "pe.max_len=40", "eval.skip_too_long=true")
    said = "pe.max_len=40 is too short: in_domain needs 45 positions; raise pe.max_len to 189"
    assert_refused(here(*words, "positions._target_=far.Far"), said)


PAGE = Path(ROOT, "docs", "aliases.md").read_text("utf-8")
LINES = re.findall(r"^\|[^|]+\|[^|]*\| `([^`]+)` \|", PAGE, re.MULTILINE)
LINES += re.findall(r"`(pe=[^`]+)` without", PAGE)
# Each row of the table has one, below its head.
assert len(LINES) == len(re.findall(r"^\| ", PAGE, re.MULTILINE))


@pytest.mark.parametrize("line", LINES)
def test_every_line_is_a_model(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = shlex.split(line)
    keys = {word.partition("=")[0] for word in changed}
    words = [word for word in tiny("model.n_layers=2") if word.partition("=")[0] not in keys]
    if "coupled" in line or "rows" in line:
        monkeypatch.setattr(planning, "build_task", lambda section: Numbers(splits={}))
    (job,) = checked_jobs([*words, *changed])
    made = plan(job)
    data = made.task.sample(generator(0), 2)
    pos = made.positions.of_batch(generator(1), data, training=True)
    hidden = made.model()(torch.from_numpy(data.tokens), torch.from_numpy(pos))
    assert hidden.shape == (*data.tokens.shape, 16)
    assert hidden.isfinite().all()


def test_the_gates_of_cable_are_those_of_fox() -> None:
    """log sigmoid(-z) = -softplus(z): FoX with its map negated."""
    torch.manual_seed(0)
    fox = FoX(Dims(d_model=8, n_heads=2, n_layers=1, vocab_size=3, train_len=6, max_len=6))
    x = torch.randn(1, 6, 8)
    z = F.linear(x, fox.gate.weight, fox.gate.bias)
    with torch.no_grad():
        fox.gate.weight.neg_()
        fox.gate.bias.neg_()
    q, pos = torch.randn(1, 2, 6, 4), torch.arange(6)[None]
    found = fox.logits(torch.zeros(1, 2, 6, 6), q, q, AttentionInputs(x, q, q, q, pos, pos))
    for i in range(6):
        for j in range(i + 1):
            expected = -F.softplus(z[0, j + 1 : i + 1]).sum(0)
            torch.testing.assert_close(found[0, :, i, j], expected)


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
        *(
            [f"model={name}", "pe=none"]
            for name in with_null("model")
            # Those whose null is a width.
            if name in ("transformer", "linear_attention")
        ),
        ["model=encoder_decoder", "pe=none", "task=reverse"],
        ["model.activation=swiglu", "pe=rope"],
    ],
    ids=" ".join,
)
def test_null_stands_for_a_value_that_makes_the_same_run(words: list[str]) -> None:
    words = [*words, "model.n_layers=2"]
    one = planned(*words)
    config = one.resolved
    other = plan(check(config, config.pop("names")))
    assert folder_of(one).path == folder_of(other).path
    assert other.null_values == {}
    ours, theirs = one.model(), other.model()
    state = ours.state_dict()
    assert state.keys() == theirs.state_dict().keys()
    assert all(torch.equal(x, theirs.state_dict()[name]) for name, x in state.items())
    buffers = dict(theirs.named_buffers())
    assert all(torch.equal(x, buffers[name]) for name, x in ours.named_buffers())


@pytest.mark.parametrize(
    ("words", "left"),
    [
        ("pe=cope", set()),
        ("pe=yarn", {"pe.logn_clip"}),
        ("pe=yarn pe.logn=train", set()),
        ("pe=path pe.rank=null", {"pe.rank"}),
        ("pe=dynamic_ntk", {"pe.k", "pe.logn_clip"}),
    ],
)
def test_the_keys_that_stay_null(words: str, left: set[str]) -> None:
    config = to_dict(planned(*words.split()).resolved)
    null = {f"{g}.{k}" for g in ("pe", "model") for k, v in config[g].items() if v is None}
    assert null == left | {f"model.{key}" for key in ("conv", "logn", "normalizer", "window")}


def test_null_and_its_value_find_the_same_run(here: Here, tmp_path: Path) -> None:
    line = tiny("pe=yarn", "train.steps=2")
    assert here(*line).status == 0
    folder = the_run(tmp_path / "runs")
    found = summary(folder)
    k = found["config"]["pe"]["k"]
    assert k == yaml.safe_load((folder / "config.yaml").read_text())["pe"]["k"] > 1
    assert found["null_keys"] == ["model.d_ff", "pe.k"]
    assert "is finished already" in here(*line, f"pe.k={k:g}").out
    loaded = load(folder).plan
    assert loaded.config.pe["k"] is None
    assert loaded.resolved.pe["k"] == k


SHORT = ("train.steps=2", "train.warmup=0")


def said(here: Here, *words: str) -> str:
    ended = succeeded(here(*words))
    return " ".join(ended.out.split())


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["train.patience=3"], "train.patience=3 has no effect with train.stop_below=null"),
        (["train.patience=3", "train.stop_below=0.1", "eval.every=1"], None),
        (
            ["train.stop_below=0.1", "eval.every=2"],
            "train.stop_below=0.1 has no effect with eval.every=2: nothing is measured before the "
            "last step, train.steps=2",
        ),
        (["train.warmup=2"], "train.warmup=2 does not end before the last step, train.steps=2"),
        (["pe=cope", "positions=randomized"], "positions=randomized has no effect on pe=cope"),
        (["pe=rope", "positions=randomized"], None),
        ([], None),
    ],
)
def test_a_run_says_which_setting_has_no_effect(
    here: Here, words: list[str], sentence: str | None
) -> None:
    out = said(here, *tiny(*words, *(w for w in SHORT if w.partition("=")[0] not in str(words))))
    if sentence is None:
        assert "no effect" not in out
    else:
        assert out.count(sentence) == 1


def test_a_sweep_says_it_once_for_all_runs(here: Here) -> None:
    line = ["-m", *tiny("train.steps=2", "train.warmup=5", "train.patience=3", "seed=0,1,2")]
    out = said(here, *line)
    assert out.count("the learning rate never reaches train.lr") == 1
    assert out.count("train.patience=3 has no effect") == 1
    assert "never reaches" not in said(here, *line)


def test_a_finished_run_names_the_settings_that_it_ignores(here: Here) -> None:
    line = tiny(*SHORT)
    assert "made with" not in said(here, *line)
    assert "no effect" not in said(here, *line)
    other = tiny(*SHORT, "train.log_every=2", "train.checkpoint_every=9", "eval.every=1")
    assert (
        "is finished already, made with train.log_every=1, train.checkpoint_every=7, eval.every=10,"
        " so train.log_every=2, train.checkpoint_every=9, eval.every=1 have no effect; force=true"
    ) in said(here, *other)
    assert (
        "1 of the finished runs made with train.log_every=1, so train.log_every=2 has no effect"
    ) in said(here, "-m", *tiny(*SHORT, "train.log_every=2", "seed=0,1"))


def test_skipping_long_splits_is_another_run_only_where_one_is_skipped(
    here: Here, tmp_path: Path
) -> None:
    said(here, *tiny(*SHORT))
    first = the_run(tmp_path / "runs")
    assert f"{first.name} is finished already" in said(
        here, *tiny(*SHORT, "eval.skip_too_long=true")
    )
    skipping = [*SHORT, "eval.skip_too_long=true", "pe=learned", "pe.max_len=32"]
    said(here, *tiny(*skipping))
    config = next((tmp_path / "runs/flipflop/learned").glob("*/config.yaml")).read_text()
    assert "skip_too_long: true" in config
    assert len(run_folders(tmp_path / "runs")) == 2


TRAIN = ["task=flipflop", "pe=rope", "train.steps=1", "tracker=none"]


@pytest.mark.parametrize(
    "words",
    [
        TRAIN,
        ["-m", *TRAIN, "seed=0,1", "hydra/launcher=basic"],
        ["check", "pe=rope"],
        ["eval", "run=runs"],
        ["report"],
        ["results"],
        ["leaderboard"],
    ],
)
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("pe/rope.yaml", "file"),
        ("pe/rope.yaml", "folder"),
        ("preset/flipflop.yaml", "link"),
        ("experiment/small/addition.yaml", "file"),
    ],
)
def test_a_yaml_that_would_not_be_used(here: Here, words: list[str], name: str, kind: str) -> None:
    made("rope", 0)
    theirs = Path("mine", name)
    theirs.parent.mkdir(parents=True)
    {"file": Path.touch, "folder": Path.mkdir, "link": lambda at: at.symlink_to("gone")}[kind](
        theirs
    )
    said = f"mine/{name} is not used: {name} of pe-lab has the same name and comes first"
    assert_refused(here(*words, "--config-dir", "mine"), said, "rename this file")


def test_a_copy_is_not_refused(here: Here) -> None:
    Path("mine/pe").mkdir(parents=True)
    Path("mine/pe/rope.yaml").write_bytes(choices("pe")["rope"].read_bytes())
    for words in ([*TRAIN, "--cfg=job"], ["leaderboard"]):
        assert here(*words, "--config-dir", "mine").status == 0
