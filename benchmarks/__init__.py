"""Measurements of speed and memory.

``python -m benchmarks`` (``make bench``) prints a table for each of its parts and writes
runs/bench/<date>.json. ``benchmarks.encodings`` (``make cost``) measures the cost of each encoding
for docs/encodings.md. See docs/performance.md.
"""
