"""Benchmarks: one command each, results as data under ``docs/results/``."""
