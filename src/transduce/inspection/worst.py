"""The sentences that a model does worst, by what is wrong with them.

By score; by length; by what was copied from the source though no reference has it; by what is said
again and again. Each is a number that can be checked by eye, not a judgement.
"""

import math
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transduce.assembly import corpus_folder, validation_items
from transduce.config import Config
from transduce.data.corpus import Corpus
from transduce.data.text import is_blank
from transduce.decoding.translator import Translator, load
from transduce.evaluating import Items
from transduce.evaluation.metrics import Score, by_sentence, evaluate, is_better
from transduce.inspection.pages import write_page
from transduce.inspection.study import Example, Examples, Link
from transduce.inspection.tracing import trace

SHOWN = 10
"""Sentences of each kind."""
RATIO = 1.5
"""How many times as long, or as short, as the nearest reference an output must be to be shown."""
COPIED = 0.5
"""Share of an output that must be copied from the source to be shown."""
LONGEST = 30
"""Words of the longest n-gram whose repetitions are looked for."""

Cut = Callable[[str], list[str]]


@dataclass(frozen=True)
class Outputs:
    """What a model makes of some sentences, and how good that is."""

    translator: Translator
    asked: Items
    texts: list[str]
    flags: list[tuple[str, ...]]
    scores: dict[str, Score]
    """Of all together."""
    each: dict[str, list[float]]
    """Of each by itself."""

    @property
    def wrong(self) -> list[int]:
        """The sentences whose output is none of the references."""
        pairs = zip(self.texts, self.asked.references, strict=True)
        return [i for i, (text, references) in enumerate(pairs) if text not in references]


@dataclass(frozen=True)
class Finding:
    """Sentences of which the same is wrong, the worst first."""

    caption: str
    items: list[int]
    notes: dict[int, str]
    """What is wrong with each."""


def outputs(run: Path, config: Config, most: int, tell: Callable[[str], None]) -> Outputs:
    """Translate so many validation sentences of a run with its model.

    Raises:
        TransduceError: if the run has no model yet, or its corpus is not there any more.
    """
    translator = load(run)
    asked = validation_items(Corpus(corpus_folder(config.data, run)), config, most)
    done = 0

    def count(more: int) -> None:
        nonlocal done
        done += more
        tell(f"translating: {done:,} of {len(asked.sources):,} validation sentences")

    count(0)
    found = list(translator.translate_stream(asked.sources, tell=count))
    texts = [translation.text for translation in found]
    how = config.evaluation
    return Outputs(
        translator,
        asked,
        texts,
        [translation.flags for translation in found],
        evaluate(texts, asked.references, how.metrics, how.bleu_tokenize),
        {
            name: by_sentence(texts, asked.references, name, how.bleu_tokenize)
            for name in how.metrics
        },
    )


def findings(found: Outputs) -> list[Finding]:
    """Return what is wrong, and where."""
    unit, cut = units([text for several in found.asked.references for text in several])
    return [
        by_score(found),
        by_length(found, unit, cut),
        by_copying(found, unit, cut),
        by_repetition(found, unit, cut),
    ]


def units(references: Sequence[str]) -> tuple[str, Cut]:
    """Return what texts are counted in: words, or characters where most texts have no space."""
    if 2 * sum(" " in text.strip() for text in references) >= len(references):
        return "words", str.split
    return "characters", lambda text: [character for character in text if not character.isspace()]


def by_score(found: Outputs) -> Finding:
    """Order by the first metric, and of equal scores by the next ones."""
    signs = {name: 1.0 if is_better(name, 1.0, 0.0) else -1.0 for name in found.each}
    order = sorted(
        found.wrong, key=lambda i: [signs[name] * each[i] for name, each in found.each.items()]
    )
    return Finding(f"Worst by {next(iter(found.each))}", order, {})


def by_length(found: Outputs, unit: str, cut: Cut) -> Finding:
    """Find outputs that are far longer or shorter than the reference of the nearest length."""
    ratios, notes = {}, {}
    for i in found.wrong:
        length = len(cut(found.texts[i]))
        lengths = [n for text in found.asked.references[i] if (n := len(cut(text)))]
        if not lengths:
            continue
        nearest = min(lengths, key=lambda n: abs(n - length))
        ratio = max(length, nearest) / length if length else math.inf
        ratio = max(ratio, length / nearest)
        if ratio >= RATIO and abs(length - nearest) > 1:
            ratios[i] = ratio
            notes[i] = f"{length} {unit}, the reference has {nearest}"
    return Finding("Far too long or too short", ranked(ratios), notes)


