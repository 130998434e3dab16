"""Kernels in C++ for CPUs, compiled at first use; one module a kernel, sources in src/."""
