"""Trained models in the formats of fast engines: converters, each mirrors the model's modules."""
