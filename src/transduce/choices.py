"""What `train` chooses by itself, from what it finds in the corpus, and why.

The rules are simple on purpose; docs/design.md has the measurements behind them. Whatever the
user decided is left alone and taken into account. Each choice comes with a sentence for the log.
"""

import importlib.util
import math
from dataclasses import dataclass, field

from transduce.config import Config, Settings, merge, named, parse
from transduce.data.corpus import Corpus
from transduce.data.statistics import SideStatistics, Survey

FEW_SYMBOLS = 500
OFTEN = 20


@dataclass
class Choices:
    """Settings that were chosen, and a sentence for each group of them."""

    settings: Settings = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)

    def add(self, user: Settings, section: str, reason: str, **values: object) -> None:
        """Choose `values` for those keys of a section that the user left open."""
        given = user if not section else user.get(section, {})
        chosen = {key: value for key, value in values.items() if key not in given}
        if chosen:
            self.settings = merge(self.settings, {section: chosen} if section else chosen)
            shown = ", ".join(f"{key} {_shown(value)}" for key, value in chosen.items())
            self.reasons.append(f"{shown}: {reason}")


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return " ".join(f"{key} {_shown(inner)}" for key, inner in value.items())
    if isinstance(value, list):
        return " ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


SUBWORDS = ("bpe", "unigram")
UPDATES_A_PASS = 20
"""Of few pairs, updates are small, so that there are as many as this in a pass over them."""
RARELY = 100
"""Updates between two validations, at least: these cost as much as dozens of updates."""
LESS = 5
"""What a model that is fine-tuned gets less of, rate and length, than one that knows nothing."""


def from_text(survey: Survey, user: Settings) -> Choices:
    """Choose what the raw text decides: tokenizers, sizes, metrics."""
    choices = Choices()
    _tokenizers(choices, survey, user)
    if "preset" not in user and not {"d_model", "N"} <= user.get("model", {}).keys():
        characters = survey.target.characters.total()
        preset = "tiny" if characters < 4e6 else "small" if characters < 6e7 else "base"
        choices.add(user, "", f"{characters:,} characters of target text", preset=preset)
        choices.settings = merge(named("presets", preset), choices.settings)
    what = _WHAT[unit(survey.target)]
    if what == _WHAT["bpe"]:
        choices.add(user, "evaluation", f"the target is {what}", metrics=["bleu", "chrf"])
        _scoring(choices, survey, user)
    else:
        reason = f"the target is {what}: an output is right or wrong"
        choices.add(user, "evaluation", reason, metrics=["exact", "per"])
    return choices


def _tokenizers(choices: Choices, survey: Survey, user: Settings) -> None:
    """Choose kinds and sizes of the vocabularies, and whether there is one or two of them."""
    given = user.get("tokenizer", {})
    if "source" in given or "target" in given:
        choices.add(user, "tokenizer", "the sides differ in the recipe", joint=False)
        return
    source = given.get("kind", unit(survey.source))
    target = given.get("kind", unit(survey.target))
    # At least the alphabet, and room to learn from it (many characters, few pairs).
    alphabet = survey.source.characters.keys() | survey.target.characters.keys()
    least = 1_000 * math.ceil((260 + 1.3 * len(alphabet)) / 1_000)
    vocabulary = max(subwords(survey.pairs), least)
    if source == target and source in SUBWORDS:
        shared = overlap(survey.source, survey.target)
        choices.add(
            user,
            "tokenizer",
            f"{survey.pairs:,} pairs of running text whose sides share {shared:.0%} of their "
            "characters",
            kind=source,
            vocabulary=vocabulary,
            joint=shared >= 0.5,
        )
    elif given.get("joint"):
        kind = source if source == target else "bpe"
        choices.add(user, "tokenizer", "one vocabulary for both sides", kind=kind)
    else:
        sizes = {kind: {"vocabulary": vocabulary} for kind in SUBWORDS if "vocabulary" not in given}
        choices.add(
            user,
            "tokenizer",
            f"the source is {_WHAT[source]}, the target {_WHAT[target]}",
            joint=False,
            source={"kind": source} | sizes.get(source, {}),
            target={"kind": target} | sizes.get(target, {}),
        )
    kinds = {source, target}
    if kinds - {"word", "byte"} and (survey.pairs < 1000 or not kinds & set(SUBWORDS)):
        choices.add(
            user,
            "tokenizer",
            "256 pieces for bytes would outnumber what there is to learn",
            byte_fallback=False,
        )


_WHAT = {
    "word": "a small set of words",
    "char": "letters",
    "bpe": "running text",
    "unigram": "running text",
    "byte": "bytes",
}


def _scoring(choices: Choices, survey: Survey, user: Settings) -> None:
    """Choose how BLEU divides the target into words, where spaces do not."""
    languages = user.get("data", {}).get("languages")
    language = languages[1] if languages else written_without_spaces(survey.target)
    main = str(language or "").replace("_", "-").split("-")[0].lower()
    scheme = {"zh": "zh", "cmn": "zh", "yue": "zh", "ja": "ja-mecab", "ko": "ko-mecab"}.get(main)
    if not scheme:
        return
    reason = f"the target's language is {language}"
    needed = {"ja-mecab": ("ipadic", "japanese"), "ko-mecab": ("mecab_ko", "korean")}.get(scheme)
    if needed and not importlib.util.find_spec(needed[0]):
        reason += f" (for {scheme}, the field's usual: pip install 'transduce[{needed[1]}]')"
        scheme = "char"
    choices.add(user, "evaluation", reason, bleu_tokenize=scheme)


