"""Every knob of the product, once: its name, its type, its default and what it does.

The defaults are the paper's. Settings are laid over each other in one fixed order:

    defaults <- chosen from the corpus <- profile <- preset <- recipe <- --set

and the result, with nothing left open, is written to `config.toml` of the run and of each model.
"""

import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from transduce.errors import TransduceError, UsageError, did_you_mean

PAD: Final = 0
UNK: Final = 1
BOS: Final = 2
EOS: Final = 3
"""The reserved ids of every vocabulary: padding, unknown, BEGIN and END."""

STDIN: Final = "-"
"""The path that means standard input."""

Settings = dict[str, Any]
"""Nested settings as TOML gives them: section -> key -> value."""


def _positive_ints(*values: object) -> bool:
    return all(isinstance(value, int) and value > 0 for value in values)


class Section(BaseModel):
    """One table of a recipe: unknown keys and wrong types are refused, values never change."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )

    @model_validator(mode="after")
    def _numbers_that_machines_count_to(self) -> "Section":
        for name in type(self).model_fields:
            most = 2**63 - 1 if name == "seed" else 2**31 - 1
            if isinstance(value := getattr(self, name), int) and value > most:
                raise ValueError(f"{name} = {value} is too large: at most {most:,}")
        return self


Paths = str | list[str]
Columns = Annotated[list[str | int], Field(min_length=2, max_length=2)]
Languages = Annotated[list[str], Field(min_length=2, max_length=2)]
Format = Literal[
    "text", "tsv", "csv", "jsonl", "parquet", "tmx", "xliff", "po", "mo", "huggingface"
]


class Reading(Section):
    """How pairs are found in a file."""

    format: Format | None = None
    """text (two aligned files), tsv, csv, jsonl, parquet, tmx, xliff, po, mo or huggingface (a
    dataset of the library `datasets`); by the file's ending unless given."""
    columns: Columns | None = None
    """The source's and the target's column, by name or by number from 1. Unless given, 1 and 2 in
    a TSV, `src` and `tgt` elsewhere; a dot goes into a record (`translation.de`)."""
    header: bool | None = None
    """Whether the first line names the columns; unless given, yes in CSV, and in a TSV whose
    columns are given by name."""
    languages: Languages | None = None
    """The source's and the target's language, e.g. ["en", "de"]: chooses among those of a TMX or
    XLIFF (`en` finds `en-US`), and lets cleaning check scripts and languages."""


class Source(Reading):
    """One of several origins of training pairs."""

    path: Paths
    """A file with both sides, or two aligned text files."""
    weight: float = Field(default=1.0, gt=0)
    """How often an epoch goes through these pairs: 2 takes each twice, 0.5 takes each in every
    other epoch."""
    tag: str = ""
    """A piece put before every source of this origin, e.g. "<2de>", so that one model can learn
    several languages or domains; it is reserved in the vocabulary."""


class DataConfig(Reading):
    """Where the pairs are, and which of them training leaves out."""

    train: Paths | list[Source] = ""
    """Training pairs: one file with both sides (TSV, CSV, JSONL, Parquet, TMX, XLIFF, PO, MO),
    a list of two aligned text files, or a list of tables with `path` and, where they differ,
    `format`, `columns`, `header`, `languages`, `weight` and `tag`. Files may be compressed (.gz,
    .xz, .bz2, .zst), members of a .zip (archive.zip/member), or URLs. Relative to the recipe."""
    valid: Paths | list[Source] = ""
    """Validation pairs, in the same forms; never trained on."""
    test: Paths | list[Source] = ""
    """Test pairs, in the same forms: only looked up in the training pairs, to report leaks."""
    corpus: str = ""
    """Folder of the prepared corpus: used if it was made from the same files and settings, made
    there otherwise. Unless given, a run keeps its own."""
    max_length: int = Field(default=256, ge=1)
    """Training pairs with more pieces than this on either side are left out, and reported."""
    normalization: Literal["NFC", "NFKC", "none"] = "NFC"
    """Unicode form of all text, at preparation and again at translation. NFKC loses distinctions
    (… becomes ...), so it is only used when asked for."""
    temperature: float = Field(default=1.0, ge=1)
    """With several origins of n_k pairs: their shares of an epoch are as n_k^(1/temperature). 1
    takes every pair equally often; more evens the origins out."""
    workers: int = Field(default=0, ge=0)
    """Processes that prepare the corpus; 0: one for each processor. Never changes the result."""


