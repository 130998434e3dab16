"""The C++ kernel of attention with terms of relative positions: that of distance.py, which has
them all."""

from torch import Tensor

from pe_lab.core.dropout import Drop
from pe_lab.kernels.cpu.ctypes_abi import check
from pe_lab.kernels.cpu.distance import Distance


def relative(
    q_BHTD: Tensor,
    k_BHSD: Tensor,
    v_BHSD: Tensor,
    bias_HN: Tensor | None,
    kept_BHS: Tensor | None,
    bias_HTS: Tensor | None,
    key_HND: Tensor | None,
    query_HND: Tensor | None,
    value_HND: Tensor | None,
    drop: Drop | None,
) -> Tensor:
    """``distance`` with more terms, each of which may be None; n = i - j:

        logits = q_i.k_j / sqrt(D) + bias[h, n] + kept_i - kept_j + bias[h, i, j]
            + q_i.key[h, n] / sqrt(D) + k_j.query[h, n] / sqrt(D)
        out_i = sum over j of weight_ij (v_j + value[h, n])

    Memory grows with T + S beside what is passed in. Tables may have more rows than S.
    """
    (_, h, t, d), s = q_BHTD.shape, k_BHSD.shape[2]
    terms = {
        "bias": bias_HN,
        "kept": kept_BHS,
        "bias of pairs": bias_HTS,
        "key table": key_HND,
        "query table": query_HND,
        "value table": value_HND,
    }
    shapes: list[tuple[int, ...]] = [(h, s), tuple(k_BHSD.shape[:3]), (h, t, s)]
    shapes += [(h, s, d)] * 3
    others = {"v": (v_BHSD, tuple(k_BHSD.shape))}
    for (name, x), shape in zip(terms.items(), shapes, strict=True):
        if x is not None:
            # Further distances do not occur.
            given = x[:, :s] if "table" in name or name == "bias" else x
            others[name] = (given.to(q_BHTD.dtype), shape)
    check(q_BHTD, k_BHSD, **others)
    passed = [others[name][0] if name in others else None for name in terms]
    out: Tensor = Distance.apply(  # type: ignore[no-untyped-call]
        drop, None, q_BHTD, k_BHSD, v_BHSD, *passed
    )
    return out
