"""x-transformers: an encoder and a decoder of its layers, which are pre-norm with GELU.

Its XTransformer has no way to tie the output to the embeddings and its loss no smoothing, so the
two stacks are put together here, and torch's cross-entropy is taken.
"""

from importlib import import_module

from torch import Tensor, nn

from peers.protocol import PAD, Batch, Job, System, serve


def build(job: Job) -> System:
    x = import_module("x_transformers")
    layers = {
        "dim": job.d_model,
        "depth": job.N,
        "heads": job.h,
        "attn_dim_head": job.d_model // job.h,
        "ff_mult": job.d_ff // job.d_model,
        "attn_sublayer_dropout": job.dropout,
        "ff_sublayer_dropout": job.dropout,
    }
    size = {"num_tokens": job.vocabulary, "max_seq_len": 512, "emb_dropout": job.dropout}
    encoder = x.TransformerWrapper(**size, attn_layers=x.Encoder(**layers), return_only_embed=True)
    decoder = x.TransformerWrapper(
        **size,
        attn_layers=x.Decoder(**layers, cross_attend=True),
        token_emb=encoder.token_emb,
        tie_embedding=True,
    )

    def logits(batch: Batch) -> Tensor:
        real = batch.src != PAD
        memory = encoder(batch.src, mask=real, return_embeddings=True)
        found: Tensor = decoder(batch.tgt_in, context=memory, context_mask=real)
        return found

    return System(job, nn.ModuleList([encoder, decoder]), logits)


if __name__ == "__main__":
    serve(build, "x-transformers")
