"""Measurements of speed and memory.

``benchmarks.step`` (``make bench``) compares a training step with another revision,
``benchmarks.jobs`` (``make bench-jobs``) counts what many jobs cost, ``benchmarks.encodings``
(``make cost``) measures each encoding for docs/encodings.md, and ``benchmarks.planted``
(``make planted``) tests ``pe-lab why``. See docs/performance.md.
"""