Check = Literal["off", "report", "drop"]
Repair = Literal["off", "report", "fix", "drop"]


class CleaningConfig(Section):
    """What is done about suspicious pairs: off, report (count and show), fix, or drop.

    Pairs with an empty side and pairs that are too long are always dropped; spaces at the ends and
    control characters are always removed. All of it is counted, and listed in the report.
    """

    max_characters: int = Field(default=20_000, ge=1)
    """A side of more characters is not even tokenized: the pair is dropped."""
    max_ratio: float = Field(default=4.0, gt=1)
    """A side that is longer than the other by more than this factor is suspicious (`ratio`). Han
    characters count three, kana and Hangul two, so that no setting depends on the language."""
    min_letters: float = Field(default=0.5, ge=0, le=1)
    """A side with a smaller share of letters than this is made of `symbols`."""
    ratio: Check = "report"
    """Sides of very different length."""
    symbols: Check = "report"
    """Sides made of digits and symbols where the other side has letters."""
    identical: Check = "report"
    """Sides that are the same but for case, spaces and Unicode form."""
    duplicates: Check = "report"
    """Pairs that occurred before, exactly."""
    near_duplicates: Check = "report"
    """Pairs that occurred before but for case, spaces and Unicode form."""
    leaks: Check = "report"
    """Training pairs whose source is also a validation or test source."""
    entities: Repair = "report"
    """HTML entities such as &amp; or &#39; left in the text; fix writes the character."""
    markup: Repair = "report"
    """Tags such as <b> or </a> left in the text; fix removes them."""
    encoding: Repair = "report"
    """Text decoded with the wrong character set (Ã¼ for ü, or U+FFFD); fix undoes what can be
    undone."""
    script: Check = "report"
    """Sides mostly in another script than their language's; needs data.languages."""
    language: Check = "off"
    """Sides that a language identifier finds to be in another language; needs data.languages and
    the extra `language`."""


TokenizerKind = Literal["bpe", "unigram", "char", "word", "byte"]


class TokenizerSide(Section):
    """What may differ between the source's tokenizer and the target's."""

    kind: TokenizerKind | None = None
    """As `tokenizer.kind`, for this side alone."""
    vocabulary: int | None = Field(default=None, ge=5)
    """As `tokenizer.vocabulary`, for this side alone."""
    character_coverage: float | None = Field(default=None, gt=0, le=1)
    """As `tokenizer.character_coverage`, for this side alone."""


