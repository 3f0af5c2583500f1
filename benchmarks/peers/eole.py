"""eole: the model and the loss that its configuration builds."""

from importlib import import_module
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from peers.protocol import Batch, Job, System, serve


def build(job: Job) -> System:
    models = import_module("eole.models.model")
    shape = import_module("eole.config.models").TransformerModelConfig(
        layers=job.N,
        hidden_size=job.d_model,
        heads=job.h,
        transformer_ff=job.d_ff,
        embeddings={"word_vec_size": job.d_model, "position_encoding": True},
        share_embeddings=True,
        share_decoder_embeddings=True,
    )
    training = import_module("eole.config.training").TrainingConfig(
        dropout=[job.dropout],
        attention_dropout=[0.0],
        label_smoothing=job.eps_ls,
        param_init_method="xavier_uniform",
    )
    vocabularies = vocabularies_of(job)
    model = models.EncoderDecoderModel.build_blocks(shape, vocabularies, running_config=training)
    model.build_generator(shape, training, vocabularies)
    model.init_weights(training)
    compute = import_module("eole.utils.loss").LossCompute.from_config(
        SimpleNamespace(model=shape, training=training), model, vocabularies
    )

    def logits(batch: Batch) -> Tensor:
        found: Tensor = model.generator(model(batch.src, batch.tgt, batch.src_lengths).dec_out)
        return found

    def loss(batch: Batch) -> Tensor:
        output = model(batch.src, batch.tgt, batch.src_lengths)
        rows = len(batch.src)
        sample = {
            "tgt": batch.tgt,
            "srclen": batch.src_lengths,
            "cid": ["corpus"] * rows,
            "cid_line_number": list(range(rows)),
        }
        found: Tensor = compute(sample, output.dec_out, output.attns)[0]
        return found

    return System(job, model, logits, loss)


def vocabularies_of(job: Job) -> dict[str, Any]:
    """Return both sides' vocabularies, with our reserved ids."""
    special = {
        "pad_token": "<blank>",
        "unk_token": "<unk>",
        "bos_token": "<s>",
        "eos_token": "</s>",
    }
    pieces = [*special.values(), *(f"piece{i}" for i in range(4, job.vocabulary))]
    vocabulary = import_module("pyonmttok").build_vocab_from_tokens(pieces)
    return {"src": vocabulary, "tgt": vocabulary, "specials": special, "decoder_start_token": "<s>"}


if __name__ == "__main__":
    serve(build, "eole")
