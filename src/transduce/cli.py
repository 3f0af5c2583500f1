"""The command: each verb reads its arguments, calls one function, and prints.

Data goes to stdout, everything else to stderr. torch is imported only when a verb needs it.
"""

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, CycloptsError, Parameter
from rich.console import Console

from transduce import __version__
from transduce.config import Settings, merge, named
from transduce.errors import TransduceError, UsageError

if TYPE_CHECKING:
    from transduce.config import Source
    from transduce.decoding.outputs import Translation
    from transduce.inspection.study import Study

HELP = """The sequence-to-sequence Transformer for your own pairs, on an ordinary machine.

MODEL is a model folder or a run. RECIPE is a TOML file, the name of a recipe of the package, or a
prepared corpus. PAIRS is one file with both sides (TSV, CSV, JSONL, Parquet, TMX, XLIFF, PO, MO) or
two aligned text files: plain or compressed, a member of a zip archive (pairs.zip/de.tsv), a URL,
or - for standard input. --set section.key=value changes any knob of a recipe.
"""

DATA_HELP = (
    """Look at pairs before training: what there is, what is wrong with it, and how to divide it."""
)

COMPARE_HELP = (
    """Put parts of the Transformer beside what could stand in their place, and measure."""
)

app = App(
    name="transduce",
    help=HELP,
    version=__version__,
    help_format="markdown",
    suppress_keyboard_interrupt=False,  # ours says so
)
data = App(name="data", help=DATA_HELP, help_format="markdown")
app.command(data)
compare = App(name="compare", help=COMPARE_HELP, help_format="markdown")
app.command(compare)


def no_option(type_: object, value: object) -> None:
    """Let "-" be a word, which stands for standard input, but no misspelt option."""
    words = value if isinstance(value, tuple) else (value,)
    for word in words:
        if isinstance(word, str) and word.startswith("-") and word != "-":
            raise ValueError(f"there is no option {word} (what is none, stands behind --)")


Word = Annotated[str, Parameter(allow_leading_hyphen=True, validator=no_option)]
OptionalWord = Annotated[str | None, Parameter(allow_leading_hyphen=True, validator=no_option)]
Pairs = Annotated[list[str], Parameter(consume_multiple=True, negative=())]
Columns = Annotated[list[str] | None, Parameter(n_tokens=2, negative=())]
Languages = Annotated[list[str] | None, Parameter(n_tokens=2, negative=())]
OptionalPairs = Annotated[list[str] | None, Parameter(consume_multiple=True, negative=())]
Names = Annotated[list[str] | None, Parameter(consume_multiple=True, negative=())]
Assignments = Annotated[list[str] | None, Parameter(name="--set", negative=())]
Texts = Annotated[list[str] | None, Parameter(negative=())]
Models = Annotated[list[Path] | None, Parameter(consume_multiple=True, negative=())]
Numbers = Annotated[list[int] | None, Parameter(consume_multiple=True, negative=())]
Tell = Callable[[str], None]
Flag = Annotated[bool, Parameter(negative=())]


def say(line: str) -> None:
    """Tell the user something that is not data."""
    Console(stderr=True, emoji=False).print(line, markup=False, highlight=False, soft_wrap=True)


@app.command
def quickstart(*, out: Path = Path("runs/quickstart"), minutes: float = 5.0) -> int:
    """Learn to pronounce English words: from data to a model one can ask, in minutes.

    Started again on the same folder, it goes on where it stopped.

    Args:
        out: folder of the run.
        minutes: how long to train.
    """
    if minutes <= 0:
        raise UsageError(f"--minutes {minutes:g}: must be more than 0")
    from transduce.quickstart import quickstart as run
    from transduce.quickstart import show

    result = run(out, minutes, say)
    if result is None:
        return INTERRUPTED
    show(result, command_name(), Console(stderr=True, emoji=False))
    print(f"WER {result.wer:.2f}")
    print(f"PER {result.per:.2f}")
    print(f"words {result.words}")
    print(f"model {result.model}")
    return 0


