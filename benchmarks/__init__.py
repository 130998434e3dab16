"""Measurements of speed and memory. ``python -m benchmarks`` (`make bench`) takes its parts in
turn, prints tables and what was asked for, and writes a dated file to runs/bench/. Beside them
stand modules that are run by themselves: what each encoding costs, what a recipe costs, how long
``pe-lab results`` takes over many runs, a line of finished jobs.
"""
