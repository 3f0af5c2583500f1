"""What runs the model: coverage of the source, ensembles."""

import math
import random
from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import BuildModel
from transduce.config import BOS, EOS, DecodingConfig
from transduce.data.batches import padded
from transduce.decoding.engines import Ensemble, Product, TorchEngine
from transduce.decoding.search import Penalty, beam_search
from transduce.decoding.translator import translator_of
from transduce.model import DecoderLayer, Transformer

SOURCES = [[7, 8, 9, 4, 5, 6, 7, 8, 9], [5], [6, 6, 7]]
Coverage = Callable[[Transformer, list[int], list[int]], float]


def coverage(model: Transformer, source: list[int], target: list[int]) -> float:
    """Compute the coverage of a whole target at once, without cached keys and values."""
    layer = model.decoder.layers[-1]
    assert isinstance(layer, DecoderLayer)
    seen: list[torch.Tensor] = []
    hook = layer.cross_attention.weights.register_forward_hook(
        lambda module, arguments, weights: seen.append(weights)
    )
    with torch.no_grad():
        model(torch.tensor([[*source, EOS]]), torch.tensor([[BOS, *target[:-1]]]))
    hook.remove()
    attended = seen[0][0].mean(dim=0).sum(dim=0)  # h T S -> S
    return sum(math.log(min(1.0, float(a))) for a in attended)


@pytest.mark.parametrize("beam", [1, 3])
def test_coverage_is_the_attention_of_the_last_layer(build: BuildModel, beam: int) -> None:
    model = build()
    step = TorchEngine(model).start(SOURCES, coverage=True)
    penalty = Penalty("gnmt", 0.6, beta=0.3)
    limits, sums = [5, 4, 12], []
    for source, found in zip(SOURCES, beam_search(step, limits, beam, beam, penalty), strict=True):
        for hypothesis in found:
            sum_ = coverage(model, source, list(hypothesis.tokens))
            expected = penalty.score(hypothesis.log_probability, len(hypothesis.tokens), sum_)
            assert hypothesis.score == pytest.approx(expected, abs=1e-9)
            sums.append(sum_)
    assert min(sums) < 0
    layer = model.decoder.layers[-1]
    assert isinstance(layer, DecoderLayer)
    assert not layer.cross_attention.weights._forward_hooks


def test_nothing_is_recorded_unless_asked(build: BuildModel) -> None:
    step = TorchEngine(build()).start(SOURCES)
    assert step(torch.full((3, 1), BOS), torch.arange(3)[:, None]).coverage is None


def other(build: BuildModel) -> Transformer:
    torch.manual_seed(5)
    return build(N=1, d_model=8, h=2)


def test_an_ensemble_is_the_mean_of_probabilities(build: BuildModel) -> None:
    models = [build(), other(build)]
    both = Ensemble([TorchEngine(model) for model in models])
    src = padded(SOURCES, end=True)
    tgt = torch.tensor([[BOS, 9, 8]] * 3)
    with torch.no_grad():
        p = torch.stack([model(src, tgt).softmax(-1) for model in models]).mean(dim=0)
    step, origin = both.start(SOURCES), torch.arange(3)[:, None]
    for t in range(3):
        said = step(tgt[:, t : t + 1], origin)
        assert torch.allclose(said.log_probs[:, 0].exp(), p[:, t], atol=1e-12)
    pairs = [(source, [9, 8]) for source in SOURCES]
    for row, scores in zip(p, both.score(pairs), strict=True):
        expected = [float(row[t, token].log()) for t, token in enumerate((9, 8, EOS))]
        assert scores == pytest.approx(expected, abs=1e-12)


def test_an_ensemble_of_the_same_is_the_same(build: BuildModel) -> None:
    engine = TorchEngine(build())
    alone = beam_search(engine.start(SOURCES, True), [9] * 3, 4, 4, Penalty(beta=0.1))
    both = Ensemble([engine, engine])
    found = beam_search(both.start(SOURCES, True), [9] * 3, 4, 4, Penalty(beta=0.1))
    assert [[h.tokens for h in hs] for hs in found] == [[h.tokens for h in hs] for hs in alone]
    for ours, theirs in zip(found, alone, strict=True):
        assert [h.score for h in ours] == pytest.approx([h.score for h in theirs], abs=1e-9)


