"""One module per framework: a loss run by the framework itself, and what to record of it."""

BATCH_NAMES = ("drifted", "far", "on_policy")
"""The batches every loss is recorded on: some tokens clipped, many, none."""
