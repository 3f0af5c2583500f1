"""The verbs that use models, and carry them elsewhere and here."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from transduce.cli.arguments import (
    Assignments,
    Flag,
    Models,
    Numbers,
    OptionalPairs,
    Pairs,
    Texts,
    app,
    say,
    with_changes,
)
from transduce.config import Settings, merge
from transduce.errors import TransduceError, UsageError

if TYPE_CHECKING:
    from transduce.decoding.outputs import Translation
    from transduce.evaluating import Items


@app.command
def translate(
    model: Path,
    /,
    *,
    input: str = "-",
    output: Path | None = None,
    beam_size: int | None = None,
    alpha: float | None = None,
    n_best: int = 1,
    format: Literal["text", "jsonl"] = "text",
    input_format: Literal["text", "jsonl"] | None = None,
    prefix: str = "",
    require: Texts = None,
    forbid: Texts = None,
    engine: Literal["auto", "torch", "ctranslate2"] | None = None,
    ensemble: Models = None,
    set: Assignments = None,
) -> None:
    """Translate lines: as many come out as went in, in the same order.

    An output file appears when it is complete. Started again with the same words after it was
    stopped, the command goes on where it was.

    Args:
        model: a model folder or a run.
        input: a text file (or as --input-format says), or - for standard input.
        output: where to write instead of standard output.
        beam_size: hypotheses kept per sentence; 1 is greedy search.
        alpha: exponent of the length penalty.
        n_best: alternatives per line (in text joined by ' ||| '); needs as wide a beam.
        format: text, or jsonl with tokens, scores and flags.
        input_format: text, or jsonl (as is a file ending so): objects with source and, if wanted,
            prefix, require and forbid, which hold for that line.
        prefix: how every output begins.
        require: a word or phrase that every output has; may be repeated.
        forbid: letters that no output has, in a row, not even within a word; may be repeated.
        engine: torch knows everything, ctranslate2 is faster; auto says which it takes, and why.
        ensemble: more models with the same vocabulary; the mean of their probabilities counts.
        set: change a setting of [decoding]; may be repeated. Draw outputs at random with
            --set decoding.method=sample (temperature, top_k, top_p, seed).
    """
    if input != "-" and not Path(input).is_file():
        raise TransduceError(f"cannot read {input}: no such file")
    from transduce.data.files import ending, read_lines
    from transduce.decoding.engines import Detail
    from transduce.decoding.requests import Request, read_requests
    from transduce.translating import (
        check_output,
        count_lines,
        dependence,
        destination,
        opened_to_translate,
        translate_file,
    )

    if output is not None:
        check_output(output, [input])
    changes = [*(set or ())]
    changes += [f"decoding.beam_size={beam_size}"] if beam_size is not None else []
    changes += [f"decoding.alpha={alpha}"] if alpha is not None else []
    changes += [f"decoding.engine={engine}"] if engine is not None else []
    models = [model, *(ensemble or ())]
    for_all = Request("", prefix, tuple(require or ()), tuple(forbid or ()))
    objects = input_format == "jsonl" or (input_format is None and ending(input) == ".jsonl")
    settings = with_changes(changes)
    wishes, count = objects or for_all != Request(""), count_lines(input)
    config, translator = opened_to_translate(models, settings, count, say, n_best, wishes)
    lines, name = read_lines(input), "standard input" if input == "-" else input
    requests = read_requests(lines, name) if objects else (Request(line) for line in lines)

    def show(translation: "Translation", number: int) -> str:
        if "cut" in translation.flags:
            say(f"warning: line {number} is cut to {translator.max_source} pieces")
        if "unmet" in translation.flags:
            say(f"warning: line {number}: not all that is required could be had")
        if format == "jsonl":
            return json.dumps(translation.record(), ensure_ascii=False)
        return " ||| ".join(h.text for h in translation.hypotheses)

    depends_on = dependence(models, config.decoding, for_all, n_best, format)
    every = (request.also(for_all) for request in requests)
    with destination(output, depends_on) as out:
        if out.lines:
            say(f"going on after line {out.lines:,}")
        try:
            detail: Detail = "tokens" if format == "jsonl" else "text"
            translate_file(translator, every, show, out, n_best, count, detail)
        except KeyboardInterrupt:
            if output is not None:
                say("what is done is kept: the same command goes on from there")
            raise


@app.command
def score(
    model: Path,
    /,
    *,
    pairs: Pairs,
    format: Literal["text", "jsonl"] = "text",
    set: Assignments = None,
) -> None:
    """Print how probable the model finds given targets: a log-probability for each pair.

    Args:
        model: a model folder or a run.
        pairs: the pairs to score: one file with both sides, or two aligned text files.
        format: text, one number a line; or jsonl with the tokens.
        set: change a setting of [decoding] or, for how the pairs are read, [data], e.g.
            --set 'data.columns=["en", "de"]'; may be repeated.
    """
    from itertools import islice

    from transduce.data.files import open_text
    from transduce.data.progress import Counting
    from transduce.data.readers import read_pairs
    from transduce.data.text import is_blank
    from transduce.decoding.translator import opened

    config, translator = opened([model], with_changes(set or ()))
    stream, empty = read_pairs(pairs, config.data), 0
    with open_text(None) as out, Counting("scoring", "pairs", silent=out.isatty()) as progress:
        while chunk := list(islice(stream, 1000)):
            empty += sum(is_blank(pair.tgt) for pair in chunk)
            for scored in translator.score([(pair.src, pair.tgt) for pair in chunk]):
                if format == "jsonl":
                    out.write(json.dumps(scored.record(), ensure_ascii=False) + "\n")
                else:
                    out.write(f"{scored.log_probability:.6f}\n")
            progress.advance(len(chunk))
    if empty:
        say(f"warning: pairs without a target: {empty:,}; their score is that of an empty output")


@app.command
def align(
    model: Path,
    /,
    *,
    pairs: Pairs,
    layer: int | None = None,
    heads: Numbers = None,
    later: Flag = False,
    threshold: float | None = None,
    units: Literal["words", "pieces"] = "words",
    gold: str | None = None,
    json: Path | None = None,
    set: Assignments = None,
) -> None:
    """Link the words of given translations with those of their sources, by attention.

    Prints a line for each pair: links i-j of a word of the source and one of the target, counted
    from 0; an empty line where a side is blank. Each target word has at most one link unless there
    is a --threshold. Attention is a rough alignment; where some links are known (--gold), the layer
    and the heads can be chosen that agree best with them.

    Args:
        model: a model folder or a run.
        pairs: one file with both sides, or two aligned text files.
        layer: of the decoder, counted from 1; the last but one unless given.
        heads: of that layer, counted from 1: the mean of these instead of that of all.
        later: read the step after the one that produces a word: that word is its input, and what
            it attends to is often nearer to what the word translates.
        threshold: link all words that get at least this share of a target word's attention.
        units: words, between spaces; or pieces, such as letters, where words are not what is meant.
        gold: known links: a line i-j for each pair (ipj if only possible), or a line "pair i j" (S
            or P behind) for each link. Says how well each layer and head agrees with them, and
            writes the links of the best one, unless --layer, --heads or --later chooses.
        json: a file to write the figures of --gold to.
        set: change a setting of [decoding] or, for how the pairs are read, [data]; may be repeated.
    """
    from transduce.data.files import open_text
    from transduce.data.progress import Counting
    from transduce.data.readers import read_pairs
    from transduce.decoding.translator import opened
    from transduce.inspection.alignment import align as links_of
    from transduce.inspection.alignment import choose, model_of
    from transduce.inspection.alignment_search import search, study
    from transduce.inspection.study import printed, write_json
    from transduce.translating import check_output

    if threshold is not None and not 0 < threshold <= 1:
        raise UsageError(f"--threshold {threshold:g}: a share, more than 0 and at most 1")
    if json is not None:
        if gold is None:
            raise UsageError("--json writes the figures of --gold: give that, too")
        if not json.parent.is_dir():
            raise UsageError(f"cannot write {json}: there is no folder {json.parent}")
        check_output(json, [*pairs, gold])
    config, translator = opened([model], with_changes(set or ()))
    choice = choose(model_of(translator), layer, heads or (), later)
    stream = read_pairs(pairs, config.data)
    if gold is not None:
        held = list(stream)
        with Counting("comparing", "pairs", len(held)) as progress:
            found = search(translator, held, gold, units, threshold, progress.advance)
        if not found.gold.certain:
            say(f"warning: nothing in {gold} says whether words count from 0 or 1: taken for 0")
        for line in printed(figures := study(found, model.resolve().name)):
            say(line)
        if json is not None:
            write_json(figures, json)
        stream = iter(held)
        if layer is None and not heads and not later:
            choice = found.best
    say(f"links: {choice}")
    with open_text(None) as out, Counting("aligning", "pairs", silent=out.isatty()) as progress:
        for aligned in links_of(translator, stream, choice, units, threshold, progress.advance):
            for side in aligned.pair.cut:
                where = f"pair {aligned.pair.line}: the {side}"
                say(f"warning: {where} is cut to {translator.max_source} pieces")
            out.write(f"{aligned}\n")


@app.command
def evaluate(
    model: Path,
    /,
    *,
    test: Pairs,
    references: OptionalPairs = None,
    baseline: Path | None = None,
    metrics: str | None = None,
    bleu_tokenize: str | None = None,
    ensemble: Models = None,
    examples: int = 3,
    output: Path | None = None,
    json: Path | None = None,
    set: Assignments = None,
) -> None:
    """Score a model on test pairs, with the search of its training's validation.

    Each score comes with its signature and, in brackets, where 95 % of the scores of 1,000 samples
    lie that are drawn from the sentences. Outputs made elsewhere are scored as well.

    Args:
        model: a model folder or a run; or a text file of outputs, one a line.
        test: the test pairs: one file with both sides, or two aligned text files.
        references: text files of more right answers, a line for each pair.
        baseline: another model, or a text file of its outputs: is the difference more than chance?
        metrics: names joined by commas: bleu, chrf, ter, wer, per, exact, word_edits.
        bleu_tokenize: sacrebleu's tokenization for BLEU: 13a, none, intl, zh, ja-mecab, char, ...
        ensemble: more models with the same vocabulary; the mean of their probabilities counts.
        examples: how many of the worst and of the best sentences to show.
        output: a file to write the outputs to.
        json: a file to write the scores to, with all settings and the examples.
        set: change a setting of [decoding], [evaluation] or, for how the pairs are read, [data],
            e.g. --set 'data.columns=["en", "de"]'; may be repeated.
    """
    import json as json_format

    from transduce.data.files import open_text
    from transduce.evaluating import System, evaluate_system, items_to_score
    from transduce.model_folder import write_file
    from transduce.translating import check_output

    for file in (output, json):
        if file is not None:
            check_output(file, [*test, *(references or ())])
    changes = [*(set or ())]
    if metrics is not None:
        changes.append(f"evaluation.metrics={re.split(', *', metrics)}")
    if bleu_tokenize is not None:
        changes.append(f"evaluation.bleu_tokenize='{bleu_tokenize}'")
    system = System.find([model, *(ensemble or ())], with_changes(changes))
    other = System.find([baseline], with_changes(changes)) if baseline is not None else None
    asked = items_to_score(system.config, test[0] if len(test) == 1 else test, references or ())
    for one in (system, other):
        if one is not None and one.translator is not None:
            decoding = one.config.decoding.model_dump()
            say(f"{one.name}: " + ", ".join(f"{key} {value}" for key, value in decoding.items()))
    found = evaluate_system(system, other, asked, say)
    with open_text(None) as out:
        for line in found.lines():
            out.write(line + "\n")
    examples = max(0, examples)
    for name, some in found.examples(examples).items():
        for example in some:
            say(f"{name}, item {example['item']}: {example['source']}")
            say(f"    output     {example['output']}")
            for reference in example["references"]:
                say(f"    reference  {reference}")
    if output is not None:
        write_file(output, "".join(text + "\n" for text in found.outputs).encode())
    if json is not None:
        text = json_format.dumps(found.record(examples), indent=1, ensure_ascii=False)
        write_file(json, f"{text}\n".encode())


@app.command
def export(
    model: Path,
    /,
    *,
    to: Literal["ctranslate2", "onnx", "huggingface"],
    out: Path,
    quantization: str = "float32",
    test: OptionalPairs = None,
    sentences: str | None = None,
    set: Assignments = None,
) -> None:
    """Write a model for another engine, and prove that it is the same model.

    What the engine cannot compute is refused by its name. The export is loaded again and compared
    with the torch engine: log-probabilities of given pairs, outputs, scores, speed. If it does not
    keep the bounds, nothing is left of it; otherwise parity.json in it is the report.

    Args:
        model: a model folder or a run.
        to: ctranslate2 (fast, on CPUs and GPUs), onnx (runs on onnxruntime alone), or huggingface
            (MarianMTModel of transformers).
        out: the folder to write.
        quantization: float32; for ctranslate2 also int8 or int8_float32.
        test: test pairs (one file with both sides, or two aligned text files) to translate with
            both, and to score the outputs with.
        sentences: instead, a text file of sentences to translate with both.
        set: change a setting of [decoding], [evaluation] or, for how the pairs are read, [data],
            that the export is to have; may be repeated.
    """
    from transduce.data.files import read_lines
    from transduce.delivering import export as deliver
    from transduce.evaluating import Items

    if test and sentences:
        raise UsageError("--test and --sentences exclude each other")
    settings, asked = with_changes(set or ()), None
    if test:
        asked = items_asked(model, test, settings)
    elif sentences:
        asked = Items(list(read_lines(sentences)), [])
    deliver(model, to, out, quantization, asked, settings, say)
    print(out)


@app.command
def shortlist(
    model: Path,
    /,
    *,
    pairs: Pairs,
    each: int = 50,
    always: int = 100,
    test: OptionalPairs = None,
    set: Assignments = None,
) -> None:
    """Learn from pairs which target pieces may come, given those of a source; for speed.

    The shortlist is written into the model folder. With --set decoding.shortlist=true the fast
    engine then computes the probabilities of some hundred pieces in place of the whole vocabulary:
    that much is saved at each step, most of it with large vocabularies and few decoder layers. Now
    and then an output is another one; --test says how good they are.

    Args:
        model: a model folder or a run.
        pairs: to learn from, best those of its training: one file, or two aligned text files.
        each: target pieces that each source piece allows, at most.
        always: the most frequent target pieces, so many of which are allowed everywhere.
        test: test pairs to translate without it and with it.
        set: change a setting of [decoding], [evaluation] or, for how the pairs are read, [data];
            may be repeated.
    """
    from transduce.shortlisting import shortlist as learn

    for name, value in (("each", each), ("always", always)):
        if value < 1:
            raise UsageError(f"--{name} {value}: at least 1")
    settings = with_changes(set or ())
    asked = items_asked(model, test, settings) if test else None
    learn(model, pairs, each, always, asked, settings, say)


def items_asked(model: Path, test: Sequence[str], settings: Settings) -> "Items":
    """Read test pairs as the settings of a model say."""
    from transduce.config import parse
    from transduce.evaluating import items_to_score
    from transduce.model_folder import find_model, load_config

    config = parse(merge(load_config(find_model(model)).model_dump(), settings), "the settings")
    return items_to_score(config, test[0] if len(test) == 1 else list(test))


@app.command(name="import")
def import_(folder: Path, /, *, out: Path) -> None:
    """Make a model folder of a Marian or OPUS-MT model in Hugging Face format.

    It translates, scores, is fine-tuned and exported as any other. What is not as it was is said,
    and stands in the folder's README.md; what cannot be carried is refused by its name.

    Args:
        folder: config.json, model.safetensors or pytorch_model.bin, source.spm, target.spm and
            vocab.json. No code in it is run.
        out: the model folder to write.
    """
    from transduce.importing import import_marian

    import_marian(folder, out, say)
    print(out)