class TokenizerConfig(Section):
    """How text becomes pieces."""

    kind: TokenizerKind = "bpe"
    """bpe or unigram subwords, char (every character a piece), word (whatever stands between
    spaces: text that was tokenized before is left alone), byte (UTF-8; nothing is learnt)."""
    vocabulary: int = Field(default=8000, ge=5)
    """Number of pieces asked for, the four reserved ones included. Where the data has fewer, the
    largest possible number is used and reported."""
    joint: bool = True
    """One vocabulary for both sides (and then one embedding matrix, as in §3.4 of the paper)."""
    byte_fallback: bool = True
    """Spell characters outside the vocabulary as bytes (bpe, unigram and char), so that no text
    is unknown."""
    character_coverage: float | None = Field(default=None, gt=0, le=1)
    """Share of the text's characters that get a piece of their own, the rarest being left to
    bytes or unknown; unless given 0.9995 with byte pieces and 1 without."""
    symbols: list[str] = []
    """Pieces that are never split and never learnt from the data, e.g. ["<2de>", "<2fr>"]."""
    sampling: float = Field(default=0.0, ge=0, lt=1)
    """In training, cut text in other ways too, drawn anew in each epoch; 0 is off. For bpe the
    rate of BPE-dropout (0.1 is usual); for unigram the exponent of the pieces' probabilities (0.1
    to 0.5 are usual; a larger one stays nearer to the best way)."""
    source: TokenizerSide = TokenizerSide()
    """Settings of the source side, where they differ; needs joint = false."""
    target: TokenizerSide = TokenizerSide()
    """Settings of the target side, where they differ; needs joint = false."""

    @model_validator(mode="after")
    def _sides_differ_only_when_separate(self) -> "TokenizerConfig":
        if self.joint and self.source != self.target:
            raise ValueError("source and target settings differ, so joint must be false")
        return self