@app.command
def prepare(recipe: Path, /, *, out: Path, set: Assignments = None) -> None:
    """Clean and encode the pairs of a recipe into a corpus that stands alone, with a report.

    Killed and started again, it goes on where it stopped; started again with the same files and
    settings, it finds the corpus and uses it. `transduce train CORPUS --out RUN` trains on it.

    Args:
        recipe: a TOML file with the settings.
        out: folder of the corpus.
        set: change a setting, e.g. --set cleaning.duplicates=drop; may be repeated.
    """
    from transduce.config import overlay, read_recipe
    from transduce.data.corpus import PAGE
    from transduce.data.report import printed
    from transduce.preparing import prepare_corpus

    corpus = prepare_corpus(overlay(read_recipe(recipe), set or ()), out, say)
    for line in printed(corpus.report()):
        say(line)
    say(f"the report as a page: {out / PAGE}")
    print(out)


@data.command
def report(
    *pairs: Word,
    valid: OptionalPairs = None,
    test: OptionalPairs = None,
    format: str | None = None,
    columns: Columns = None,
    languages: Languages = None,
    out: Path | None = None,
    json: Path | None = None,
    set: Assignments = None,
) -> None:
    """Say what pairs look like: lengths, characters, duplicates, leaks, what cleaning would drop.

    Args:
        pairs: training pairs; or a recipe (ending in .toml), or a prepared corpus.
        valid: validation pairs, to be looked up among the training pairs.
        test: test pairs, likewise.
        format: text, tsv, csv, jsonl, parquet, tmx, xliff, po, mo or huggingface.
        columns: the source's and the target's column, by name or number.
        languages: the source's and the target's language.
        out: write the report as a page (HTML) here.
        json: write the report as JSON here.
        set: change a setting, e.g. --set tokenizer.kind=char; may be repeated.
    """
    import json as json_format
    from tempfile import TemporaryDirectory

    from transduce.config import overlay, read_recipe
    from transduce.data.corpus import MANIFEST, Corpus
    from transduce.data.files import open_text
    from transduce.data.page import report_page
    from transduce.data.report import printed
    from transduce.model_folder import write_file
    from transduce.preparing import prepare_corpus

    if len(pairs) == 1 and (Path(pairs[0]) / MANIFEST).exists():
        found = Corpus(Path(pairs[0])).report()
    else:
        recipe = len(pairs) == 1 and pairs[0].endswith(".toml")
        settings = read_recipe(Path(pairs[0])) if recipe else {}
        given = {"train": () if recipe else pairs, "valid": valid, "test": test}
        reading = reading_of(format, columns, languages)
        settings = merge(settings, {"data": files_of(given) | reading})
        with TemporaryDirectory() as folder:
            settings = overlay(settings, set or ())
            found = prepare_corpus(settings, Path(folder) / "corpus", say).report()
    with open_text(None) as printer:
        for line in printed(found):
            printer.write(line + "\n")
    if out is not None:
        write_file(out, report_page(found).encode())
    if json is not None:
        text = json_format.dumps(found, indent=1, ensure_ascii=False) + "\n"
        write_file(json, text.encode())


@data.command
def show(
    *pairs: Word,
    format: str | None = None,
    columns: Columns = None,
    languages: Languages = None,
    first: int | None = None,
) -> None:
    """Print pairs as TSV: the same whatever file they come from.

    Args:
        pairs: one file with both sides, or two aligned text files.
        format: text, tsv, csv, jsonl, parquet, tmx, xliff, po, mo or huggingface.
        columns: the source's and the target's column, by name or number.
        languages: the source's and the target's language.
        first: only so many pairs.
    """
    from itertools import islice

    from transduce.data.files import open_text
    from transduce.data.readers import read_pairs
    from transduce.data.splitting import as_tsv

    stream = read_pairs(sources_of(pairs, format, columns, languages))
    with open_text(None) as printer:
        for pair in stream if first is None else islice(stream, first):
            printer.write(as_tsv(pair))


