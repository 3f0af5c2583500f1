"""Every knob of the product, once: its name, its type, its default and what it does.

The defaults are the paper's. Settings are laid over each other in one fixed order:

    defaults <- chosen from the corpus <- profile <- preset <- recipe <- --set

and the result, with nothing left open, is written to `config.toml` of the run and of each model.
"""

import tomllib
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Final, Literal

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from transduce.errors import TransduceError, UsageError, did_you_mean

PAD: Final = 0
UNK: Final = 1
BOS: Final = 2
EOS: Final = 3
"""The reserved ids of every vocabulary: padding, unknown, BEGIN and END."""

Settings = dict[str, Any]
"""Nested settings as TOML gives them: section -> key -> value."""


def _positive_ints(*values: object) -> bool:
    return all(isinstance(value, int) and value > 0 for value in values)


class Section(BaseModel):
    """One table of a recipe: unknown keys and wrong types are refused, values never change."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True
    )


class DataConfig(Section):
    """Where the pairs are, and which of them training leaves out."""

    train: str | list[str] = ""
    """Training pairs: one TSV file (source, tab, target), or a list of two aligned text files.
    Files ending in .gz are unpacked while reading. Relative to the recipe."""
    valid: str | list[str] = ""
    """Validation pairs, in the same forms; never trained on."""
    max_length: int = Field(default=256, ge=1)
    """Training pairs with more pieces than this on either side are left out, and reported."""
    normalization: Literal["NFC", "NFKC", "none"] = "NFC"
    """Unicode form of all text, at preparation and again at translation. NFKC loses distinctions
    (… becomes ...), so it is only used when asked for."""


class TokenizerSide(Section):
    """What may differ between the source's tokenizer and the target's."""

    kind: Literal["bpe", "unigram", "char", "word"] | None = None
    """As `tokenizer.kind`, for this side alone."""
    vocabulary: int | None = Field(default=None, ge=5)
    """As `tokenizer.vocabulary`, for this side alone."""


class TokenizerConfig(Section):
    """How text becomes pieces."""

    kind: Literal["bpe", "unigram", "char", "word"] = "bpe"
    """bpe or unigram subwords, char (every character a piece), word (every word a piece)."""
    vocabulary: int = Field(default=8000, ge=5)
    """Number of pieces asked for, the four reserved ones included. Where the data has fewer, the
    largest possible number is used and reported."""
    joint: bool = True
    """One vocabulary for both sides (and then one embedding matrix, as in §3.4 of the paper)."""
    byte_fallback: bool = True
    """Spell characters outside the vocabulary as bytes (bpe and unigram only), so that no text
    is unknown."""
    source: TokenizerSide = TokenizerSide()
    """Settings of the source side, where they differ; needs joint = false."""
    target: TokenizerSide = TokenizerSide()
    """Settings of the target side, where they differ; needs joint = false."""

    @model_validator(mode="after")
    def _sides_differ_only_when_separate(self) -> "TokenizerConfig":
        if self.joint and self.source != self.target:
            raise ValueError("source and target settings differ, so joint must be false")
        return self


class ModelConfig(Section):
    """The Transformer's sizes and switches, in the paper's symbols (§3, Table 3)."""

    source_vocabulary: int = Field(default=37000, ge=4)
    """Rows of the source embedding; set from the tokenizer."""
    target_vocabulary: int = Field(default=37000, ge=4)
    """Rows of the target embedding and columns of the logits; set from the tokenizer."""
    joint_vocabulary: bool = True
    """Both sides share one vocabulary; set from the tokenizer."""
    N: int = Field(default=6, ge=1)
    """Number of layers in the encoder and in the decoder."""
    N_encoder: int = Field(default=6, ge=1)
    """Layers of the encoder alone; N unless given."""
    N_decoder: int = Field(default=6, ge=1)
    """Layers of the decoder alone; N unless given."""
    d_model: int = Field(default=512, ge=1)
    """Width of the residual stream."""
    d_ff: int = Field(default=2048, ge=1)
    """Inner width of the feed-forward network."""
    h: int = Field(default=8, ge=1)
    """Number of attention heads."""
    d_k: int = Field(default=64, ge=1)
    """Width of a query and a key of one head; d_model / h unless given."""
    d_v: int = Field(default=64, ge=1)
    """Width of a value of one head; d_model / h unless given."""
    P_drop: float = Field(default=0.1, ge=0, lt=1)
    """Dropout on every sub-layer's output and on the sums of embeddings and positions (§5.4)."""
    attention_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout on attention weights (not in the paper)."""
    activation_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout after the feed-forward network's ReLU (not in the paper)."""
    norm_place: Literal["post", "pre"] = "post"
    """post: LayerNorm(x + Sublayer(x)), the paper's; pre: x + Sublayer(LayerNorm(x)), with a final
    norm after each stack."""
    norm_epsilon: float = Field(default=1e-5, gt=0)
    """LayerNorm's ε."""
    positions: Literal["sinusoidal", "learned"] = "sinusoidal"
    """Sinusoids of any length (§3.5), or a learned table (Table 3, row E)."""
    max_positions: int = Field(default=1024, ge=1)
    """Rows of the learned position table; sinusoids know no limit."""
    tie_embeddings: bool = True
    """Joint vocabulary: one matrix for both embeddings and the output (§3.4). Separate ones:
    the target embedding is the output's matrix."""
    scale_embeddings: bool = True
    """Multiply embeddings by √d_model (§3.4)."""

    @model_validator(mode="before")
    @classmethod
    def _derive(cls, settings: Any) -> Any:
        if not isinstance(settings, Mapping):
            return settings
        given = dict(settings)
        N, d_model, h = given.get("N", 6), given.get("d_model", 512), given.get("h", 8)
        given.setdefault("N_encoder", N)
        given.setdefault("N_decoder", N)
        if not {"d_k", "d_v"} <= given.keys() and _positive_ints(d_model, h):
            if d_model % h:
                raise ValueError(
                    f"d_model ({d_model}) must be a multiple of h ({h}), or give d_k and d_v"
                )
            given.setdefault("d_k", d_model // h)
            given.setdefault("d_v", d_model // h)
        return given


class TrainingConfig(Section):
    """How the model learns (§5)."""

    steps: int = Field(default=100_000, ge=1)
    """Number of updates."""
    minutes: float | None = Field(default=None, gt=0)
    """Instead of `steps`: as many updates as this machine does in so many minutes. The speed is
    measured at the first start, and the number of updates written down."""
    tokens: int = Field(default=25_000, ge=1)
    """Target tokens of one update, at most (padding included)."""
    accumulation: int = Field(default=1, ge=1)
    """Micro-batches that an update is computed in; more of them need less memory."""
    schedule: Literal["paper", "linear"] = "paper"
    """paper: factor · d_model^-0.5 · min(step^-0.5, step · warmup_steps^-1.5) (§5.3);
    linear: up to `learning_rate` in `warmup_steps` updates, then straight down to zero."""
    factor: float = Field(default=1.0, gt=0)
    """Multiplies the paper's schedule (1.0 in the paper)."""
    learning_rate: float = Field(default=1e-3, gt=0)
    """Peak rate of the linear schedule."""
    warmup_steps: int = Field(default=4000, ge=1)
    """Updates over which the rate rises."""
    beta_1: float = Field(default=0.9, ge=0, lt=1)
    """Adam's β1."""
    beta_2: float = Field(default=0.98, ge=0, lt=1)
    """Adam's β2."""
    epsilon: float = Field(default=1e-9, gt=0)
    """Adam's ε."""
    eps_ls: float = Field(default=0.1, ge=0, lt=1)
    """Label smoothing ε_ls (§5.4), spread over the whole vocabulary."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Type of the matrix products; weights, norms and Adam's state are float32 always. auto:
    bfloat16 where the processor has instructions for it."""
    seed: int = Field(default=1, ge=0)
    """Decides the initial weights, the order of the data and the dropout masks."""
    log_every: int = Field(default=50, ge=1)
    """Updates between two lines of metrics.jsonl."""
    validate_every: int = Field(default=1000, ge=1)
    """Updates between two validations."""
    validate_sentences: int = Field(default=500, ge=1)
    """How many validation pairs are really translated (spread evenly); the loss sees all."""
    checkpoint_every: int = Field(default=1000, ge=1)
    """Updates between two checkpoints."""
    keep: int = Field(default=5, ge=-1)
    """How many of the newest checkpoints stay on disk (and the best); less than 1 keeps all."""
    average: int = Field(default=1, ge=1)
    """Number of last checkpoints whose mean becomes the final model (§6.1); 1: the best model
    seen in validation."""
    patience: int = Field(default=0, ge=0)
    """Stop after this many validations without a better score; 0: never."""
    stop_at_score: float | None = None
    """Stop as soon as the first metric of [evaluation] reaches this value in validation."""


class DecodingConfig(Section):
    """How the model is searched for its best output (§6.1)."""

    beam_size: int = Field(default=4, ge=1)
    """Hypotheses kept per sentence; 1 is greedy search."""
    penalty: Literal["none", "average", "gnmt"] = "gnmt"
    """What the sum of log-probabilities is divided by: 1; the length n; ((5 + n) / 6)^alpha."""
    alpha: float = Field(default=0.6, ge=0)
    """Exponent of the gnmt penalty."""
    max_extra: int = Field(default=50, ge=0)
    """The output may be longer than the source by at most this many tokens."""
    max_source: int = Field(default=1000, ge=1)
    """Longer sources are cut to this many pieces, with a warning."""
    batch_tokens: int = Field(default=2048, ge=1)
    """Source tokens translated together, at most; never changes an answer."""


class EvaluationConfig(Section):
    """How outputs are scored."""

    metrics: list[Literal["bleu", "chrf", "ter", "wer", "per", "exact", "word_edits"]] = Field(
        default=["bleu", "chrf"], min_length=1
    )
    """The scores to compute; the first decides which model of a run is the best."""
    references: Literal["line", "by_source"] = "line"
    """line: each pair is one item; by_source: pairs with equal sources are one item with several
    right answers."""
    bleu_tokenize: str = "13a"
    """sacrebleu's tokenization for BLEU (13a, none, intl, zh, ja-mecab, char, ...)."""


class Config(Section):
    """A whole recipe."""

    profile: Literal["paper", "t2t"] | None = None
    """Training and search settings of the paper, or of its authors' tensor2tensor code."""
    preset: str | None = None
    """The sizes: tiny, small, base, big, or a row of Table 3 (A1 ... E)."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where to compute; auto takes a GPU if there is one."""
    data: DataConfig = DataConfig()
    """The [data] table."""
    tokenizer: TokenizerConfig = TokenizerConfig()
    """The [tokenizer] table."""
    model: ModelConfig = ModelConfig()
    """The [model] table."""
    training: TrainingConfig = TrainingConfig()
    """The [training] table."""
    decoding: DecodingConfig = DecodingConfig()
    """The [decoding] table."""
    evaluation: EvaluationConfig = EvaluationConfig()
    """The [evaluation] table."""

    def to_toml(self) -> str:
        """Return the configuration with every key, as `parse` reads it back."""
        return tomli_w.dumps(self.model_dump(exclude_none=True))


def parse(settings: Settings, where: str) -> Config:
    """Check settings and return them as a `Config`.

    Raises:
        UsageError: naming the key (with the nearest right one) or the value that is wrong, and
            `where` it was written.
    """
    try:
        return Config.model_validate(settings)
    except ValidationError as error:
        problem = error.errors()[0]
        location = [str(part) for part in problem["loc"] if not isinstance(part, int)]
        key = ".".join(location)
        if problem["type"] == "extra_forbidden":
            message = f"unknown key '{key}'{did_you_mean(key, known_keys())}"
        else:
            text = problem["msg"].removeprefix("Value error, ")
            message = f"{key}: {text[:1].lower()}{text[1:]}"
            if problem["type"] not in ("value_error", "missing"):
                message += f" (it is {problem['input']!r})"
        raise UsageError(f"{where}: {message}") from None


def known_keys(section: type[Section] = Config, prefix: str = "") -> list[str]:
    """Return every key of the configuration in dotted form, e.g. `model.d_model`."""
    keys = []
    for name, field in section.model_fields.items():
        annotation = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, Section):
            keys += known_keys(annotation, f"{prefix}{name}.")
        else:
            keys.append(prefix + name)
    return keys


def merge(*layers: Mapping[str, Any]) -> Settings:
    """Lay settings over each other: a later layer's keys win, tables are joined."""
    result: Settings = {}
    for layer in layers:
        for key, value in layer.items():
            below = result.get(key)
            if isinstance(value, Mapping):
                result[key] = merge(below if isinstance(below, Mapping) else {}, value)
            else:
                result[key] = value
    return result


def read_toml(path: Path) -> Settings:
    """Read a TOML file.

    Raises:
        TransduceError: if the file cannot be read.
        UsageError: with the line, if it is not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise TransduceError(f"cannot read {path}: {reason}") from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is not valid TOML: {error}") from None


def read_recipe(path: Path) -> Settings:
    """Read a recipe; the paths of its data are taken relative to the recipe's own folder."""
    settings = read_toml(path)
    data = settings.get("data")
    if isinstance(data, dict):
        for key in ("train", "valid"):
            match data.get(key):
                case str(name) if name:
                    data[key] = str(path.parent / name)
                case list(names) if all(isinstance(name, str) for name in names):
                    data[key] = [str(path.parent / name) for name in names]
    return settings


def preset_names() -> list[str]:
    """Return the names of the presets in the package."""
    return _names("presets")


def named(kind: Literal["presets", "profiles"], name: object) -> Settings:
    """Return the settings of a preset or profile of the package.

    Raises:
        UsageError: naming the nearest right one, if there is none of that name.
    """
    names = _names(kind)
    if name not in names:
        raise UsageError(
            f"unknown {kind[:-1]} {name!r}{did_you_mean(str(name), names)} "
            f"(there are: {', '.join(names)})"
        )
    return tomllib.loads((resources.files("transduce") / kind / f"{name}.toml").read_text("utf-8"))


def _names(kind: str) -> list[str]:
    files = (resources.files("transduce") / kind).iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))