LayerType = Literal["self-attention", "restricted", "recurrent", "convolutional"]


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
    """Dropout after the feed-forward network's activation (not in the paper)."""
    norm_place: Literal["post", "pre"] = "post"
    """post: LayerNorm(x + Sublayer(x)), the paper's; pre: x + Sublayer(LayerNorm(x)), with a final
    norm after each stack."""
    norm_kind: Literal["layer", "batch", "rms"] = "layer"
    """What is normalised: the features of one position (layer, the paper's; rms: without taking
    their mean away), or each feature over all positions of a batch, padding left out (batch)."""
    norm_epsilon: float = Field(default=1e-5, gt=0)
    """The norm's ε."""
    encoder_layer_type: LayerType = "self-attention"
    """What mixes the positions in the encoder, in the place of self-attention (Table 1)."""
    decoder_layer_type: LayerType = "self-attention"
    """What mixes the positions in the decoder; all of them look at the past alone there."""
    window: int = Field(default=16, ge=1)
    """r of restricted self-attention: a position looks at itself, r before it and, in the encoder,
    r after it."""
    kernel: int = Field(default=3, ge=2)
    """k of convolutions: inputs to each output; odd in the encoder, where they stand around it."""
    dilated: bool = False
    """Inputs of convolutions lie k^i positions apart in layer i = 0, 1, ... of the decoder, and
    ((k + 1) / 2)^i in the encoder, instead of side by side."""
    cell: Literal["lstm", "gru"] = "lstm"
    """What recurrent layers compute at each position."""
    attention_normaliser: Literal["softmax", "relu", "sparsemax", "entmax"] = "softmax"
    """What makes weights of scores (eq. 1): softmax; relu: max(0, score) over the number of keys;
    sparsemax and entmax (α = 1.5, needs the extra `entmax`): exact zeros for low scores."""
    activation: Literal["relu", "swish", "gelu"] = "relu"
    """Between the two maps of the feed-forward network: max(0, x) as in eq. 2, x · sigmoid(x), or
    x · Φ(x) with the normal distribution function Φ."""
    attention_biases: bool = False
    """Add biases in W_Q, W_K, W_V and W_O, which the paper writes as plain matrices."""
    output_bias: bool = False
    """Add a bias to the logits."""
    positions: Literal["sinusoidal", "learned", "none"] = "sinusoidal"
    """Sinusoids of any length (§3.5), a learned table (Table 3, row E), or nothing at all."""
    max_positions: int = Field(default=1024, ge=1)
    """Rows of the learned position table; sinusoids know no limit."""
    tie_embeddings: bool = True
    """Joint vocabulary: one matrix for both embeddings and the output (§3.4). Separate ones:
    the target embedding is the output's matrix."""
    scale_embeddings: bool = True
    """Multiply embeddings by √d_model (§3.4)."""

    @property
    def position_limit(self) -> int | None:
        """The number of positions there are; sinusoids know no limit."""
        return self.max_positions if self.positions == "learned" else None

    @model_validator(mode="after")
    def _kernel_has_a_middle(self) -> "ModelConfig":
        if self.encoder_layer_type == "convolutional" and self.kernel % 2 == 0:
            raise ValueError(
                f"kernel = {self.kernel}: in the encoder as many inputs stand before an output as "
                "after it, so k must be odd"
            )
        return self

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
    """Target tokens of one update, at most (padding included). "auto" in a recipe is as good as
    nothing said: chosen from the model and the corpus."""
    accumulation: int = Field(default=1, ge=1)
    """Micro-batches that an update is computed in; more of them need less memory. Unless given, as
    few as fit in this machine's memory (measured at the first start)."""
    schedule: Literal["paper", "inverse_sqrt", "linear", "cosine", "constant"] = "paper"
    """paper: factor · d_model^-0.5 · min(step^-0.5, step · warmup_steps^-1.5) (§5.3). The others
    rise to `learning_rate` in `warmup_steps` updates; then inverse_sqrt falls with step^-0.5,
    linear and cosine fall to zero at the end, constant stays."""
    factor: float = Field(default=1.0, gt=0)
    """Multiplies the paper's schedule (1.0 in the paper)."""
    learning_rate: float = Field(default=1e-3, gt=0)
    """Peak rate of every schedule but the paper's."""
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
    deterministic: bool = False
    """On a GPU: only ways of computing that give the same bits again, which are slower. On a CPU
    the bits are the same anyway, for the same kind of processor and number of threads."""
    tensorboard: bool = False
    """Write curves for TensorBoard into the run, beside metrics.jsonl (needs the extra)."""
    compile: bool = False
    """Compile the model with torch.compile: minutes of warm-up; pays on GPUs, if anywhere."""
    workers: int = Field(default=1, ge=1)
    """On a CPU: into how many parts a batch is divided, each computed by a thread of its own (or
    by several, if there are more threads than parts)."""
    word_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Share of the input tokens, of either side, that are replaced by UNKNOWN in training."""
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
    """How many of the newest checkpoints stay on disk; less than 1 keeps all."""
    keep_best: int = Field(default=1, ge=1)
    """How many checkpoints of the best validations stay as well."""
    average: int = Field(default=1, ge=1)
    """Number of checkpoints whose mean becomes the final model (§6.1); 1: the best model seen in
    validation."""
    average_of: Literal["last", "best"] = "last"
    """Which checkpoints are averaged: the last ones, as in the paper, or the best ones."""
    patience: int = Field(default=0, ge=0)
    """Stop after this many validations without a better score; 0: never."""
    stop_at_score: float | None = None
    """Stop as soon as the first metric of [evaluation] reaches this value in validation."""


class FineTuningConfig(Section):
    """Going on from a model that is there, instead of starting with random weights.

    Sizes, tokenizers, normalisation, search and scores are that model's. Pairs of the old kind
    among the training pairs (`data.train` as a list, with `weight`) keep it from forgetting them.
    """

    init_from: str = ""
    """The model folder or run to start from. Relative to the recipe."""
    grow: Annotated[int, Field(ge=1)] | bool = False
    """Whether new pieces are put at the end of its vocabularies (old ids stay as they are): true
    for the characters of the new pairs that they lack (the words, where pieces are words), and for
    new tags and `tokenizer.symbols`; a number for at most so many pieces, of bpe and unigram also
    subwords made of such characters."""
    frozen: list[str] = []
    """Parts that stay as they are: encoder, decoder, embeddings, or the beginning of parameters'
    names, e.g. ["encoder.layers.0", "source_embedding"]. Tied matrices are one part."""
    old_test: Paths | list[Source] = ""
    """Test pairs of what the model could do before, in the forms of `data.test`; the log says how
    it scores on them before and after. Relative to the recipe."""


class DecodingConfig(Section):
    """How the model is searched for its best output (§6.1)."""

    beam_size: int = Field(default=4, ge=1)
    """Hypotheses kept per sentence; 1 is greedy search."""
    method: Literal["beam", "sample"] = "beam"
    """beam: search for the outputs of the best score; sample: draw outputs at random."""
    penalty: Literal["none", "average", "gnmt"] = "gnmt"
    """What the sum of log-probabilities is divided by: 1; the length n; ((5 + n) / 6)^alpha."""
    alpha: float = Field(default=0.6, ge=0)
    """Exponent of the gnmt penalty."""
    beta: float = Field(default=0.0, ge=0)
    """Weight of the coverage penalty: beta · Σ log min(attention, 1) over the source tokens is
    added to a score, with the attention that the last layer paid to each (Wu et al., 2016)."""
    max_extra: int = Field(default=50, ge=0)
    """The output may be longer than the source by at most this many tokens."""
    min_length: int = Field(default=0, ge=0)
    """The least number of tokens, END included."""
    no_repeat: int = Field(default=0, ge=0)
    """So many tokens in a row do not occur twice in an output; 0: they may."""
    placeholders: list[str] = []
    """Regular expressions: what they match in a source is copied to its output, as often, e.g.
    ["</?[a-z]+>", "[{][a-z]+[}]"] for tags and names of fields."""
    temperature: float = Field(default=1.0, gt=0)
    """Of draws: log-probabilities are divided by it; below 1 the probable comes more often."""
    top_k: int = Field(default=0, ge=0)
    """Of draws: only among so many most probable tokens; 0: among all."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Of draws: only among the most probable tokens that have this share of the probability."""
    seed: int = Field(default=1, ge=0)
    """Of draws: another one draws others; the same draws the same for each line of a file."""
    max_source: int = Field(default=1000, ge=1)
    """Longer sources are cut to this many pieces, with a warning."""
    engine: Literal["auto", "torch", "ctranslate2"] = "auto"
    """What computes: torch knows all settings; ctranslate2, on CPUs, is several times faster at
    those it knows. auto: torch to score and to evaluate; to translate, ctranslate2 where it can."""
    precision: Literal["auto", "float32", "bfloat16", "int8", "int8_float32"] = "float32"
    """Type of the matrix products. torch has float32 and bfloat16 (faster where the processor has
    instructions for it, docs/results.md), ctranslate2 what it offers on this machine. Less than
    float32 changes an output now and then. auto: int8 if ctranslate2 translates and it was as good
    as float32 on the validation pairs, to 0.3 points; else float32."""
    shortlist: bool = False
    """Where ctranslate2 computes: only the target pieces may come that the shortlist of the model
    (`transduce shortlist`) allows for the sources that are translated together. Faster; an output
    changes now and then, and may change with its company. torch needs none and has none."""
    batch_tokens: int = Field(default=0, ge=0)
    """Source tokens translated together, at most; 0: what suits the engine. Never changes an
    answer."""

    @property
    def longest_output(self) -> int:
        """The most tokens that any output may have, END included (P14)."""
        return self.max_source + 1 + self.max_extra

    @model_validator(mode="after")
    def _patterns_are_patterns(self) -> "DecodingConfig":
        for pattern in self.placeholders:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"{pattern!r} is no regular expression: {error}") from None
        return self