def written_without_spaces(side: SideStatistics) -> str | None:
    """Return "zh" or "ja" if a side is mostly Chinese or Japanese, by its characters."""
    han = kana = letters = 0
    for character, count in side.characters.items():
        if character.isalpha():
            letters += count
            han += count * ("\u3400" <= character <= "\u9fff")
            kana += count * ("\u3040" <= character <= "\u30ff")
    if 2 * (han + kana) <= letters:
        return None
    return "ja" if kana > 0.1 * letters else "zh"


def unit(side: SideStatistics) -> str:
    """Return the piece that suits a side: its words, its letters, or subwords."""
    if side.word_count >= OFTEN * len(side.words) and len(side.words) <= FEW_SYMBOLS:
        return "word"
    spaceless = side.lines_with_space <= 0.02 * side.lines
    mean_length = side.characters.total() / max(1, side.lines)
    # Of Chinese and Japanese, which know no spaces, only words are short; sentences are text.
    longest = 6 if written_without_spaces(side) else 60
    if spaceless and len(side.characters) <= FEW_SYMBOLS and mean_length <= longest:
        return "char"
    return "bpe"


def subwords(pairs: int) -> int:
    """8,000 pieces for 30,000 pairs, twice as many for ten times the pairs."""
    size = 8000 * 2 ** math.log10(max(1, pairs) / 30_000)
    return int(min(32_000, max(1_000, round(size, -3))))


def overlap(source: SideStatistics, target: SideStatistics) -> float:
    """Return how much of the text is in characters of both sides, on the side where it is less."""

    def share(one: SideStatistics, other: SideStatistics) -> float:
        letters = one.characters.total() - one.characters[" "]
        both = one.characters.keys() & other.characters.keys() - {" "}
        return sum(one.characters[character] for character in both) / max(1, letters)

    return min(share(source, target), share(target, source))


def from_tokens(corpus: Corpus, config: Config, user: Settings) -> Choices:
    """Choose what the token counts decide: length of training, batch, rate, dropout, limits."""
    choices = Choices()
    counts = corpus.manifest["train"]
    tokens, pairs = counts["target_tokens"], counts["pairs"]
    width = config.model.d_model
    batch = 8192 if width > 256 else 2048 if width > 128 or is_text(config) else 1024
    batch = min(batch, max(512, round(tokens / UPDATES_A_PASS, -2)))
    choices.add(
        user, "training", f"a model of width {width} on {tokens:,} target tokens", tokens=int(batch)
    )
    batch = user.get("training", {}).get("tokens", batch)
    less = LESS if fine_tunes(user) else 1
    epochs = min(30.0 if is_text(config) else 60.0, max(10.0, 20e6 / tokens)) / less
    steps = round(epochs * tokens / batch, -2)
    steps = min(100_000 // less, max(3_000 // less, steps))
    if "minutes" not in user.get("training", {}):
        choices.add(
            user,
            "training",
            f"{steps * batch / tokens:,.0f} passes over {pairs:,} pairs"
            + (f", 1/{LESS} of what a new model gets" if fine_tunes(user) else ""),
            steps=int(steps),
        )
        steps = user.get("training", {}).get("steps", steps)
        choices = with_rhythm(choices, int(steps), width, user)
    if config.model.d_model <= 256 and config.preset in ("tiny", "small", None):
        choices.add(
            user,
            "model",
            "small models learn faster with the norm before the sub-layer",
            norm_place="pre",
        )
    if is_text(config) and epochs >= 20:
        choices.add(
            user,
            "model",
            "little text, seen many times",
            P_drop=0.3,
            attention_dropout=0.1,
            activation_dropout=0.1,
        )
    longest = counts["longest_surplus"]
    if longest > config.decoding.max_extra:
        choices.add(
            user,
            "decoding",
            f"a training target is {longest} tokens longer than its source",
            max_extra=longest + 10,
        )
    return choices


def with_rhythm(choices: Choices, steps: int, width: int, user: Settings) -> Choices:
    """Add what follows from the number of updates: warm-up, rate, when to validate and save."""
    if user.get("training", {}).get("schedule") != "paper":
        peak = 2e-3 if width <= 128 else 1e-3 if width <= 256 else 7e-4
        why = ""
        if fine_tunes(user):
            peak /= LESS
            why = f"; 1/{LESS} of a new model's rate, lest it forgets what it can do"
        choices.add(
            user,
            "training",
            f"rising over 5 % of the {steps:,} updates, then falling to zero{why}",
            schedule="linear",
            learning_rate=peak,
            warmup_steps=max(1, steps // 20),
        )
    every = min(steps, max(RARELY, math.ceil(steps / 15)))
    times = math.ceil(steps / every)
    choices.add(
        user,
        "training",
        f"{times} times in the run" if times > 1 else "at the end of so short a run",
        validate_every=every,
        checkpoint_every=every,
    )
    return choices


def fine_tunes(user: Settings) -> bool:
    """Say whether training goes on from a model that is there."""
    return bool(user.get("fine_tuning", {}).get("init_from"))


def is_text(config: Config) -> bool:
    """Say whether the target is made of subwords."""
    return (config.tokenizer.target.kind or config.tokenizer.kind) in SUBWORDS


def resolved(chosen: Settings, user: Settings) -> Config:
    """Lay what the user decided over what was chosen."""
    return parse(merge(chosen, user), "the recipe")
