"""Wrong command lines, for test_bad_input.py."""

# One of each place that refuses: these are in `make test`, the others in `make test-all`.
ALWAYS = [
    "typo in a choice", "unknown key of an open group", "unknown key of a closed group",
    "two of a group", "several without -m", "an unknown verb", "an unclosed quote", "broken yaml",
    "text for a number", "heads that do not divide", "p_ignore too large",
    "a split longer than a learned table", "a bad character in a task's file",
    "a wrong job of a sweep", "a huge model", "a failing constructor", "foreign letters",
]  # fmt: skip

# The words, and what the sentence must hold: value, key, limit, remedy.
BAD = {
    "typo in a choice": (["pe=coep"], ["pe=coep", "did you mean cope", "choices: "]),
    "an encoding of one's own without its folder": (
        ["pe=mine"],
        ["unknown encoding pe=mine", "for one of yours give --config-dir FOLDER"],
    ),
    "typo in an optimizer's yaml": (
        ["train/optimizer=sgd"],
        ["unknown optimizer train/optimizer=sgd", "choose from adam, adamw"],
    ),
    "an optimizer's yaml beside its key": (
        ["train.optimizer=sgd"],
        ["train.optimizer=sgd", "adamw, adam", "train/optimizer=NAME"],
    ),
    "a list of optimizers": (
        ["train/optimizer=[adam]"],
        ["train/optimizer=[adam]", "give key=NAME"],
    ),
    "unknown preset of training": (["train=slow"], ["train=slow", "choose from default"]),
    "unknown preset of a task": (
        ["preset=flipflip"],
        ["unknown preset=flipflip", "did you mean flipflop"],
    ),
    "unknown preset in a sweep": (["-m", "preset=copy,foo"], ["unknown preset=foo"]),
    "more layers than can be built": (
        ["model.n_layers=20000"],
        ["model.n_layers=20000", "at most 1024"],
    ),
    "a table that no memory holds": (
        ["pe=learned", "pe.max_len=100000000000"],
        ["pe=learned, pe.max_len=100000000000: 1.6e+12 numbers", "too large", "GiB", "pe.* sizes"],
    ),
    "a table in a part": (
        ["pe=combined", "pe.parts=[{pe: shaw, clip: 100000000000}]"],
        ["pe=combined", "is too large", "GiB"],
    ),
    "more sequences than memory holds": (
        ["eval.sequences=1000000000000"],
        ["eval.sequences=1000000000000", "is too large", "GiB", "smaller size"],
    ),
    "a larger training set than memory holds": (
        ["task.train_sequences=100000000000"],
        ["task.train_sequences=100000000000", "is too large", "GiB"],
    ),
    "a number of 400 digits": (
        ["model.d_ff=" + "1" * 400],
        ["model.d_ff=111111111111..", "400 digits", "below 2^63"],
    ),
    "a batch of 400 digits": (["train.batch_size=" + "9" * 400], ["400 digits", "below 2^63"]),
    "200 lists in one another": (
        ["pe=combined", "pe.parts=" + "[" * 200 + "]" * 200],
        ["pe.parts=[[", "nested 200 deep", "at most 20"],
    ),
    "200 mappings in one another": (
        ["task.splits=" + "{a: " * 200 + "1" + "}" * 200],
        ["task.splits={", "nested 200 deep", "at most 20"],
    ),
    "a length that another key sets": (
        ["task=text", "task.length=16"],
        ["task.length=16", "train.length=128", "set train.length=16 in its place"],
    ),
    "a choice far from any": (["task=xyzzy"], ["task=xyzzy", "choose from ", "flipflop"]),
    "unknown key of an open group": (["pe=rope", "pe.bsae=3"], ["pe.bsae=3", "mean base"]),
    "the same with a plus": (["pe=rope", "+pe.bsae=3"], ["pe.bsae=3", "mean base"]),
    "unknown key of a closed group": (["train.stepz=1"], ["train.stepz=1", "mean steps"]),
    "unknown group": (["trian=default"], ["trian=default", "mean train"]),
    "unknown key at the top": (["+foo=1"], ["foo=1", "not a key of the configuration", "force"]),
    "deep unknown key": (["+tracker.wandb.mood=on"], ["tracker.wandb.mood=on", "mean mode"]),
    "two of a group": (["pe=rope", "pe=none"], ["pe appears 2 times", "pe=rope", "-m pe=A,B"]),
    "a mapping and a key of it": (
        ["task.splits.sparse.p_ignore=0.5", "task.splits={dense: {p_ignore: 0.1}}"],
        ["task.splits.sparse.p_ignore=0.5 would be lost", "write it into task.splits={..}"],
    ),
    "a key twice": (["seed=1", "seed=2"], ["seed appears 2 times", "keep one"]),
    "a list of a group": (["pe=[rope,none]"], ["pe=[rope,none]", "give key=NAME"]),
    "null for a group": (["task=null"], ["task=null", "give key=NAME"]),
    "several without -m": (["seed=0,1"], ["seed=0,1", "add -m"]),
    "a word": (["seed=1", "trian"], ["trian", "neither a command nor key=value", "--help"]),
    "a command after a key": (["seed=1", "results"], ["results is a command", "pe-lab results .."]),
    "an unknown verb": (["resluts"], ["resluts", "did you mean results"]),
    "an unknown flag": (["--sedd", "seed=1"], ["--sedd", "--hydra-help"]),
    "an unclosed quote": (["pe='none"], ["pe='none", "quote"]),
    "no such folder": (["--config-dir", "nowhere", "seed=1"], ["nowhere", "not a folder", "yamls"]),
    "broken yaml": (
        ["--config-dir", "conf", "task=broken"],
        ["broken.yaml", "line 3, column 9", "expected ',' or ']'"],
    ),
    "text for a number": (["model.d_model=abc"], ["model.d_model=abc", "whole number"]),
    "text where splits refer to it": (["task.length=abc"], ["task.length=abc", "whole number"]),
    "heads that do not divide": (
        ["model.d_model=30", "model.n_heads=4"],
        ["d_model=30", "n_heads=4", "divisible", "choose a multiple"],
    ),
    "odd rotary width": (
        ["pe=rope", "model.d_model=12", "model.n_heads=4"],
        ["d_model=12", "n_heads=4", "width 3", "choose an even"],
    ),
    "zero size": (["model.n_layers=0"], ["model.n_layers=0", "at least 1"]),
    "a fraction of a step": (["train.steps=1.5"], ["train.steps=1.5", "whole number"]),
    "a negative size of a task": (["task.length=-2"], ["task.length=-2", "at least 4"]),
    "an odd length": (["task.length=15"], ["task.length", "15", "even"]),
    "an unknown choice of a key": (["model.norm=foo"], ["model.norm=foo", "layernorm, rmsnorm"]),
    "p_ignore too large": (["task.p_ignore=1.5"], ["task.p_ignore=1.5", "at most 1"]),
    "p_ignore of a split": (
        ["task.splits.sparse.p_ignore=2"],
        ["task.splits.sparse.p_ignore=2", "at most 1"],
    ),
    "unknown key of a split": (
        ["+task.splits.sparse.p_ingore=0.1"],
        ["task.splits.sparse.p_ingore", "did you mean p_ignore"],
    ),
    "a split longer than a learned table": (
        ["pe=learned", "pe.max_len=32"],
        ["pe.max_len=32", "long_x4 needs 63", "raise pe.max_len to 63", "eval.skip_too_long=true"],
    ),
    "answers written before the length is known": (
        ["task=selective_copy", "pe=normalized", "pe.scale=sequence", "eval.generate=true"],
        ["eval.generate=true", "pe.scale=sequence", "change pe.scale"],
    ),
    "the same in a part": (
        [
            *("task=selective_copy", "pe=combined", "eval.generate=true"),
            "pe.parts=[rope, {pe: normalized, scale: sequence}]",
        ],
        ["eval.generate=true", "pe.parts.1.scale=sequence"],
    ),
    "more positions than memory": (
        ["positions=randomized", "positions.max=1000000000000"],
        ["1000000000000 positions (positions.max", "GiB", "smaller"],
    ),
    "training longer than the table": (
        ["pe=learned", "pe.max_len=8", "eval.skip_too_long=true"],
        ["pe.max_len=8", "train needs 15", "raise pe.max_len to"],
    ),
    "training longer than the square": (
        ["pe=hierarchical", "pe.rows=3", "eval.skip_too_long=true"],
        ["pe.rows=3 is too short", "train needs 15", "raise pe.rows to 8"],
    ),
    "a split longer than the bits": (
        ["pe=binary", "pe.bits=4"],
        ["pe.bits=4 is too short", "31 positions", "raise pe.bits to 6", "skip_too_long"],
    ),
    "too few positions": (
        ["positions=randomized", "positions.max=8"],
        ["63 tokens", "8 different positions", "set positions.max to 63"],
    ),
    "a bad character in a task's file": (
        ["--config-dir", "conf", "task=bad_file"],
        ["task.files.in_domain", "bad.txt", "line 2, column 3", "'x'", "allowed are w, r, i, 0"],
    ),
    "a folder below a file": (
        ["runs_dir=bad.txt/runs"],
        ["runs_dir=bad.txt/runs", "cannot be written", "choose another"],
    ),
    "cuda without a GPU": (["device=cuda"], ["device=cuda", "no GPU", "device=auto"]),
    "no _target_": (["--config-dir", "conf", "pe=no_target"], ["pe._target_", "dotted path"]),
    "a program": (
        ["pe._target_=unittest.__main__.X"],
        ["unittest.__main__.X", "would run a program"],
    ),
    "no such module": (["pe._target_=nowhere.PE"], ["pe._target_=nowhere.PE", "PYTHONPATH"]),
    "no such class": (
        ["pe=rope", "pe._target_=pe_lab.pe.rope.Rope"],
        ["pe._target_=pe_lab.pe.rope.Rope", "did you mean RoPE"],
    ),
    "no encoding": (
        ["pe._target_=pathlib.Path"],
        ["pe._target_=pathlib.Path", "no PositionalEncoding", "derives from"],
    ),
    "a wrong job of a sweep": (["-m", "seed=0,-1"], ["seed=-1", "at least 0"]),
    "true for a number": (["seed=true"], ["seed=true", "set it to a whole number"]),
    "a seed of 64 bits": (["seed=9223372036854775808"], ["seed=9223372036854775808", "below 2^63"]),
    "the same in an open group": (["pe=cope", "pe.npos=true"], ["pe.npos=true", "whole number"]),
    "a number for a list": (["train.betas=0.9"], ["train.betas=0.9", "a list: [A,B]"]),
    "text for a list": (["tracker.wandb.tags=foo"], ["tracker.wandb.tags=foo", "a list: [A,B]"]),
    "text for a mapping": (["task.files=abc"], ["task.files=abc", "a mapping: {KEY: VALUE}"]),
    "null for a file": (["task.files={train:null}"], ["task.files.train=null", "set it to a"]),
    "a mapping where no key is": (
        ["task=counting", "task.texts={train: F}"],
        ["task.texts={train: F} is not a key of task", "choose from "],
    ),
    "a file that is not there": (
        ["task=counting", "task.files={train: none.jsonl}"],
        ["task.files.train names none.jsonl", "No such file", "that pe-lab show wrote"],
    ),
    "a file of another kind": (
        ["task=counting", "task.files={train: bad.txt}"],
        [
            "task.files.train: bad.txt is not a file of pe-lab show",
            "line 1 is not",
            "write it again",
        ],
    ),
    "a file of a split that is not there": (
        ["task=counting", "task.files={trian: bad.txt}"],
        ["task.files.trian is not a split", "did you mean train"],
    ),
    "an unknown key of a split set as a whole": (
        ["task.splits={foo:{lenght: 8}}"],
        ["task.splits.foo.lenght", "did you mean length"],
    ),
    "in_domain longer than the table": (
        ["positions=randomized", "positions.max=10", "positions.evaluation=true"],
        ["63 tokens", "10 different positions", "set positions.max to 63"],
    ),
    "a huge table": (
        ["pe=learned", "pe.max_len=10000000000000"],
        ["pe.max_len=10000000000000", "is too large", "GiB", "smaller"],
    ),
    "a huge model": (
        ["pe=learned", "model.d_model=1000000000"],
        ["model=transformer of about 1.2e+19 weights", "too large", "smaller"],
    ),
    "a huge task": (["task.length=100000000000"], ["with 99999999999 tokens", "too large", "GiB"]),
    "a huge number of positions": (
        ["pe=cope", "pe.npos=100000000000000"],
        ["pe.npos=100000000000000", "is too large", "GiB"],
    ),
    "a syntax error": (
        ["--config-dir", "conf", "pe=syntax"],
        ["pe._target_=bad_syntax.PE", "bad_syntax.py, line 1", "SyntaxError"],
    ),
    "a failing module": (
        ["--config-dir", "conf", "pe=name"],
        ["pe._target_=bad_name.PE", "bad_name.py, line 1", "NameError"],
    ),
    "a failing constructor": (
        ["--config-dir", "conf", "pe=raising"],
        ["pe._target_=raising.PE", "raising.py, line 4", "KeyError", "lost"],
    ),
    "a path for a name": (["pe=../pe/rope"], ["pe=../pe/rope", "leaves the folder pe"]),
    "no runs_dir": (["runs_dir="], ["runs_dir= is not allowed", "1 characters"]),
    "another configuration": (["-cn", "foo", "seed=1"], ["--config-name foo", "--config-dir"]),
    "--resolve alone": (["--resolve", "seed=1"], ["--resolve goes with --cfg"]),
    "a mode": (["hydra.mode=MULTIRUN"], ["hydra.mode=MULTIRUN", "give -m"]),
    "values without end": (
        ["-m", "train.lr=interval(0,1)"],
        ["train.lr=interval(0,1)", "list them (A,B)"],
    ),
    "another sweeper": (
        ["-m", "hydra/sweeper=optuna", "seed=0,1"],
        ["hydra/sweeper=optuna"],
    ),
    "a binary yaml": (["--config-dir", "conf", "pe=blob"], ["conf/pe/blob.yaml", "UTF-8"]),
    "no such launcher": (
        ["-m", "hydra/launcher=jobli"],
        ["unknown launcher hydra/launcher=jobli", "choices: basic"],
    ),
    "a group deleted": (["~task"], ["~task", "give task=NAME"]),
    "a plus too many": (
        ["+experiment=paper/flipflop"],
        ["+experiment=paper/flipflop", "leave the + out, experiment=paper/flipflop"],
    ),
    "foreign letters": (["pe=контекст"], ["pe=контекст is not understood", "quote it like"]),
    "a comma at the end": (
        ["seed=0,"],
        ["seed=0, is not understood", "leave the last comma out, seed=0"],
    ),
    "results of no folder": (["results", "runs_dir=nowhere"], ["runs_dir=nowhere", "not a folder"]),
    "a list of no group": (["list", "pee"], ["list pee", "did you mean pe?"]),
}
