"""``pe.from_hf=config.json``: the rotation of a released model as pe-lab's keys."""

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pe_lab.core.errors import UsageError, reason

WORD = "pe.from_hf"
INTERLEAVED = {
    "codegen", "cohere", "cohere2", "cohere2_moe", "ernie4_5", "ernie4_5_moe", "glm", "glm4",
    "gptj", "helium", "llama4_text", "mistral_large4_text",
}  # fmt: skip
"""The ``model_type`` of models that pair features 2m and 2m + 1; others pair m and m + D/2."""
WINDOWED = {"cohere2", "cohere2_moe", "exaone4", "flint"}
"""The ``model_type`` of models that rotate in layers with a window alone."""
BY_INTERVAL = {"llama4_text", "mistral_large4_text", "smollm3"}
"""The ``model_type`` of models whose layers do not all rotate unless ``no_rope_layers`` is 1."""
BY_KIND = {
    "beam", "dory", "gemma3_text", "gemma3n_text", "gemma4_text", "gemma4_unified_text", "laguna",
    "lfm3", "mellum", "mimo_v2_flash", "modernbert-decoder", "olmo3", "step3p5", "t5gemma2_decoder",
    "zaya",
}  # fmt: skip
"""The ``model_type`` of models whose layers with a window have a rotation of their own, whatever
their config.json says."""
KEYS = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": (
        "factor", "beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim",
        "truncate",
    ),
    "longrope": ("factor", "short_factor", "long_factor", "attention_factor"),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "proportional": ("factor",),
}  # fmt: skip
"""rope_type -> the keys that are read, beside those of every type."""
PARTIAL = ("default", "linear", "longrope", "proportional")
"""The types that are read with a ``partial_rotary_factor``."""
OF_ALL = ("rope_type", "type", "rope_theta", "partial_rotary_factor")
READ = {
    "rope_parameters", "rope_scaling", "rope_theta", "partial_rotary_factor", "no_rope_layers",
    "no_rope_layer_interval",
}  # fmt: skip
"""The keys beside the rope parameters that are read; others about ``POSITIONS`` are refused."""
POSITIONS = {"alibi", "rope", "rotary"}
PLAIN = {"rope", "rope_type", "use_rope", "use_rotary_pos_emb"}
"""Keys that say that there is RoPE where they are true or ``default``."""
LENGTHS = ("original_max_position_embeddings", "max_position_embeddings")
ONE_FOR_ALL = (
    "and pe-lab has one rotation for all: write a config.json with the parameters of one of them "
    "and model_type=llama"
)


def expanded(words: Iterable[str]) -> list[str]:
    """The words, with the keys of the file's rotation in place of ``pe.from_hf=FILE``. A key that
    is given as well is kept in place of the file's.

    Raises:
        UsageError: a file that cannot be read, or a rotation that pe-lab has not.
    """
    given = list(words)
    files = [word for word in given if word.partition("=")[0] == WORD]
    if not files:
        return given
    keys = {word.partition("=")[0].lstrip("+") for word in given}
    if len(files) > 1 or "pe" in keys:
        other = files[1] if len(files) > 1 else next(w for w in given if w.startswith("pe="))
        raise UsageError(f"{other} would replace {files[0]}, which names the encoding: keep one")
    name, found = encoding_of(files[0].partition("=")[2])
    added = {f"pe.{key}": json.dumps(value) for key, value in found.items()}
    chosen = [f"{key}={value}" for key, value in added.items() if key not in keys]
    return [word for word in given if word not in files] + [f"pe={name}", *chosen]


def encoding_of(file: str, key: str = WORD) -> tuple[str, dict[str, Any]]:
    """The encoding's name and keys for a config.json of transformers.

    Args:
        key: the key that names the file, for messages.
    """
    config = read(file, key)
    try:
        return _encoding_of({**config, **(config.get("text_config") or {})})
    except ValueError as error:
        raise UsageError(f"{key}={file}: {error}") from None


def read(file: str, key: str = WORD) -> dict[str, Any]:
    """A config.json.

    Raises:
        UsageError: the file is missing, or holds no configuration of a model.
    """
    try:
        config = json.loads(Path(file).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{key}={file} cannot be read ({reason(error)}): give the config.json of a model"
        ) from None
    if not isinstance(config, dict):
        raise UsageError(f"{key}={file} is not a mapping: give the config.json of a model")
    return config


