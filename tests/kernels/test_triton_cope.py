"""CoPE's Triton kernels against the formula: interpreted, compiled, and on a GPU where one is."""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from triton_cases import CASES, KEY, WEIGHTS, Case, dropped, expected, inputs, results, unit_values

from pe_lab.core.dropout import Drop, attention_rows

pytest.importorskip("triton")
from pe_lab.kernels.triton import backward, cope, forward


def on_a_gpu(test: Callable[..., None]) -> Callable[..., None]:
    absent = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
    return pytest.mark.gpu(absent(test))


TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}
SIZES = [
    Case(4, 4, 64, 64, 16, 65, p=0.0),
    Case(4, 4, 512, 512, 64, 513),
    Case(2, 4, 512, 512, 64, 65, gates="separate"),
    Case(2, 4, 511, 511, 32, 300, gates="values", apart=False),
    Case(2, 4, 100, 700, 64, 701),
    Case(1, 2, 2048, 2048, 64, 2049),
    Case(2, 2, 256, 256, 128, 257),
    Case(4, 4, 512, 512, 64, 513, dtype=torch.bfloat16),
]


def assert_equal(found: dict[str, Tensor], reference: dict[str, Tensor], tolerance: float) -> None:
    """As near as this, relative to the largest value of each."""
    assert found.keys() == reference.keys()
    for name, value in reference.items():
        size = float(value.abs().max())
        # One position for all keys of a row changes nothing: its gradient is a sum to 0 of numbers
        # around 1.
        size = size if size > 1e-9 else 1.0
        assert float((found[name] - value).abs().max()) <= tolerance * size, name


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Tensor]]:
    """What the kernels make of every case, from a new process."""
    file = tmp_path_factory.mktemp("interpreted") / "found.pt"
    script = Path(__file__).with_name("triton_cases.py")
    root = str(script.parents[2])
    env = {**os.environ, "PYTHONPATH": root}
    subprocess.run([sys.executable, script, file], env=env, check=True)
    found: dict[str, dict[str, Tensor]] = torch.load(file)
    return found


@pytest.mark.extended
@pytest.mark.parametrize("name", CASES)
def test_interpreted_kernels_follow_the_formula(name: str, interpreted: dict[str, Any]) -> None:
    case = CASES[name]
    reference = expected(case, inputs(case))
    assert_equal(interpreted[name], reference, TOLERANCE[case.dtype])


@pytest.mark.extended
def test_the_dropout_mask(interpreted: dict[str, Any]) -> None:
    weights = interpreted["weights"]["out"]
    kept = Drop(WEIGHTS.p, KEY).kept(attention_rows(weights), torch.arange(WEIGHTS.s))
    seen = torch.ones(WEIGHTS.s, WEIGHTS.s, dtype=torch.bool).tril()[WEIGHTS.s - WEIGHTS.t :]
    assert torch.equal(weights != 0, kept & seen)


def test_unsupported_tensors() -> None:
    q, table = torch.zeros(1, 1, 4, 16), torch.zeros(5, 16)
    assert cope.cope(q, q, q, q, q, table, 1.0, None) is None


# Where a kernel's tensors are neither in the precision of the inputs nor float32.
KINDS = {"*fp32": ("scores", "lse", "delta", "right", "left", "unit"), "*i64": ("d_scores",)}


