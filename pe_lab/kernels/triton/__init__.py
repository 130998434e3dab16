"""CoPE's attention in Triton, used on a GPU after its self-check.

Its speed was never measured on a GPU. Triton's interpreter has compared its values and gradients
with the formula on a CPU.
"""
