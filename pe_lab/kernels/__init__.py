"""Fused kernels that equal the eager formulas and never hold a (T, S) matrix.

Everything here is optional: without this folder the program computes the same, more slowly.
"""