def compiled(kernel: Any, case: Case, capability: int) -> dict[str, int]:
    """The compiler's report for a card that is not here: registers, bytes spilled and shared."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.compiler import compile as build

    x = inputs(case)
    separate = (x["gate_q"], x["gate_k"]) if case.gates == "separate" else (None, None)
    tensors = x["q"], x["k"], x["v"], *separate, x["table"]
    call = cope._Call(*tensors, case.scale, dropped(case))
    kind = {torch.float32: "*fp32", torch.bfloat16: "*bf16"}[case.dtype]
    types = {name: of for of, names in KINDS.items() for name in names}
    types |= dict.fromkeys(("q", "k", "v", "out", "d_out", "d_q", "d_k", "d_v"), kind)
    types |= dict.fromkeys(("gate_q", "gate_k", "d_gate_q", "d_gate_k"), kind)
    types |= {"scale": "fp32", "keep": "fp32"}
    options = {name: call.constants.pop(name) for name in ("num_warps", "num_stages")}
    fixed: dict[str, Any] = dict(call.constants)
    if case.gates != "separate":
        fixed |= dict.fromkeys(("gate_q", "gate_k", "d_gate_q", "d_gate_k"))
    fixed = {name: value for name, value in fixed.items() if name in kernel.arg_names}
    signature = {
        name: "constexpr" if name in fixed else types.get(name, "i32") for name in kernel.arg_names
    }
    # As at a launch: every tensor begins, and every row of it, at a multiple of 16 bytes.
    aligned = {
        (at,): [["tt.divisibility", 16]]
        for at, (name, of) in enumerate(signature.items())
        if of.startswith("*") or name[1:2] == "_" or name[2:3] == "_"
    }
    source = ASTSource(kernel, signature, fixed, aligned)
    made = build(source, target=GPUTarget("cuda", capability, 32), options=options)
    tools = Path(sys.modules["triton"].__file__ or "").parent / "backends" / "nvidia" / "bin"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        words = [tools / "cuobjdump", "-res-usage", file.name]
        report = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    numbers = {name: int(n) for name, n in re.findall(r"(REG|STACK):(\d+)", report)}
    return {**numbers, "shared": made.metadata.shared}


KERNELS = {
    "forward": forward.forward,
    "rows_backward": backward.rows_backward,
    "columns_backward": backward.columns_backward,
}


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")


@pytest.mark.extended
@pytest.mark.usefixtures("compiler")
def test_the_largest_kernel_compiles_and_fits_into_the_registers() -> None:
    report = compiled(KERNELS["rows_backward"], Case(1, 1, 64, 64, 64, 65), 90)
    assert report["STACK"] == 0
    assert report["shared"] <= 99 * 1024


@pytest.mark.slow
@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("gates", ["keys", "separate"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("width", "capability"), [(16, 90), (32, 90), (64, 90), (128, 90), (64, 80)]
)
@pytest.mark.parametrize("name", KERNELS)
def test_every_size_compiles(
    name: str, width: int, dtype: torch.dtype, gates: str, capability: int
) -> None:
    case = Case(1, 1, 64, 64, width, 65, gates=gates, dtype=dtype)
    report = compiled(KERNELS[name], case, capability)
    print(capability, name, width, dtype, gates, report)
    assert report["STACK"] <= 512
    # The least that a card of these kinds has for a block (sm_86, sm_89).
    assert report["shared"] <= 99 * 1024


def far(found: Tensor, reference: Tensor) -> float:
    """Relative to the largest value."""
    return float((found - reference).abs().max() / reference.abs().max())


@on_a_gpu
@pytest.mark.parametrize("case", SIZES)
def test_a_gpu_follows_the_formula_and_twice_the_same(case: Case) -> None:
    x = inputs(case, "cuda")
    # A table whose rows are a straight line has no kinks: its gradients are exact to rounding.
    x["table"] = x["table"][:1] * torch.linspace(-1, 1, case.n, device="cuda")[:, None]
    found, again = (results(case, x, cope.cope) for _ in range(2))
    for name, reference in expected(case, x).items():
        # What a position weighs each row with is exact as far as the position is, n 2^-24.
        rounding = case.n * 2**-23 if name == "table" else 0.0
        assert far(found[name], reference) <= max(TOLERANCE[case.dtype], rounding), name
        assert torch.equal(found[name], again[name]), name


@on_a_gpu
@pytest.mark.parametrize("case", SIZES)
def test_a_gpu_follows_a_table_of_any_rows(case: Case) -> None:
    x = inputs(case, "cuda")
    found, reference = results(case, x, cope.cope), expected(case, x)
    for name in ("out", "table"):
        limit = max(TOLERANCE[case.dtype], case.n * 2**-22)
        assert far(found[name], reference[name]) <= limit, name
    # Where a position is a whole number but for rounding, a gradient may be that of the other side.
    for name in ("q", "k"):
        assert float((found[name] - reference[name]).norm()) <= 0.02 * float(
            reference[name].norm()
        ), name


@on_a_gpu
def test_the_dropout_mask_on_a_gpu() -> None:
    x = {name: part.to("cuda") for name, part in unit_values(WEIGHTS).items()}
    weights = results(WEIGHTS, x, cope.cope)["out"]
    kept = Drop(WEIGHTS.p, KEY).kept(
        attention_rows(weights), torch.arange(WEIGHTS.s, device="cuda")
    )
    seen = torch.ones_like(kept).tril(WEIGHTS.s - WEIGHTS.t)
    assert torch.equal(weights != 0, kept & seen)


@on_a_gpu
def test_another_key_compiles_nothing_anew() -> None:
    case = Case(1, 1, 32, 32, 16, 33)
    x = inputs(case, "cuda")
    counts = []
    for key in (3, KEY):
        cope.cope(*(x[n] for n in "qkvqk"), x["table"], 1.0, Drop(0.1, key))
        counts.append([len(cache[0]) for cache in KERNELS["forward"].device_caches.values()])
    assert counts[0] == counts[1]
