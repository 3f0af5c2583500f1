"""fairseq (the fork fairseq-fixed): its model and its label-smoothed criterion."""

from importlib import import_module
from types import SimpleNamespace

from torch import Tensor

from peers.protocol import BOS, EOS, PAD, UNK, Batch, Job, System, serve


def build(job: Job) -> System:
    transformer = import_module("fairseq.models.transformer")
    sizes = import_module("fairseq.models.transformer.transformer_config")
    criterions = import_module("fairseq.criterions.label_smoothed_cross_entropy")
    dictionary = import_module("fairseq.data").Dictionary(add_special_symbols=False)
    for i in range(job.vocabulary):
        dictionary.add_symbol(str(i))
    dictionary.pad_index, dictionary.unk_index = PAD, UNK
    dictionary.bos_index, dictionary.eos_index = BOS, EOS
    task = SimpleNamespace(source_dictionary=dictionary, target_dictionary=dictionary)
    stack = {
        "embed_dim": job.d_model,
        "ffn_embed_dim": job.d_ff,
        "layers": job.N,
        "attention_heads": job.h,
    }
    config = sizes.TransformerConfig(
        dropout=job.dropout,
        encoder=sizes.EncDecBaseConfig(**stack),
        decoder=sizes.DecoderConfig(**stack),
        quant_noise=sizes.QuantNoiseConfig(),
        share_all_embeddings=True,
    )
    model = transformer.TransformerModelBase.build_model(config, task)
    criterion = criterions.LabelSmoothedCrossEntropyCriterion(task, False, job.eps_ls)

    def inputs(batch: Batch) -> dict[str, Tensor]:
        return {
            "src_tokens": batch.src,
            "src_lengths": batch.src_lengths,
            "prev_output_tokens": batch.tgt_in,
        }

    def logits(batch: Batch) -> Tensor:
        found: Tensor = model(**inputs(batch))[0]
        return found

    def loss(batch: Batch) -> Tensor:
        sample = {"net_input": inputs(batch), "target": batch.tgt_out, "ntokens": batch.tokens}
        found: Tensor = criterion(model, sample)[0]
        return found

    return System(job, model, logits, loss)


if __name__ == "__main__":
    serve(build, "fairseq-fixed")
