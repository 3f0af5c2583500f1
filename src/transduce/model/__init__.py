"""Section 3 of the paper: ids in, logits out."""

from transduce.config import ModelConfig
from transduce.model.transformer import DecoderLayer, MultiHeadAttention, Transformer

__all__ = ["DecoderLayer", "ModelConfig", "MultiHeadAttention", "Transformer"]
