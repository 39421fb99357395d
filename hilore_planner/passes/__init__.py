"""Graph in, graph out: normalise, find units, price, rewrite, cut."""