def test_narrow_products_are_nearly_the_same(build: BuildModel) -> None:
    """The wide model stays as it is; log-probabilities are float32 and near its own."""
    model = build().float()
    before = {name: p.clone() for name, p in model.named_parameters()}
    narrow = TorchEngine(model, "bfloat16")
    tokens, origin = torch.full((3, 1), BOS), torch.arange(3)[:, None]
    wide, close = (e.start(SOURCES)(tokens, origin).log_probs for e in (TorchEngine(model), narrow))
    assert close.dtype == torch.float32
    assert 0 < (wide - close).abs().max() < 0.05
    pairs = [(source, [9, 8]) for source in SOURCES]
    for ours, theirs in zip(narrow.score(pairs), TorchEngine(model).score(pairs), strict=True):
        assert ours == pytest.approx(theirs, abs=0.05)
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    products = [m for m in narrow.model.modules() if isinstance(m, Product)]
    assert len(products) == 1 + 2 * 6 + 2 * 10
    assert all(m.weight.dtype == torch.bfloat16 for m in products)


def test_settings_reach_the_search() -> None:
    """Each knob of [decoding] that shapes a search changes what comes out, or is obeyed."""
    from tests.test_requests import translator_with

    plain = translator_with("char", max_extra=9)
    lines = ["a dog", "the cat sees a dog"]

    def outputs(**changes: object) -> list[str]:
        settings = plain.decoding.model_dump() | changes
        decoding = DecodingConfig.model_validate(settings)
        model = plain.engine
        assert isinstance(model, TorchEngine)
        translator = translator_of(model.model, (plain.source, plain.target), decoding)
        return [t.text for t in translator.translate(lines)]

    for change in (
        {"beta": 5.0},
        {"method": "sample"},
        {"method": "sample", "seed": 2},
        {"method": "sample", "temperature": 3.0},
    ):
        assert outputs(**change) != outputs()
    assert outputs(method="sample", top_k=1) == outputs(beam_size=1)
    assert outputs(method="sample", top_p=1e-9) == outputs(beam_size=1)
    for text in outputs(no_repeat=1):
        assert len(set(text)) == len(text)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("bias", [True, False])
def test_a_product_is_the_linear_layer(dtype: torch.dtype, bias: bool) -> None:
    """However its matrix lies in memory, for one row and for many."""
    layer = torch.nn.Linear(24, 40, bias=bias, dtype=torch.float64)
    x = torch.randn(70, 1, 24, dtype=torch.float64)
    given = x.float() if dtype == torch.bfloat16 else x.to(dtype)
    product = Product(layer, dtype)
    precision = {torch.float32: 1e-5, torch.bfloat16: 0.03, torch.float64: 1e-14}[dtype]
    with torch.inference_mode():
        expected = layer(x)
        for rows in (1, 4, 70):
            y = product(given[:rows])
            assert y.dtype == given.dtype
            assert (y.double() - expected[:rows]).abs().max() < precision


@given(st.integers(0, 10**6), st.integers(1, 4))
@settings(
    deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_steps_know_the_whole_past(build: BuildModel, seed: int, beam: int) -> None:
    """What a step says is what the model says of the whole target, however rows come and go.

    Hypotheses mostly descend from the first, as in a search, so that most of their past is shared.
    """
    draw, model = random.Random(seed), build()
    sources = [*SOURCES, [4], [9, 4], [8, 8, 8, 8], [6]]
    step, live = TorchEngine(model).start(sources), list(range(len(sources)))
    pasts: list[list[tuple[int, ...]]] = [[(BOS,)] for _ in live]
    before, origin = 1, [[i] for i in live]
    for length in range(1, 40):
        said = step(
            torch.tensor([[past[-1] for past in pasts_of] for pasts_of in pasts]),
            torch.tensor(origin),
        ).log_probs
        for row, sentence in enumerate(live if length % 6 == 0 else []):
            src = torch.tensor([[*sources[sentence], EOS]] * len(pasts[row]))
            with torch.inference_mode():
                expected = model(src, torch.tensor(pasts[row]))[:, -1].log_softmax(dim=-1)
            assert (said[row] - expected).abs().max() < 1e-9
        before = len(pasts[0])
        kept = list(range(len(live)))
        if len(live) > 1 and draw.random() < 0.2:
            kept.remove(draw.choice(kept))
        chosen = [[draw.choice([0, 0, 0, before - 1]) for _ in range(beam)] for _ in kept]
        origin = [[row * before + i for i in some] for row, some in zip(kept, chosen, strict=True)]
        pasts = [
            [(*pasts[row][i], draw.randint(4, 10)) for i in some]
            for row, some in zip(kept, chosen, strict=True)
        ]
        live = [live[row] for row in kept]
