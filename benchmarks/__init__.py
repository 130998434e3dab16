"""Measurements of speed, each a module of its own: ``python -m benchmarks.step``.

They print tables and write dated files to runs/bench/; they hold nothing to a limit.
"""