@data.command
def sample(
    *pairs: Word,
    count: int = 100,
    seed: int = 1,
    format: str | None = None,
    columns: Columns = None,
    languages: Languages = None,
) -> None:
    """Print pairs drawn at random, as TSV, in the order of the file.

    Args:
        pairs: one file with both sides, or two aligned text files.
        count: how many.
        seed: another one draws others.
        format: text, tsv, csv, jsonl, parquet, tmx, xliff, po, mo or huggingface.
        columns: the source's and the target's column, by name or number.
        languages: the source's and the target's language.
    """
    from transduce.data.files import open_text
    from transduce.data.splitting import as_tsv
    from transduce.data.splitting import sample as draw

    if count < 0 or seed < 0:
        raise UsageError("--count and --seed must not be negative")
    found = draw(sources_of(pairs, format, columns, languages), count, seed)
    with open_text(None) as printer:
        for pair in found:
            printer.write(as_tsv(pair))


@data.command
def split(
    *pairs: Word,
    out: Path,
    valid: str = "10%",
    test: str = "10%",
    seed: int = 1,
    format: str | None = None,
    columns: Columns = None,
    languages: Languages = None,
) -> None:
    """Divide pairs into train.tsv, valid.tsv and test.tsv, equal sources on one side.

    Sources count as equal if they differ in case, spaces or Unicode form alone.

    Args:
        pairs: one file with both sides, or two aligned text files.
        out: folder to write to.
        valid: size of the validation part: a number of pairs, or a share such as 10%; 0 for none.
        test: size of the test part, likewise.
        seed: another one divides otherwise.
        format: text, tsv, csv, jsonl, parquet, tmx, xliff, po, mo or huggingface.
        columns: the source's and the target's column, by name or number.
        languages: the source's and the target's language.
    """
    from transduce.data.splitting import split as divide

    if seed < 0:
        raise UsageError("--seed must not be negative")
    counts = divide(sources_of(pairs, format, columns, languages), out, valid, test, seed)
    for name, count in sorted(counts.items()):
        say(f"{out / name}.tsv: {count:,} pairs")


@app.command
def train(
    recipe: Path | None = None,
    /,
    *,
    out: Path,
    train: OptionalPairs = None,
    valid: OptionalPairs = None,
    preset: str | None = None,
    resume: Flag = False,
    dry_run: Flag = False,
    deterministic: Flag = False,
    set: Assignments = None,
) -> int:
    """Train a model on pairs, from a recipe or from two sets of pairs alone.

    What is not given is chosen from the corpus, and said. Everything is left in the run folder.

    Args:
        recipe: a TOML file with the settings, or a prepared corpus.
        out: folder of the run; must not hold another one.
        train: training pairs.
        valid: validation pairs.
        preset: sizes: tiny, small, base, big, or a row of Table 3.
        resume: go on with a run that was stopped.
        dry_run: only say what it would take: memory, time and disk.
        deterministic: on a GPU: the same bits again, at lower speed (on a CPU they are anyway).
        set: change a setting, e.g. --set training.steps=5000; may be repeated.
    """
    from transduce.preparing import settings_of

    settings: Settings = settings_of(recipe) if recipe else {}
    given = files_of({"train": train, "valid": valid})
    settings = merge(settings, {"data": given} if given else {})
    if preset is not None:
        named("presets", preset)
        settings["preset"] = preset
    if deterministic:
        set = [*(set or ()), "training.deterministic=true"]
    if not settings and not resume:
        raise UsageError("nothing to train on: give a recipe, or --train and --valid")
    if dry_run:
        from transduce.experiment import price

        for line in price(settings, out, resume, set or (), say).lines():
            print(line)
        return 0
    from transduce.experiment import train as run

    outcome = run(settings, out, resume, set or (), say)
    if outcome == "interrupted":
        return INTERRUPTED
    say(f"try it: echo 'a source of your own' | {command_name()} translate {out}")
    return 0


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
def average(
    run: Path, /, *, last: int | None = None, best: int | None = None, out: Path | None = None
) -> None:
    """Average the last checkpoints of a run (§6.1 of the paper), or the best, into a model folder.

    Args:
        run: the run's folder.
        last: the mean of so many last checkpoints; 5 if nothing is said.
        best: the mean of so many best ones (training.keep_best says how many a run keeps).
        out: the model folder to write; by default average-last-N or average-best-N in the run.
    """
    if last is not None and best is not None:
        raise UsageError("--last and --best exclude each other")
    which: Literal["last", "best"] = "last" if best is None else "best"
    count = best if best is not None else 5 if last is None else last
    if count < 1:
        raise UsageError(f"--{which} {count}: must be at least 1")
    from transduce.experiment import average_run

    folder = average_run(run, count, out, which)
    say(f"the average of the {which} {count} checkpoints")
    print(folder)