HIGHER_IS_BETTER = {
    "bleu": True,
    "chrf": True,
    "ter": False,
    "exact": True,
    "wer": False,
    "per": False,
    "word_edits": False,
}
"""Which way a metric is better."""


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
    cleaning: CleaningConfig = CleaningConfig()
    """The [cleaning] table."""
    tokenizer: TokenizerConfig = TokenizerConfig()
    """The [tokenizer] table."""
    model: ModelConfig = ModelConfig()
    """The [model] table."""
    training: TrainingConfig = TrainingConfig()
    """The [training] table."""
    fine_tuning: FineTuningConfig = FineTuningConfig()
    """The [fine_tuning] table."""
    decoding: DecodingConfig = DecodingConfig()
    """The [decoding] table."""
    evaluation: EvaluationConfig = EvaluationConfig()
    """The [evaluation] table."""

    @model_validator(mode="after")
    def _batch_norm_sees_whole_batches(self) -> "Config":
        if self.model.norm_kind == "batch" and self.training.workers > 1:
            raise ValueError(
                "model.norm_kind = 'batch' takes means over a whole batch, so training.workers "
                "must be 1"
            )
        return self

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
        first = error.errors()[0]
        # Of a value that may have several forms, the form that fits best has the deepest error.
        alternatives = [p for p in error.errors() if p["loc"][:2] == first["loc"][:2]]
        problem = max(alternatives, key=lambda p: len(p["loc"]))
        forms = {"str", "list[str]", "list[Source]", "bool", "int", "constrained-int"}
        location = [part for part in problem["loc"] if isinstance(part, str) and part not in forms]
        key = ".".join(location)
        if problem["type"] == "extra_forbidden":
            tables = [
                f"data.{part}.{k}" for part in ("train", "valid") for k in Source.model_fields
            ]
            message = f"unknown key '{key}'{did_you_mean(key, known_keys() + tables)}"
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
    """Read a recipe: a TOML file, or the name of one in the package.

    The paths in it are taken relative to the recipe's own folder (of one in the package: to the
    current one).
    """
    folder = path.parent
    if not path.exists() and str(path) in recipe_names():
        path = Path(str(resources.files("transduce") / "recipes" / f"{path}.toml"))
        folder = Path()
    settings = read_toml(path)
    for name in ("data", "fine_tuning"):
        if isinstance(table := settings.get(name), dict):
            settings[name] = with_paths(table, lambda name: resolved_path(name, folder))
    return settings


