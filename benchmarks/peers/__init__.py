"""Workers of the training benchmark: one module per system, each run in an interpreter of its own.

Only `ours` needs transduce; the others need torch, numpy and the peer they are named after.
"""