@app.command
def augment(
    model: Path,
    /,
    *,
    out: Path,
    distill: OptionalPairs = None,
    back: str | None = None,
    beam_size: int | None = None,
    engine: Literal["auto", "torch", "ctranslate2"] | None = None,
    set: Assignments = None,
) -> None:
    """Make training pairs with a model: easier targets for a smaller one, or sources of targets.

    Writes JSONL that `train` reads, a pair a line with its score and the number of the line it was
    made from; FILE.provenance.json says by what. Started again after it was stopped, it goes on.

    Args:
        model: a model folder or a run.
        out: the file to write; its name must end in .jsonl.
        distill: training pairs (one file with both sides, or two aligned text files), whose
            targets the model's outputs replace.
        back: a text file of sentences in the language that MODEL reads. What it makes of them
            become sources, they themselves targets, for a model of the other direction.
        beam_size: hypotheses kept per sentence; 1 is greedy search.
        engine: torch, ctranslate2, or auto.
        set: change a setting of [decoding] or, for how the pairs are read, [data]; may be repeated.
            Sources of more variety: --set decoding.method=sample.
    """
    from transduce.augmenting import augment as make

    if bool(distill) == bool(back):
        raise UsageError("give either --distill PAIRS or --back FILE")
    changes = [*(set or ())]
    changes += [f"decoding.beam_size={beam_size}"] if beam_size is not None else []
    changes += [f"decoding.engine={engine}"] if engine is not None else []
    kind: Literal["distilled", "back"] = "distilled" if distill else "back"
    make(model, kind, distill or [str(back)], out, with_changes(changes), say)
    print(out)


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
    from transduce.config import parse
    from transduce.data.files import read_lines
    from transduce.delivering import export as deliver
    from transduce.evaluating import Items, items_to_score
    from transduce.model_folder import find_model, load_config

    if test and sentences:
        raise UsageError("--test and --sentences exclude each other")
    settings, asked = with_changes(set or ()), None
    if test:
        config = parse(merge(load_config(find_model(model)).model_dump(), settings), "the settings")
        asked = items_to_score(config, test[0] if len(test) == 1 else test)
    elif sentences:
        asked = Items(list(read_lines(sentences)), [])
    deliver(model, to, out, quantization, asked, settings, say)
    print(out)


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


@compare.command
def layers(
    *,
    lengths: Numbers = None,
    d: int = 64,
    out: Path | None = None,
    json: Path | None = None,
) -> None:
    """Compare the layer types of Table 1: operations, path lengths, time and memory.

    Takes a minute or two on an idle machine; whatever else runs on it disturbs the times.

    Args:
        lengths: numbers of positions, n; 16 to 4,096 unless given.
        d: width of the layers whose length varies.
        out: write the study as a page (HTML) here.
        json: write its numbers as JSON here.
    """
    wrong = next((f"--lengths {n}" for n in lengths or () if n < 1), None)
    if wrong or d < 1:
        raise UsageError(f"{wrong or f'--d {d}'}: must be at least 1")
    from transduce.inspection import layers as subject

    given = {"lengths": sorted(set(lengths))} if lengths else {}
    show_study(lambda tell: subject.study(d=d, tell=tell, **given), out, json)


