"""A model, or outputs from anywhere, scored on test pairs and compared with another."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transduce.config import Config, Paths, Settings, Source, merge, parse
from transduce.data.files import read_lines
from transduce.data.progress import Counting
from transduce.data.readers import read_pairs
from transduce.data.text import is_blank, normalize, one_line
from transduce.decoding.choosing import Verdict, choose, offered, remember
from transduce.decoding.translator import Translator, opened
from transduce.errors import TransduceError
from transduce.evaluation.metrics import (
    Comparison,
    Score,
    bleu_scorer,
    by_sentence,
    by_source,
    compare,
    evaluate,
    is_better,
    tokenized_looking,
)
from transduce.model_folder import weights_digest

Say = Callable[[str], None]
SAMPLES = 1000
"""Drawn from the sentences, for intervals and tests."""


@dataclass(frozen=True)
class Items:
    """What is translated, and what is right."""

    sources: list[str]
    references: list[list[str]]
    """For each source at least one."""


def items(sources: list[str], targets: list[str], references: str) -> Items:
    """Return sources with their references, as [evaluation] references says."""
    if references == "by_source":
        return Items(*by_source(sources, targets))
    return Items(sources, [[target] for target in targets])


def items_to_score(config: Config, files: Paths | list[Source], more: Sequence[str] = ()) -> Items:
    """Read test pairs; no line is left out, and references stay as they are written.

    Args:
        config: says how the pairs are read, and what an item is.
        files: the pairs.
        more: text files of more references, a line for each pair.

    Raises:
        TransduceError: if something cannot be read, or the counts differ.
    """
    pairs = list(read_pairs(files, config.data))
    if pairs and all(is_blank(pair.tgt) for pair in pairs):
        raise TransduceError(
            "no test pair has a target: is it in another column (data.columns), or in another file?"
        )
    found = items(
        [pair.src for pair in pairs], [pair.tgt for pair in pairs], config.evaluation.references
    )
    for path in more:
        lines = aligned_lines(path, len(pairs), "pairs")
        by_item = dict(zip(found.sources, found.references, strict=True))
        for i, line in enumerate(lines):
            by_line = config.evaluation.references == "line"
            (found.references[i] if by_line else by_item[pairs[i].src]).append(line)
    return found


def aligned_lines(path: str, count: int, what: str) -> list[str]:
    """Read a text file that has a line for each of so many things.

    Raises:
        TransduceError: with both numbers, if it has not.
    """
    lines = [one_line(line) for line in read_lines(path)]
    if len(lines) != count:
        raise TransduceError(
            f"{path} has {len(lines)} lines, but there are {count} {what}: "
            "line n of one must belong to line n of the other"
        )
    return lines


def scored(
    translator: Translator, asked: Items, config: Config
) -> tuple[dict[str, Score], list[str]]:
    """Translate sources; return the scores that [evaluation] asks for, and the outputs."""
    stream = translator.translate_stream(asked.sources, detail="text")
    outputs = [translation.text for translation in stream]
    names, tokenize = config.evaluation.metrics, config.evaluation.bleu_tokenize
    return evaluate(outputs, asked.references, names, tokenize), outputs


def judge_int8(folder: Path, asked: Items, say: Say) -> Verdict | None:
    """Compare int8 with float32 on validation items, where CTranslate2 has both; note the result.

    Args:
        folder: of the model; the verdict is written beside its weights.
        asked: what is translated.
        say: is told.
    """
    settings: Settings = {
        "decoding": {"engine": "auto", "precision": "auto", "shortlist": False}  # there is none yet
    }
    if choose([folder], settings).engine != "ctranslate2" or "int8" not in offered():
        return None
    found = {}
    for precision in ("float32", "int8"):
        fast: Settings = {"decoding": {"engine": "ctranslate2", "precision": precision}}
        config, translator = opened([folder], merge(settings, fast))
        scores, _ = scored(translator, asked, config)
        found[precision] = scores[config.evaluation.metrics[0]].score
    verdict = Verdict(
        metric=config.evaluation.metrics[0],
        sentences=len(asked.sources),
        weights=weights_digest(folder),
        **found,
    )
    remember(folder, verdict)
    say(
        str(verdict)
        + ("" if verdict.passes else f": more than {verdict.bound} worse, not for auto")
    )
    return verdict


@dataclass(frozen=True)
class System:
    """Something that has outputs: a model, an ensemble, or a text file of them."""

    name: str
    config: Config
    translator: Translator | None = None

    @classmethod
    def find(cls, paths: Sequence[Path], settings: Settings) -> "System":
        """Return the system that paths mean, with settings changed.

        Raises:
            TransduceError: if there is none.
            UsageError: if the settings are wrong.
        """
        name = " + ".join(map(str, paths))
        if len(paths) == 1 and paths[0].is_file():
            return cls(name, parse(merge(Config().model_dump(), settings), "the settings"))
        return cls(name, *opened(paths, settings))

    def outputs(self, sources: Sequence[str]) -> list[str]:
        """Return what it makes of each source, one for one.

        Raises:
            TransduceError: if a file has not one line for each.
        """
        if self.translator is None:
            return aligned_lines(self.name, len(sources), "sources")
        with Counting("translating", "sentences", len(sources)) as progress:
            stream = self.translator.translate_stream(sources, tell=progress.advance)
            return [translation.text for translation in stream]


@dataclass(frozen=True)
class Evaluation:
    """Scores, and what they were made of."""

    system: System
    baseline: System | None
    asked: Items
    outputs: list[str]
    scores: dict[str, Score]
    comparisons: dict[str, Comparison]
    order: list[int]
    """The items from the best to the worst by the first metric; the first of equal ones first."""

    def lines(self) -> Iterable[str]:
        """Yield a line for each score, and for each comparison."""
        yield from map(str, self.scores.values())
        yield from map(str, self.comparisons.values())

    def record(self, examples: int = 0) -> dict[str, Any]:
        """Return everything but the outputs as a JSON object, with so many examples."""
        config, metrics = self.system.config, {}
        for name, score in self.scores.items():
            metrics[name] = score.record()
            if self.baseline:
                against = self.comparisons[name].record()
                metrics[name]["baseline"] = {"system": self.baseline.name, **against}
        decoding = config.decoding.model_dump() if self.system.translator else None
        return {
            "sentences": len(self.outputs),
            "settings": {
                "system": self.system.name,
                "decoding": decoding,
                "evaluation": config.evaluation.model_dump(),
            },
            "metrics": metrics,
            **self.examples(examples),
        }

    def examples(self, count: int) -> dict[str, list[dict[str, Any]]]:
        """Return the worst and the best items."""
        chosen = {"worst": self.order[::-1][:count], "best": self.order[:count]}
        return {
            name: [
                {
                    "item": i + 1,
                    "source": self.asked.sources[i],
                    "output": self.outputs[i],
                    "references": self.asked.references[i],
                }
                for i in indices
            ]
            for name, indices in chosen.items()
        }


def evaluate_system(
    system: System, baseline: System | None, asked: Items, say: Say = lambda line: None
) -> Evaluation:
    """Score a system, with 95 % intervals, and compare it with another.

    Args:
        system: what is scored, as its [evaluation] says.
        baseline: what it is compared with.
        asked: the test items.
        say: is told of what makes a score doubtful.

    Raises:
        TransduceError: if the counts differ.
        UsageError: for an unknown tokenization.
    """
    how = system.config.evaluation
    bleu_scorer(how.bleu_tokenize)  # now, not after everything is translated
    outputs = system.outputs(asked.sources)
    if warning := tokenized_looking(outputs, asked.references):
        say(f"warning: {warning}")
    if empty := sum(all(map(is_blank, several)) for several in asked.references):
        say(f"warning: empty references: {empty}; any output is wrong there")
    form = system.config.data.normalization
    odd = sum(any(normalize(r, form) != r for r in several) for several in asked.references)
    if odd and system.translator is not None:
        say(
            f"warning: {odd} references have characters that the model never writes (another "
            "Unicode form, no-break spaces, ...): they count as errors"
        )
    scores = evaluate(outputs, asked.references, how.metrics, how.bleu_tokenize, SAMPLES)
    comparisons = {}
    if baseline is not None:
        others = baseline.outputs(asked.sources)
        comparisons = compare(
            outputs, others, asked.references, how.metrics, how.bleu_tokenize, SAMPLES
        )
    each = by_sentence(outputs, asked.references, how.metrics[0], how.bleu_tokenize)
    rising = is_better(how.metrics[0], 1.0, 0.0)
    order = sorted(range(len(each)), key=lambda i: -each[i] if rising else each[i])
    return Evaluation(system, baseline, asked, outputs, scores, comparisons, order)