def by_copying(found: Outputs, unit: str, cut: Cut) -> Finding:
    """Find outputs of which a large part stands in the source and in no reference."""
    counts, notes = {}, {}
    for i in found.wrong:
        output, source = Counter(cut(found.texts[i])), Counter(cut(found.asked.sources[i]))
        copied = min(
            ((output & source) - Counter(cut(text))).total() for text in found.asked.references[i]
        )
        if copied and copied >= COPIED * output.total():
            counts[i] = copied
            notes[i] = (
                f"{copied} of {output.total()} {unit} stand in the source and not in the reference"
            )
    return Finding("Copied from the source", ranked(counts), notes)


def by_repetition(found: Outputs, unit: str, cut: Cut) -> Finding:
    """Find outputs that say something several times in a row, though no reference does."""
    counts, notes = {}, {}
    for i in found.wrong:
        again, what = repetition(cut(found.texts[i]))
        if again < 2:
            continue
        usual = max(repetition(cut(text))[0] for text in found.asked.references[i])
        if again > usual:
            counts[i] = again
            joined = (" " if unit == "words" else "").join(what)
            notes[i] = f"“{joined}” {1 + again / len(what):.3g} times in a row"
    return Finding("Repeated", ranked(counts), notes)


def ranked(numbers: Mapping[int, int | float]) -> list[int]:
    """Return sentences from the largest number to the smallest."""
    return sorted(numbers, key=lambda i: (-numbers[i], i))


def repetition(words: Sequence[str], longest: int = LONGEST) -> tuple[int, list[str]]:
    """Return how many words only say again what stands right before them, and what they say.

    >>> repetition("a b c b c b d".split())
    (3, ['b', 'c'])
    """
    most, what = 0, list[str]()
    for n in range(1, min(longest, len(words) // 2) + 1):
        again = 0
        for i in range(n, len(words)):
            again = again + 1 if words[i] == words[i - n] else 0
            if again >= n and again > most:
                most, what = again, list(words[i - n - again + 1 : i - again + 1])
    return most, what


# As examples ------------------------------------------------------------------------------------


def examples(
    found: Outputs, kinds: Sequence[Finding], run: Path, pages: Path | None
) -> list[Examples]:
    """Return the worst sentences of each kind, and how to see more of each.

    Args:
        found: what was translated.
        kinds: what is wrong with it.
        run: whose model it was.
        pages: a folder for a page of each sentence, beside the page that links to them.
    """
    links: dict[int, Link] = {}
    groups = []
    for finding in kinds:
        shown = finding.items[:SHOWN]
        if pages is not None:
            for i in shown:
                source = found.asked.sources[i]
                if i not in links and not is_blank(source):
                    name = f"{len(links) + 1}.html"
                    sentence_page(found.translator, source, pages / name, run.resolve().name)
                    links[i] = Link("see how it was decoded", f"{pages.name}/{name}")
        if shown:
            of = f": {len(finding.items):,} of {len(found.texts):,} sentences"
            first = f", the first {len(shown)}" if len(shown) < len(finding.items) else ""
            some = [example(found, i, finding.notes.get(i), run, links.get(i)) for i in shown]
            groups.append(Examples(f"{finding.caption}{of}{first}", some))
    return groups


def sentence_page(translator: Translator, source: str, path: Path, name: str) -> None:
    """Write the page of one sentence: attention, one head step by step, the search."""
    path.parent.mkdir(exist_ok=True)
    write_page([trace(translator, source)], path, name)


def example(found: Outputs, i: int, note: str | None, run: Path, link: Link | None) -> Example:
    """Return a sentence with its references and output."""
    source, references = found.asked.sources[i], found.asked.references[i]
    about = [f"sentence {i + 1}", *([note] if note else [])]
    about += [f"{name} {each[i]:.1f}" for name, each in found.each.items()]
    about += [flag for flag in found.flags[i] if flag != "empty"]
    texts = [("source", source), *(("reference", text) for text in references)]
    command = "" if is_blank(source) else command_for(run, source)
    return Example([*texts, ("output", found.texts[i])], " · ".join(about), command, link)


def command_for(run: Path, source: str) -> str:
    """Return what to type to look into how a sentence is translated."""
    guard = "-- " if source.startswith("-") else ""
    return f"transduce inspect {shlex.quote(str(run))} {guard}{shlex.quote(source)}"


def record(found: Outputs, kinds: Sequence[Finding]) -> dict[str, Any]:
    """Return the worst sentences as a JSON object."""
    return {
        "sentences": len(found.texts),
        "scores": {name: score.score for name, score in found.scores.items()},
        "worst": {
            finding.caption: [
                {
                    "item": i + 1,
                    "source": found.asked.sources[i],
                    "references": found.asked.references[i],
                    "output": found.texts[i],
                    "note": finding.notes.get(i, ""),
                    "scores": {name: each[i] for name, each in found.each.items()},
                }
                for i in finding.items[:SHOWN]
            ]
            for finding in kinds
        },
    }