@compare.command
def positions(
    *, updates: int = 1000, seed: int = 1, out: Path | None = None, json: Path | None = None
) -> None:
    """Compare sinusoids, learned positions and none beyond the length that was trained.

    Args:
        updates: how long each of three small models is trained.
        seed: decides weights and letters.
        out: write the study as a page (HTML) here.
        json: write its numbers as JSON here.
    """
    from transduce.inspection import positions as subject

    at_least_one_update(updates)
    show_study(lambda tell: subject.study(updates, seed, tell), out, json)


@compare.command
def norms(
    *, updates: int = 300, seed: int = 1, out: Path | None = None, json: Path | None = None
) -> None:
    """Compare norms: the same sentences alone, in company, and among longer ones.

    Args:
        updates: how long each of three small models is trained.
        seed: decides weights and letters.
        out: write the study as a page (HTML) here.
        json: write its numbers as JSON here.
    """
    from transduce.inspection import norms as subject

    at_least_one_update(updates)
    show_study(lambda tell: subject.study(updates, seed, tell), out, json)


@app.command
def explain(
    recipe: Path,
    /,
    *,
    out: Path | None = None,
    json: Path | None = None,
    set: Assignments = None,
) -> None:
    """Say what a model is in the paper's terms: figure 1, parameters, operations, memory.

    Args:
        recipe: a TOML file with the settings, a run or a model folder.
        out: write it as a page (HTML) here.
        json: write its numbers as JSON here.
        set: change a setting, e.g. --set model.h=1; may be repeated.
    """
    from transduce.inspection import explanation as subject

    settings = subject.settings_to_explain(recipe, set or ())
    name = recipe.stem if recipe.suffix == ".toml" else recipe.resolve().name
    show_study(lambda tell: subject.study(settings, name, tell), out, json)


@app.command(name="report")
def report_(
    run: Path,
    /,
    *,
    out: Path | None = None,
    pages: Flag = False,
    json: Path | None = None,
    sentences: int = 500,
) -> None:
    """Say what the training of a run was like: curves, samples over time, worst sentences.

    A run that is still training, was stopped or was killed is reported as far as it has come.

    Args:
        run: the run's folder.
        out: write the report as a page (HTML) here.
        pages: beside it, write a page for each of the worst sentences: heads and search.
        json: write its numbers as JSON here.
        sentences: how many validation sentences to translate, to find the worst; 0 for none.
    """
    if sentences < 0:
        raise UsageError(f"--sentences {sentences}: must not be negative")
    if pages and out is None:
        raise UsageError("--pages stand beside a page: give --out, too")
    from transduce.inspection import report as subject

    folder = out.with_name(f"{out.stem}-pages") if out is not None and pages else None
    show_study(lambda tell: subject.study(run, sentences, folder, tell), out, json)


def at_least_one_update(updates: int) -> None:
    """Refuse a training of nothing."""
    if updates < 1:
        raise UsageError(f"--updates {updates}: must be at least 1")


def check_folders(*files: Path | None) -> None:
    """Refuse, before anything is computed, to write where there is no folder."""
    for path in files:
        if path is not None and not path.parent.is_dir():
            raise UsageError(f"cannot write {path}: there is no folder {path.parent}")


def show_study(make: "Callable[[Tell], Study]", out: Path | None, json: Path | None) -> None:
    """Make a study, saying how far it is; write it where it is asked for, and print it."""
    from transduce.inspection.study import printed, write_json, write_page

    check_folders(out, json)
    with Console(stderr=True).status("starting") as status:
        study = make(lambda line: status.update(line))
    if out is not None:
        write_page(study, out)
        say(f"the study as a page: {out}")
    if json is not None:
        write_json(study, json)
    for line in printed(study):
        print(line)


