"""Processes that benchmarks start: each reads one JSON object from its command line and prints JSON lines."""