def with_paths(table: Settings, change: Callable[[str], str]) -> Settings:
    """Return [data] or [fine_tuning] with `change` applied to the path of every file in it."""

    def changed(value: Any) -> Any:
        match value:
            case str() if value:
                return change(value)
            case list():
                return [changed(item) for item in value]
            case dict() if "path" in value:
                return value | {"path": changed(value["path"])}
        return value

    keys = table.keys() & {"train", "valid", "test", "corpus", "init_from", "old_test"}
    return {**table, **{key: changed(table[key]) for key in keys}}


def resolved_path(name: str, folder: Path) -> str:
    """Return a path relative to a folder; URLs and `-` stay, $VARIABLES are filled in.

    Raises:
        UsageError: if a variable is not set.
    """
    if name == STDIN or is_url(name):
        return name
    for variable in re.findall(r"\$(\w+)", name):
        if variable not in os.environ:
            raise UsageError(f"{name}: the environment variable {variable} is not set")
    return str(folder / os.path.expanduser(os.path.expandvars(name)))


def is_url(path: str) -> bool:
    """Say whether a path is a URL such as `https://...` or `s3://...`."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]+://", path) is not None


def recipe_names() -> list[str]:
    """Return the names of the recipes in the package."""
    return _names("recipes")


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
    settings = merge(*layers, user)
    training = settings.get("training")
    if isinstance(training, dict) and training.get("tokens") == "auto":
        del training["tokens"]  # left open
    return settings


def departures(config: Config) -> list[str]:
    """List the settings of model, training and search in which a run departs from the paper.

    Sizes, rates fitted to the data and the like are not departures: only what the paper fixes
    for every model (profile `paper`) is compared.
    """
    fixed: dict[str, tuple[str, ...]] = {
        "model": (
            "norm_place",
            "norm_kind",
            "encoder_layer_type",
            "decoder_layer_type",
            "attention_normaliser",
            "activation",
            "attention_biases",
            "output_bias",
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
