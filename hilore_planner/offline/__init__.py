"""Planning an update without its device: nothing is compiled, run or allocated."""
