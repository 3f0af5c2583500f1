"""Converters of a model folder into the formats of other programs."""