def from_assignments(assignments: Iterable[str]) -> Settings:
    """Turn `["model.N=2", "preset=tiny"]` into settings. Values are TOML; bare words are text.

    Raises:
        UsageError: for an assignment without `=` or a key that does not exist.
    """
    settings: Settings = {}
    known = known_keys()
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        key = key.strip()
        if not equals:
            raise UsageError(f"--set {assignment}: expected key=value, e.g. model.N=2")
        if key not in known:
            raise UsageError(f"--set {assignment}: unknown key '{key}'{did_you_mean(key, known)}")
        try:
            value = tomllib.loads(f"value = {text.strip()}")["value"]
        except tomllib.TOMLDecodeError:
            value = text.strip()
        for part in reversed(key.split(".")):
            value = {part: value}
        settings = merge(settings, value)
    return settings


def overlay(recipe: Settings, assignments: Iterable[str] = ()) -> Settings:
    """Return profile <- preset <- recipe <- assignments: all that the user decided."""
    user = merge(recipe, from_assignments(assignments))
    layers = []
    if user.get("profile") is not None:
        layers.append(named("profiles", user["profile"]))
    if user.get("preset") is not None:
        layers.append(named("presets", user["preset"]))
    return merge(*layers, user)


def departures(config: Config) -> list[str]:
    """List the settings of model, training and search in which a run departs from the paper.

    Sizes, rates fitted to the data and the like are not departures: only what the paper fixes
    for every model (profile `paper`) is compared.
    """
    fixed: dict[str, tuple[str, ...]] = {
        "model": (
            "norm_place",
            "positions",
            "attention_dropout",
            "activation_dropout",
            "tie_embeddings",
            "scale_embeddings",
        ),
        "training": ("schedule", "factor", "beta_1", "beta_2", "epsilon", "eps_ls", "average"),
        "decoding": ("beam_size", "penalty", "alpha", "max_extra"),
    }
    paper = parse(named("profiles", "paper"), "profile paper")
    found = []
    for section, keys in fixed.items():
        for key in keys:
            ours, theirs = (
                getattr(getattr(config, section), key),
                getattr(getattr(paper, section), key),
            )
            if key == "factor" and config.training.schedule != "paper":
                continue
            if ours != theirs:
                found.append(f"{section}.{key} = {ours} (paper: {theirs})")
    return found
