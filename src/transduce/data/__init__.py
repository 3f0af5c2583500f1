"""Raw pairs -> prepared corpus -> batches of at most so many tokens."""