@app.command
def inspect(
    model: Path | None = None,
    text: OptionalWord = None,
    other: OptionalWord = None,
    /,
    *,
    numbers: Path | None = None,
    target: str | None = None,
    baseline: Path | None = None,
    encoder_layer: int | None = None,
    decoder_layer: int | None = None,
    head: int = 1,
    out: Path | None = None,
    json: Flag = False,
    set: Assignments = None,
) -> None:
    """See what a model does with a sentence: every head, one of them step by step, the search.

    Without --out, in the terminal.

    Args:
        model: a model folder or a run.
        text: the source; - reads a line from standard input.
        other: another source, to be compared with it.
        numbers: instead, a file of vectors and matrices typed by hand (TOML or JSON: q, k, v; or x,
            W_Q, W_K, W_V, W_O; h, mask, padding, layer_norm); no model is needed.
        target: the target to look at, instead of the one that is searched for.
        baseline: another model, to be compared on the same source.
        encoder_layer: the layer that is followed step by step, from 1; the first unless given.
        decoder_layer: likewise in the decoder; the last but one unless given.
        head: likewise.
        out: write a page (HTML) that needs nothing else.
        json: print the numbers as JSON.
        set: change a setting of [decoding], e.g. --set decoding.beam_size=8; may be repeated.
    """
    from transduce.inspection.inspecting import Subject, show, traced, traced_numbers

    check_folders(out)
    layers = {"encoder_layer": encoder_layer, "decoder_layer": decoder_layer, "head": head}
    if numbers is not None:
        if model is not None:
            raise UsageError("--numbers needs no model")
        traces = [traced_numbers(numbers)]
        name = numbers.name
    elif model is None or text is None:
        raise UsageError("give a model and a text, or --numbers FILE")
    else:
        subjects = [Subject(model, text)]
        subjects += [Subject(model, other)] if other is not None else []
        subjects += [Subject(baseline, text)] if baseline is not None else []
        traces = traced(subjects, target, layers, with_changes(set or ()))
        name = " and ".join(dict.fromkeys(subject.name for subject in subjects))
    for line in show(traces, name, out, json, say):
        print(line)


@app.command
def ablate(
    recipe: Path,
    /,
    *,
    out: Path,
    rows: Names = None,
    seeds: int = 1,
    jobs: int = 1,
    test: OptionalPairs = None,
    dry_run: Flag = False,
    set: Assignments = None,
) -> int:
    """Train the rows of the paper's Table 3 on your pairs, scaled to your model, and compare them.

    Each differs from base, the recipe's model, in one respect, and has the same pairs and as many
    updates. Differences come with intervals, beside the paper's. Stopped or killed and started
    again, it goes on; more rows or seeds may be asked for then.

    Args:
        recipe: a TOML file with the settings, or a prepared corpus.
        out: folder of the ablation: all runs, ablation.json and ablation.html.
        rows: rows of Table 3 (A1 ... E, big) or groups: A (heads), B (width of keys), C (sizes), D
            (dropout, label smoothing), E (learned positions), layers, norms, normalisers,
            positions. A, B, C, D and E unless given.
        seeds: runs of each row.
        jobs: runs side by side, each with its share of the threads.
        test: test pairs to score on, instead of the validation pairs.
        dry_run: only list the rows, and say how long it would take.
        set: change a setting, e.g. --set training.steps=5000; may be repeated.
    """
    from transduce.inspection.ablation import ablate as run
    from transduce.inspection.ablation import priced
    from transduce.inspection.study import printed

    pairs = files_of({"test": test}).get("test", "")
    if dry_run:
        for line in priced(recipe, out, rows or (), seeds, jobs, pairs, set or (), say):
            print(line)
        return 0
    study, whole = run(recipe, out, rows or (), seeds, jobs, pairs, set or (), say)
    if study is None:
        return INTERRUPTED
    for line in printed(study):
        print(line)
    return 0 if whole else TransduceError.status


def files_of(parts: Mapping[str, Sequence[str] | None]) -> dict[str, Any]:
    """Return the files of each part as a [data] table has them: one path, or two."""
    return {
        name: files[0] if len(files) == 1 else list(files) for name, files in parts.items() if files
    }


