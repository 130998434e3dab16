"""Measurements of speed and memory.

``python -m benchmarks`` (``make bench``) prints a table for each of its parts and writes
runs/bench/<date>.json; ``benchmarks.encodings`` (``make cost``) measures the cost of each encoding
for docs/encodings.md, ``benchmarks.gpu`` (``make bench-gpu``) a GPU. See docs/performance.md.
"""
