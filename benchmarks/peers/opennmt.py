"""OpenNMT-py: the model and the loss that its options build."""

from importlib import import_module
from typing import Any

from torch import Tensor

from peers.protocol import Batch, Job, System, serve


def build(job: Job) -> System:
    builder = import_module("onmt.model_builder")
    opts = import_module("onmt.opts")
    parser_type = import_module("onmt.utils.parse").ArgumentParser
    parser = parser_type()
    for add in (opts.distributed_opts, opts.model_opts, opts._add_train_general_opts):
        add(parser)
    arguments = {
        "encoder_type": "transformer",
        "decoder_type": "transformer",
        "layers": job.N,
        "hidden_size": job.d_model,
        "word_vec_size": job.d_model,
        "heads": job.h,
        "transformer_ff": job.d_ff,
        "dropout": job.dropout,
        "attention_dropout": 0.0,
        "label_smoothing": job.eps_ls,
        "position_encoding": True,
        "param_init": 0.0,
        "param_init_glorot": True,
        "share_embeddings": True,
        "share_decoder_embeddings": True,
    }
    words: list[str] = []
    for name, value in arguments.items():
        words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    options, _ = parser.parse_known_args(words)
    parser_type.update_model_opts(options)
    parser_type.validate_model_opts(options)
    vocabularies = vocabularies_of(job)
    model = builder.build_model(options, options, vocabularies, None, 0)
    compute = import_module("onmt.utils.loss").LossCompute.from_opts(
        options, model, vocabularies["tgt"]
    )

    def decoded(batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        found: tuple[Tensor, dict[str, Tensor]] = model(
            batch.src.unsqueeze(2), batch.tgt.unsqueeze(2), batch.src_lengths
        )
        return found

    def logits(batch: Batch) -> Tensor:
        found: Tensor = model.generator(decoded(batch)[0])
        return found

    def loss(batch: Batch) -> Tensor:
        output, attentions = decoded(batch)
        sample = {"tgt": batch.tgt.unsqueeze(2), "srclen": batch.src_lengths}
        found: Tensor = compute(sample, output, attentions)[0]
        return found

    return System(job, model, logits, loss)


def vocabularies_of(job: Job) -> Any:
    """Return both sides' vocabularies, with our reserved ids."""
    special = ["<blank>", "<unk>", "<s>", "</s>"]
    pieces = special + [f"piece{i}" for i in range(4, job.vocabulary)]
    given = {"src": pieces, "tgt": pieces, "data_task": "seq2seq", "decoder_start_token": "<s>"}
    return import_module("onmt.inputters.inputter").dict_to_vocabs(given)


if __name__ == "__main__":
    serve(build, "OpenNMT-py")
