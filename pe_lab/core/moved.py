"""Where classes have moved since runs with them were recorded."""

_FILES = {
    "rope_scaling": {
        **{"pi": "PI", "ntk_old": "NTKOld", "ntk_fixed": "NTKFixed", "ntk_mixed": "NTKMixed"},
        **{"yarn": "YaRN", "dynamic_ntk": "DynamicNTK", "longrope": "LongRoPE"},
    },
    "rerope": {"leaky_rerope": "LeakyReRoPE", "self_extend": "SelfExtend"},
    "grape": {"grape_a": "GRAPEA", "grape_ap": "GRAPEAP", "grape_m": "GRAPEM"},
}
MOVED = {
    f"pe_lab.pe.{old}.{name}": f"pe_lab.pe.{new}.{name}"
    for new, files in _FILES.items()
    for old, name in files.items()
}
"""The recorded ``_target_`` -> today's. The identity of a run has the recorded one."""
RECORDED = {new: old for old, new in MOVED.items()}