def reading_of(
    format: str | None, columns: Sequence[str] | None, languages: Sequence[str] | None
) -> dict[str, Any]:
    """Return options as keys of the [data] table."""
    numbered = [int(c) if c.isdecimal() else c for c in columns] if columns else None
    given = {"format": format, "columns": numbered, "languages": list(languages or ()) or None}
    return {key: value for key, value in given.items() if value is not None}


def sources_of(
    pairs: Sequence[str],
    format: str | None,
    columns: Sequence[str] | None,
    languages: Sequence[str] | None,
) -> "list[Source]":
    """Return where the pairs of a command line come from."""
    from transduce.config import parse
    from transduce.data.readers import sources

    config = parse({"data": reading_of(format, columns, languages)}, "the command line")
    return sources(list(pairs), config.data)


INTERRUPTED = 130  # the shell's status for a program that Ctrl-C ended


def with_changes(assignments: Iterable[str]) -> Settings:
    """Return what to lay over the settings of a model that is used, not trained.

    Raises:
        UsageError: for a setting that does not exist, or that the model was made with.
    """
    from transduce.config import Reading, from_assignments

    assignments = list(assignments)
    changes = from_assignments(assignments)
    for assignment in assignments:
        section, _, key = assignment.partition("=")[0].strip().partition(".")
        reading = section == "data" and key in Reading.model_fields
        if not reading and section not in ("decoding", "evaluation", "device"):
            raise UsageError(
                f"--set {assignment}: a model that is there keeps its [{section}]; what can be "
                "changed are [decoding], [evaluation], device and, for how pairs are read, "
                f"data.{', data.'.join(Reading.model_fields)}"
            )
    as_usual = {"data": {"format": None, "columns": None, "header": None}}  # of training's files
    return merge(as_usual, changes)


def command_name() -> str:
    """Return what the user types to call this command."""
    import shutil

    return "transduce" if shutil.which("transduce") else os.path.relpath(sys.argv[0])


SEVERAL_FILES = ("--pairs", "--train", "--valid", "--test", "--references", "--distill")
"""Options that take more than one word."""


def with_standard_input(words: Sequence[str]) -> list[str]:
    """Return arguments with `--pairs=-` for `--pairs -`: alone, - would be taken for an option."""
    found: list[str] = []
    option = ""
    for word in words:
        if word.startswith("--"):
            option = word.partition("=")[0]
        elif word == "-" and option and (found[-1] == option or option in SEVERAL_FILES):
            if found[-1] == option:
                found.pop()
            word = f"{option}=-"
        elif found and found[-1] == f"{option}=-" and option in SEVERAL_FILES:
            found.append(option)
        found.append(word)
    return found


def main() -> None:
    """Run the command and exit: 0 on success, 2 on wrong usage, 1 on any other failure."""
    try:
        status = app(
            with_standard_input(sys.argv[1:]),
            exit_on_error=False,
            print_error=False,
            result_action="return_value",
        )
        sys.stdout.flush()
    except CycloptsError as error:
        say(f"transduce: {error}")
        status = UsageError.status
    except TransduceError as error:
        say(f"transduce: {error}")
        status = error.status
    except KeyboardInterrupt:
        say("transduce: interrupted")
        status = INTERRUPTED
    except UnicodeEncodeError as error:
        say(f"transduce: {error.object[error.start :][:1]!r} is no UTF-8: rename what is called so")
        status = 1
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the reader left; nothing to report
        status = 1
    except OSError as error:
        say(f"transduce: {error.filename or ''} {error.strerror or error}".replace("  ", " "))
        status = 1
    except (MemoryError, RuntimeError) as error:
        from transduce.training.gradients import is_out_of_memory

        if not is_out_of_memory(error):
            raise
        say("transduce: not enough memory: smaller batches, beams or limits need less")
        status = 1
    sys.exit(status or 0)
