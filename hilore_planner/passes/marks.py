"""Metadata keys by which one pass tells a later one about a node."""

MADE = "hilore_made"
"""Nodes that rewriting made: rebuilt values, encoding, decoding."""
PLACED = "hilore_placed"
"""Nodes that must be written out where they stand, wherever memory is short."""
COPY = "hilore_copy"
"""Values that were decoded by scales of groups: the name of the smaller copy that each is from."""
