"""The model: leaks, padding, masks, positions, counts, and every fast path against the slow one."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.conftest import BuildModel
from transduce.config import ModelConfig, overlay, parse
from transduce.model import Transformer
from transduce.model import transformer as module
from transduce.model.transformer import (
    DecoderLayer,
    Dropout,
    EncoderLayer,
    SinusoidalPositions,
    attention,
    attention_weights,
    causal_mask,
    dropout_from,
    fused_attention,
    masked_softmax,
    padding_mask,
    sinusoids,
)

SRC = torch.tensor([[5, 6, 7, 8, 3], [9, 3, 0, 0, 0]])
TGT = torch.tensor([[2, 9, 4, 11, 12, 13], [2, 5, 0, 0, 0, 0]])


KINDS: list[dict[str, Any]] = [
    {},
    {"encoder_layer_type": "restricted", "decoder_layer_type": "restricted", "window": 2},
    {"encoder_layer_type": "recurrent", "decoder_layer_type": "recurrent"},
    {"encoder_layer_type": "recurrent", "decoder_layer_type": "recurrent", "cell": "gru"},
    {"encoder_layer_type": "convolutional", "decoder_layer_type": "convolutional"},
    {
        "encoder_layer_type": "convolutional", "decoder_layer_type": "convolutional",
        "dilated": True,
    },
    {"norm_kind": "rms"},
    {"norm_kind": "batch"},
    {"attention_normaliser": "relu"},
    {"attention_normaliser": "sparsemax"},
    {"attention_normaliser": "entmax"},
    {"positions": "none"},
]  # fmt: skip
"""Everything that changes what a position takes from where."""
of_each_kind = pytest.mark.parametrize(
    "kind", KINDS, ids=lambda kind: "-".join(map(str, kind.values()))
)


# Numbers worked out by hand


def test_the_golden_attention_example() -> None:
    """INSPECTION's example in the paper's form: rows are tokens."""
    Q = torch.tensor([[1.0, 0], [0, 2], [1, 1]], dtype=torch.float64)[None, None]
    K = torch.tensor([[1.0, 1], [0, 1], [2, 0]], dtype=torch.float64)[None, None]
    V = torch.tensor([[1.0, 0], [0, 1], [3, 3]], dtype=torch.float64)[None, None]
    expected = torch.tensor(
        [[0.2840, 0.1400, 0.5760], [0.4458, 0.4458, 0.1084], [0.4011, 0.1978, 0.4011]]
    )
    weights = attention_weights(Q, K)
    torch.testing.assert_close(weights[0, 0].float(), expected, rtol=0, atol=5e-5)
    outputs = torch.tensor([[2.0119, 1.8680], [0.7710, 0.7710], [1.6044, 1.4011]])
    torch.testing.assert_close(attention(Q, K, V)[0, 0].float(), outputs, rtol=0, atol=6e-5)
    causal = attention_weights(Q, K, causal_mask(3)[None, None])[0, 0]
    assert causal[0].tolist() == [1.0, 0.0, 0.0]
    assert causal[1].tolist() == [0.5, 0.5, 0.0]
    padding = attention_weights(Q, K, torch.tensor([[[[True, True, False]]]]))[0, 0]
    assert padding[0].tolist() == pytest.approx([0.6698, 0.3302, 0.0], abs=5e-5)


def test_masks() -> None:
    assert causal_mask(3).tolist() == [[True, False, False], [True, True, False], [True] * 3]
    assert padding_mask(SRC)[:, 0, 0].tolist() == [[True] * 5, [True, True, False, False, False]]


def test_sinusoids_by_hand() -> None:
    PE = sinusoids(4, 4)
    assert PE[0].tolist() == [0.0, 1.0, 0.0, 1.0]
    assert PE[1].tolist() == pytest.approx([0.841471, 0.540302, 0.010000, 0.999950], abs=1e-6)
    assert PE[3].tolist() == pytest.approx([0.141120, -0.989992, 0.029996, 0.999550], abs=1e-6)


def test_sinusoids_beyond_the_table() -> None:
    positions = SinusoidalPositions(6)
    far = positions(torch.zeros(1, 2, 6, dtype=torch.float64), start=70_001)
    for row, pos in enumerate((70_001, 70_002)):
        for i in range(3):
            angle = pos / 10000 ** (2 * i / 6)
            assert far[0, row, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-12)
            assert far[0, row, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-12)


@pytest.mark.parametrize("length", [1, 3, 15, 16, 40])
def test_softmax_written_out_equals_the_librarys(length: int) -> None:
    scores = 30 * torch.randn(2, 3, 5, length, dtype=torch.float64)
    weights = masked_softmax(scores, None)
    torch.testing.assert_close(weights, scores.softmax(-1), rtol=1e-13, atol=1e-15)
    assert masked_softmax(scores.bfloat16(), None).dtype == torch.float32


@pytest.mark.parametrize("keys", [5, 17])
def test_gradient_of_the_masked_softmax(keys: int) -> None:
    """By finite differences; rows without any key, and hidden keys, have a gradient of zero."""
    mask = torch.rand(2, 1, 3, keys) < 0.6
    mask[0, 0, 1] = False
    scores = torch.randn(2, 2, 3, keys, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(lambda x: masked_softmax(x, mask), scores)
    masked_softmax(scores, mask).square().sum().backward()
    assert scores.grad is not None
    assert (scores.grad.masked_select(~mask) == 0).all()


# Leaks


@of_each_kind
def test_the_decoder_never_sees_the_future(build: BuildModel, kind: dict[str, Any]) -> None:
    """A15: bit-identical logits before the changed position, for every position."""
    for norm_place in ("post", "pre"):
        model = build(norm_place=norm_place, **kind)
        before = model(SRC, TGT)
        for j in range(1, TGT.size(1)):
            changed = TGT.clone()
            changed[:, j] = 17
            after = model(SRC, changed)
            assert torch.equal(after[:, :j], before[:, :j])
            assert not torch.equal(after[0, j], before[0, j])


def test_no_gradient_flows_from_the_future(build: BuildModel) -> None:
    model = build()
    seen: list[Tensor] = []
    model.target_embedding.register_forward_hook(lambda m, i, out: seen.append(out))
    logits = model(SRC, TGT)
    for t in range(TGT.size(1)):
        (gradient,) = torch.autograd.grad(logits[0, t].square().sum(), seen[0], retain_graph=True)
        assert (gradient[0, t + 1 :] == 0).all()
        assert (gradient[0, : t + 1].abs().sum(-1) > 0).all()


@of_each_kind
def test_padding_changes_nothing(build: BuildModel, kind: dict[str, Any]) -> None:
    """A16: alone, padded, and in company; also with a huge embedding of PAD."""
    for norm_place in ("post", "pre"):
        model = build(norm_place=norm_place, tie_embeddings=False, **kind)
        alone = model(SRC[1:, :2], TGT[1:, :2])
        for _ in range(2):
            wide = torch.zeros(1, 37, dtype=torch.int64)
            wide[0, :2] = SRC[1, :2]
            memory = model.encode(wide, padding_mask(wide))
            assert memory.shape == (1, 37, 14)
            torch.testing.assert_close(
                memory[:, :2], model.encode(SRC[1:, :2], padding_mask(SRC[1:, :2])),
                rtol=0, atol=1e-12,
            )  # fmt: skip
            company = model(SRC, TGT)
            assert company.isfinite().all()
            torch.testing.assert_close(company[1:, :2], alone, rtol=0, atol=1e-12)
            with torch.no_grad():
                model.source_embedding.weight[0] = 1e6
                model.target_embedding.weight[0] = 1e6


def test_training_without_dropout_equals_evaluation(build: BuildModel) -> None:
    model = build()
    evaluated = model(SRC, TGT)
    assert torch.equal(model.train()(SRC, TGT), evaluated)
    with torch.no_grad():
        assert torch.equal(model(SRC, TGT), evaluated)


@of_each_kind
@pytest.mark.parametrize("recorded", [False, True])
def test_a_source_of_length_zero_harms_nobody(
    build: BuildModel, recorded: bool, kind: dict[str, Any]
) -> None:
    """A13: all keys masked gives zeros, finite gradients, and the neighbour is untouched."""
    model = build(**kind)
    weights: list[Tensor] = []
    if recorded:
        for layer in model.decoder.layers:
            assert isinstance(layer, DecoderLayer)
            layer.cross_attention.weights.register_forward_hook(
                lambda m, i, out: weights.append(out)
            )
    src = SRC.clone()
    src[1] = 0
    logits = model(src, TGT)
    recorded_weights = list(weights)
    logits.sum().backward()
    assert logits.isfinite().all()
    trained = [p for p in model.parameters() if p.requires_grad]
    assert all(p.grad is not None and p.grad.isfinite().all() for p in trained)
    assert torch.equal(logits[:1], model(SRC, TGT)[:1])  # whatever the neighbour is
    torch.testing.assert_close(logits[:1], model(src[:1], TGT[:1]), rtol=0, atol=1e-12)
    assert all((alpha[1] == 0).all() for alpha in recorded_weights)
    assert bool(recorded_weights) == recorded


def test_rows_without_keys_in_the_fused_kernel() -> None:
    Q, K, V = (torch.randn(2, 3, 4, 5, dtype=torch.float64, requires_grad=True) for _ in range(3))
    mask = torch.ones(2, 1, 4, 4, dtype=torch.bool)
    mask[1] = False
    for function in (attention, fused_attention):
        heads = function(Q, K, V, mask)
        assert (heads[1] == 0).all()
        for gradient in torch.autograd.grad(heads.sum(), (Q, K, V)):
            assert gradient.isfinite().all()
            assert (gradient[1] == 0).all()


# Fast paths against slow ones


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_explicit_and_fused_attention_agree(dtype: torch.dtype) -> None:
    Q, K = (torch.randn(2, 3, 7, 5, dtype=dtype, requires_grad=True) for _ in range(2))
    V = torch.randn(2, 3, 7, 11, dtype=dtype, requires_grad=True)
    mask = torch.rand(2, 1, 7, 7) > 0.4
    mask[0, 0, 2] = False
    bound = 1e-12 if dtype == torch.float64 else 1e-5
    ours, fused = attention(Q, K, V, mask), fused_attention(Q, K, V, mask)
    torch.testing.assert_close(ours, fused, rtol=0, atol=bound)
    grads = torch.autograd.grad(ours.square().sum(), (Q, K, V))
    fused_grads = torch.autograd.grad(fused.square().sum(), (Q, K, V))
    torch.testing.assert_close(grads, fused_grads, rtol=0, atol=10 * bound)


def test_the_whole_model_with_either_attention(
    build: BuildModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build()
    explicit = model(SRC, TGT)
    monkeypatch.setattr(module, "fused_pays", lambda Q, P_drop: True)
    torch.testing.assert_close(model(SRC, TGT), explicit, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", [*KINDS, {"norm_place": "pre"}, {"positions": "learned"}])
def test_a_cached_step_equals_the_full_forward(build: BuildModel, kind: dict[str, Any]) -> None:
    model = build(max_positions=40, **kind)
    tgt = torch.randint(4, 29, (2, 35))
    full = model(SRC, tgt)
    state = model.start(SRC)
    for t in range(35):
        logits, state = model.step(tgt[:, t : t + 1], state)
        torch.testing.assert_close(logits[:, 0], full[:, t], rtol=0, atol=1e-12)


@of_each_kind
def test_steps_with_beams_reordered_and_sentences_gone(
    build: BuildModel, kind: dict[str, Any]
) -> None:
    model = build(**kind)
    state = model.start(SRC)
    _, state = model.step(torch.tensor([[2], [2]]), state)
    state = state.select(torch.tensor([[0, 0, 0], [1, 1, 1]]))
    _, state = model.step(torch.tensor([[4, 5, 6], [7, 8, 9]]), state)
    state = state.select(torch.tensor([[5, 3]]))  # only sentence 1, hypotheses 2 and 0
    logits, state = model.step(torch.tensor([[10, 11]]), state)
    for place, prefix in enumerate([[2, 9, 10], [2, 7, 11]]):
        expected = model(SRC[1:, :2], torch.tensor([prefix]))[0, -1]
        torch.testing.assert_close(logits[0, place], expected, rtol=0, atol=1e-12)


def test_recording_changes_nothing_and_shows_every_head(build: BuildModel) -> None:
    model = build()
    plain = model(SRC, TGT)
    seen: dict[str, Tensor] = {}
    for name, part in model.named_modules():
        if name.endswith(".weights"):
            part.register_forward_hook(lambda m, i, out, name=name: seen.update({name: out}))
    torch.testing.assert_close(model(SRC, TGT), plain, rtol=0, atol=1e-12)
    assert len(seen) == 2 + 2 * 2
    for name, alpha in seen.items():
        keys = 6 if name.startswith("decoder") and "self" in name else 5
        assert alpha.shape == (2, 3, 6 if name.startswith("decoder") else 5, keys)
        torch.testing.assert_close(alpha.sum(-1), torch.ones_like(alpha.sum(-1)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_masks_in_half_precision(dtype: torch.dtype) -> None:
    """A14: padding and causal mask together, the first position looking at a padded key."""
    Q, K = torch.randn(2, 3, 4, 8), torch.randn(2, 3, 4, 8)
    mask = (
        causal_mask(4)[None, None]
        & torch.tensor([[0, 1, 1, 1], [1, 1, 0, 0]]).bool()[:, None, None]
    )
    wide = attention_weights(Q, K, mask)
    half = attention_weights(Q.to(dtype), K.to(dtype), mask)
    assert half.dtype == torch.float32
    assert half.isfinite().all()
    assert (half[~mask.expand_as(half)] == 0).all()
    near = attention_weights(Q.to(dtype).float(), K.to(dtype).float(), mask)
    torch.testing.assert_close(half, near, rtol=0, atol=1e-2 if dtype == torch.bfloat16 else 2e-3)
    assert wide.isfinite().all()


def test_finite_differences_of_attention() -> None:
    torch.autograd.gradcheck(
        lambda Q, K, V: attention(Q, K, V, causal_mask(3)[None, None]),
        [torch.randn(1, 2, 3, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)],
    )


@pytest.mark.parametrize("norm_place", ["post", "pre"])
def test_finite_differences_of_a_layer_of_each_kind(build: BuildModel, norm_place: str) -> None:
    model = build(norm_place=norm_place)
    encoder_layer, decoder_layer = model.encoder.layers[0], model.decoder.layers[0]
    assert isinstance(encoder_layer, EncoderLayer) and isinstance(decoder_layer, DecoderLayer)
    x = torch.randn(2, 5, 14, dtype=torch.float64, requires_grad=True)
    y = torch.randn(2, 6, 14, dtype=torch.float64, requires_grad=True)
    src_mask, real = padding_mask(SRC), torch.ones(2, 6, dtype=torch.bool)
    torch.autograd.gradcheck(lambda x: encoder_layer(x, SRC != 0), x)
    torch.autograd.gradcheck(lambda y, x: decoder_layer(y, x, real, src_mask), (y, x))


# Sizes, names, limits


PRINTED = {  # Table 3's last column, millions; where it is blank the paper means base's 65
    "base": 65, "A1": None, "A2": None, "A3": None, "A4": None, "B1": 58, "B2": 60, "C1": 36,
    "C2": 50, "C3": 80, "C4": 28, "C5": 168, "C6": 53, "C7": 90, "D1": None, "D2": None,
    "D3": None, "D4": None, "E": None, "big": 213,
}  # fmt: skip


def formula(c: ModelConfig) -> int:
    """Count the parameters of a tied model, matrix by matrix."""
    norm = 2 * c.d_model
    attention = c.d_model * c.h * (2 * c.d_k + 2 * c.d_v)
    feed_forward = 2 * c.d_model * c.d_ff + c.d_ff + c.d_model
    encoder = c.N_encoder * (attention + feed_forward + 2 * norm)
    decoder = c.N_decoder * (2 * attention + feed_forward + 3 * norm)
    positions = 2 * c.max_positions * c.d_model if c.positions == "learned" else 0
    return c.source_vocabulary * c.d_model + encoder + decoder + positions


@pytest.mark.parametrize("row", PRINTED)
def test_parameter_counts_of_table_3(row: str) -> None:
    """The count equals the formula; the printed column fits within the paper's unknown vocabulary.

    Every row of the base family agrees with the print at about 41,000 pieces, big at 36,000.
    """
    config = parse(overlay({"preset": row}), "test").model
    with torch.device("meta"):
        model = Transformer(config)
    count = sum(parameter.numel() for parameter in model.parameters())
    assert count == formula(config)
    if printed := PRINTED[row]:
        pieces = 36_000 if row == "big" else 41_000
        with_their_pieces = count + (pieces - config.source_vocabulary) * config.d_model
        assert with_their_pieces / 1e6 == pytest.approx(printed, abs=0.55)


def test_tensor_names(build: BuildModel) -> None:
    names = set(dict(build(norm_place="pre").named_parameters()))
    attention = {f"W_{m}.weight" for m in "QKVO"}
    feed_forward = {"W_1.weight", "W_1.bias", "W_2.weight", "W_2.bias"}
    norm = {"weight", "bias"}
    expected = {"source_embedding.weight", "target_embedding.weight"}
    for stack, kinds in (("encoder", ["self"]), ("decoder", ["self", "cross"])):
        expected |= {f"{stack}.norm.{n}" for n in norm}
        for i in range(2):
            at = f"{stack}.layers.{i}"
            expected |= {f"{at}.{k}_attention.{n}" for k in kinds for n in attention}
            expected |= {f"{at}.{k}_attention_norm.{n}" for k in kinds for n in norm}
            expected |= {f"{at}.feed_forward.{n}" for n in feed_forward}
            expected |= {f"{at}.feed_forward_norm.{n}" for n in norm}
    assert names == expected
    assert "encoder.norm.weight" not in dict(build().named_parameters())


def test_tying(build: BuildModel) -> None:
    joint = build(joint_vocabulary=True, source_vocabulary=29)
    assert joint.source_embedding.weight is joint.target_embedding.weight is joint.output.weight
    separate = build()
    assert separate.target_embedding.weight is separate.output.weight
    assert separate.source_embedding.weight is not separate.output.weight
    assert build(tie_embeddings=False).output.weight is not None
    assert "output.weight" in dict(build(tie_embeddings=False).named_parameters())


def test_learned_positions_end_somewhere(build: BuildModel) -> None:
    model = build(positions="learned", max_positions=5)
    model(SRC, TGT[:, :5])
    with pytest.raises(ValueError, match="position 6 lies beyond the table of 5"):
        model(SRC, TGT)


def test_a_sentence_longer_than_any_table(build: BuildModel) -> None:
    model = build()
    src = torch.randint(4, 23, (1, 700))
    long = model(src, TGT[:1])
    assert long.isfinite().all()
    torch.testing.assert_close(model(SRC, TGT), build_like(model)(SRC, TGT), rtol=0, atol=0)


def build_like(model: Transformer) -> Transformer:
    other = Transformer(model.config).double().eval()
    other.load_state_dict(model.state_dict())
    return other


def test_dropout_is_dropout() -> None:
    dropout = Dropout(0.3).train()
    x = torch.ones(1000, 333)
    dropped = dropout(x)
    assert dropped.unique().tolist() == pytest.approx([0.0, 1 / 0.7])
    assert (dropped == 0).float().mean().item() == pytest.approx(0.3, abs=0.005)
    rows, columns = (dropped == 0).float().mean(1), (dropped == 0).float().mean(0)
    assert rows.std().item() == pytest.approx((0.21 / 333) ** 0.5, rel=0.2)
    assert columns.std().item() == pytest.approx((0.21 / 1000) ** 0.5, rel=0.2)
    assert not torch.equal(dropout(x), dropped)
    assert dropout.eval()(x) is x


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float32, torch.float64])
def test_dropout_gives_the_gradient_to_what_it_kept(kind: torch.dtype) -> None:
    x = torch.randn(7, 11, dtype=kind, requires_grad=True)
    dropped = Dropout(0.4).train()(x)
    dropped.sum().backward()
    kept = dropped != 0
    assert x.grad is not None
    torch.testing.assert_close(x.grad, kept.to(kind) / 0.6)
    torch.testing.assert_close(dropped, torch.where(kept, x / 0.6, 0.0).to(kind))


def test_dropout_depends_on_its_seed_alone() -> None:
    dropout, x = Dropout(0.5).train(), torch.ones(300)
    drawn: list[tuple[torch.Tensor, torch.Tensor]] = []
    for seed in ((1, 2), (1, 2), (2, 1)):
        torch.manual_seed(len(drawn))
        with dropout_from(*seed):
            drawn.append((dropout(x), dropout(x)))
    assert torch.equal(drawn[0][0], drawn[1][0]) and torch.equal(drawn[0][1], drawn[1][1])
    assert not torch.equal(drawn[0][0], drawn[0][1])
    assert not torch.equal(drawn[0][0], drawn[2][0])
    torch.manual_seed(7)  # without a seed of its own: torch's
    first = dropout(x)
    torch.manual_seed(7)
    assert torch.equal(dropout(x), first)


def test_where_dropout_stands(build: BuildModel) -> None:
    """§5.4: on every sub-layer's output and on both sums of embeddings and positions."""
    model = build(P_drop=0.5).train()
    calls: list[str] = []
    for name, part in model.named_modules():
        if isinstance(part, Dropout) and part.P_drop:
            part.register_forward_hook(lambda m, i, out, name=name: calls.append(name))
    model(SRC, TGT)
    assert calls.count("dropout") == 2
    for i in range(2):
        assert calls.count(f"encoder.layers.{i}.dropout") == 2
        assert calls.count(f"decoder.layers.{i}.dropout") == 3
    assert len(calls) == 2 + 2 * 2 + 2 * 3
