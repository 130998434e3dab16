"""The machine's limit: matrix products in the shapes of a step, GFLOP/s of one core."""

from typing import Any

from benchmarks.alternating import Side, alternated
from benchmarks.found import Asked, Found, table

SQUARE = 2048


def measure(asked: Asked) -> Found:
    """Float32 and bfloat16: the linear layers of a step, attention's products, a large square."""
    tokens = asked.pick(64, 2048, 4096)
    edge = asked.pick(64, 1024, SQUARE)
    sizes = asked.pick(["tiny"], ["paper"], ["paper", "small"])
    rows: list[dict[str, Any]] = []
    with Side("ours") as side:
        for half in (False, True):
            runners = {
                f"linear layers of a step, {size}, {tokens} tokens": side.make(
                    "flops.products", size=size, length=tokens, batch=1, half=half
                )
                for size in sizes
            }
            for length in asked.pick([16], [256], [128, 512]):
                many = max(1, 4 * tokens // length)
                runners[f"{many} x ({length}, 64) (64, {length})"] = side.make(
                    "flops.product", rows=length, inner=64, columns=length, batch=many, half=half
                )
            runners[f"({edge}, {edge}) squared"] = side.make(
                "flops.product", rows=edge, inner=edge, columns=edge, half=half
            )
            times = alternated(runners, 2 * asked.seconds, asked.fewest)
            rows += [
                {
                    "product": name,
                    "precision": "bfloat16" if half else "float32",
                    "ms": times.ms(name),
                    "gflops": 1e-6 * runner.facts["flop"] / times.ms(name),
                }
                for name, runner in runners.items()
            ]
            side.clear()
    cells = [[r["product"], r["precision"], f"{r['ms']:.2f}", f"{r['gflops']:.0f}"] for r in rows]
    names = ["product", "precision", "ms", "GFLOP/s"]
    return Found(rows, tables=[table("matrix products, one thread", names, cells)])
