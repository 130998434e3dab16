"""Attention in one go: equals of the eager formulas that never hold a (T, S) matrix.

Each road is a module with ``cope`` and ``distance``, or one of them; ``roads`` chooses.
"""
