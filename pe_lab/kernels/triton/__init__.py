"""CoPE's attention in Triton, used on a GPU after its self-check.

Its speed was never measured on a GPU. Tests compare its values and gradients with the formula by
Triton's interpreter on a CPU.
"""