def rope_parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of the rotation, as transformers 5 and older versions write them."""
    for key in ("rope_parameters", "rope_scaling"):
        if not isinstance(config.get(key) or {}, dict):
            raise ValueError(
                f"{key}={json.dumps(config[key])} is not a mapping: set it to one, such as "
                '{"rope_type": "default"}'
            )
    found = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if any(isinstance(value, dict) for value in found.values()):
        raise ValueError(f"layers rotate differently ({', '.join(found)}), {ONE_FOR_ALL}")
    beside = {key: config[key] for key in ("rope_theta", "partial_rotary_factor") if key in config}
    if not found and not beside:
        raise ValueError(
            "there are no rope_parameters, rope_scaling or rope_theta: give a model with RoPE"
        )
    return {**beside, **found}


def _refuse_parts(config: Mapping[str, Any]) -> None:
    """ValueError where a part of a head, or some layers alone, have positions that are not read."""
    kind = config.get("model_type")
    if kind in BY_KIND:
        raise ValueError(f"layers of model_type={kind} rotate differently, {ONE_FOR_ALL}")
    for key, value in config.items():
        told = value is None or value is False or (key in PLAIN and value in (True, "default"))
        told = told or (key.startswith("alibi_") and config.get("alibi") is False)
        if not told and key not in READ and POSITIONS & set(key.split("_")):
            raise ValueError(
                f"{key}={json.dumps(value)} is another key of positions, which is not read: choose "
                "another model, or remove the key if the model ignores it"
            )
    windowed = kind in WINDOWED and config.get("sliding_window", 1) is not None
    listed = config.get("no_rope_layers") or ((0,) if kind in BY_INTERVAL else ())
    if 0 in listed or windowed:
        raise ValueError(
            f"some layers of model_type={kind} do not rotate, which is not read: choose another "
            "model, or give pe=rope with model.layers={3: {encoded: false}}, .."
        )


def _encoding_of(config: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    _refuse_parts(config)
    rope = rope_parameters(config)
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind not in KEYS:
        raise ValueError(
            f"rope_type={kind} is not in pe-lab, which has {', '.join(KEYS)}: choose another model"
        )
    unknown = sorted(rope.keys() - {*OF_ALL, *LENGTHS, *KEYS[kind]})
    if unknown:
        raise ValueError(
            f"{unknown[0]}={json.dumps(rope[unknown[0]])} is not a key of rope_type={kind}: remove "
            "it, or choose another model"
        )
    pairing = "interleaved" if config.get("model_type") in INTERLEAVED else "half"
    keys: dict[str, Any] = {"base": _number(rope, "rope_theta", 10000.0), "pairing": pairing}
    part = "partial_rotary_factor"
    share = 1 if rope.get(part) is None else _number(rope, part, 1, most=1)
    if share < 1 and kind in PARTIAL:
        keys |= {"fraction": share, **({"drop": "low"} if kind == "proportional" else {})}
    elif kind not in PARTIAL:
        _only(kind, "partial_rotary_factor", share, 1)
    if kind == "default":
        return "rope", keys
    factor = _factor(config, rope, kind)
    if kind == "proportional" and factor == 1:
        return "rope", keys
    if kind == "dynamic":
        return "dynamic_ntk", {**keys, "factor": factor}
    keys["k"] = factor
    if kind in ("linear", "proportional"):
        return "pi", keys
    if kind == "longrope":
        short, long = (_required(rope, kind, key) for key in ("short_factor", "long_factor"))
        return "longrope", keys | {
            "short": short, "long": long, "attention_factor": rope.get("attention_factor"),
        }  # fmt: skip
    if kind == "llama3":
        slow, fast = (_required(rope, kind, f"{one}_freq_factor") for one in ("low", "high"))
        ramp = {"ramp": "rotations", "slow": slow, "fast": fast, "temperature": False}
        return "yarn", keys | ramp
    return "yarn", keys | {
        "ramp": "pairs" if rope.get("truncate", True) else "pairs_unrounded",
        "slow": rope.get("beta_slow") or 1,
        "fast": rope.get("beta_fast") or 32,
        "temperature": _temperature(rope, factor),
    }


def _factor(config: Mapping[str, Any], rope: Mapping[str, Any], kind: str) -> float:
    """By how much the rotation is stretched; it may follow from the two lengths."""
    factor: Any = rope.get("factor", 1 if kind == "proportional" else None)
    lengths = [rope_length(config, key) for key in LENGTHS]
    if factor is None and kind in ("yarn", "longrope") and all(lengths):
        factor = lengths[1] / lengths[0]
    if not isinstance(factor, int | float) or factor < 1:
        raise ValueError(
            f"factor={json.dumps(factor)} is not allowed with rope_type={kind}: set it to a number "
            "of at least 1"
        )
    return factor


def _number(rope: Mapping[str, Any], key: str, otherwise: float, most: float = math.inf) -> float:
    """The number of a key, above 0 and at most ``most``; ``otherwise`` if there is no such key."""
    value: Any = rope.get(key, otherwise)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 < value <= most:
        limit = "" if most == math.inf else f" and at most {most}"
        raise ValueError(
            f"{key}={json.dumps(value)} is not allowed: set it to a number above 0{limit}"
        )
    return value


def _required(rope: Mapping[str, Any], kind: str, key: str) -> Any:
    if rope.get(key) is None:
        raise ValueError(f"{key} is missing, which rope_type={kind} needs: add it")
    return rope[key]


def rope_length(config: Mapping[str, Any], key: str) -> Any:
    """A length in the rope parameters or beside them; None: it is in neither."""
    return rope_parameters(config).get(key) or config.get(key)


def _only(kind: str, key: str, value: Any, one: Any) -> None:
    if value is not None and value != one:
        raise ValueError(
            f"{key}={json.dumps(value)} with rope_type={kind} is not in pe-lab: set it to "
            f"{json.dumps(one)}, or choose another model"
        )


def _temperature(rope: Mapping[str, Any], factor: float) -> bool:
    """Whether logits are multiplied by YaRN's temperature; otherwise by 1."""

    def grown(scale: float) -> float:
        return 0.1 * scale * math.log(factor) + 1

    found, above, below = (
        rope.get(key) for key in ("attention_factor", "mscale", "mscale_all_dim")
    )
    if found is None:
        found = grown(above) / grown(below) if above and below else grown(1)
    if math.isclose(found, grown(1), rel_tol=1e-6):
        return True
    if not math.isclose(found, 1, rel_tol=1e-6):
        raise ValueError(
            f"an attention factor of {found:g} is not in pe-lab: set attention_factor to 1 or to "
            f"0.1 ln factor + 1 = {grown(1):g}"
        )
    return False
