"""Section 3 of the paper: ids in, logits out."""

from transduce.config import ModelConfig
from transduce.model.transformer import DecoderLayer, Transformer

__all__ = ["DecoderLayer", "ModelConfig", "Transformer"]
