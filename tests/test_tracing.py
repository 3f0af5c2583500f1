"""The trace of a sentence: as the schema says, true to the model, and packed without loss."""

import base64
import json
import math
import re
from importlib import resources
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
from torch import Tensor

import transduce.inspection
from tests.test_translator import CHARS
from transduce.config import EOS, DecodingConfig, ModelConfig
from transduce.decoding.translator import Translator, translator_of
from transduce.errors import UsageError
from transduce.inspection.attention import attention_weights
from transduce.inspection.pages import Packing, in_script, only_chosen, page
from transduce.inspection.terminal import printed
from transduce.inspection.tracing import Choice, as_json, recorded, trace
from transduce.model import Transformer

SCHEMA = json.loads((resources.files("transduce") / "web" / "trace.schema.json").read_text("utf-8"))
CHECK = jsonschema.Draft202012Validator(SCHEMA)


def translator(dtype: torch.dtype = torch.float32, **changes: Any) -> Translator:
    """Return a random model that has something to say."""
    decoding = changes.pop("decoding", {"max_extra": 5})
    sizes = {"source_vocabulary": len(CHARS), "target_vocabulary": len(CHARS), "N": 2,
             "d_model": 16, "d_ff": 24, "h": 2, "P_drop": 0.0}  # fmt: skip
    torch.manual_seed(3)
    model = Transformer(ModelConfig.model_validate(sizes | changes))
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.5)
    asked = DecodingConfig.model_validate(decoding)
    return translator_of(model.to(dtype).eval(), (CHARS, CHARS), asked)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"norm_place": "pre", "positions": "learned", "max_positions": 30},
        {"norm_kind": "batch", "attention_biases": True},
        {"encoder_layer_type": "restricted", "decoder_layer_type": "recurrent"},
        {"encoder_layer_type": "convolutional", "attention_normaliser": "relu"},
        {"N": 1, "h": 1, "norm_kind": "rms"},
        {"decoding": {"max_extra": 5, "method": "sample", "beam_size": 3}},
        {"decoding": {"max_extra": 2, "beam_size": 1}},
    ],
    ids=str,
)
@pytest.mark.parametrize("target", [None, "ab c"])
def test_it_is_as_the_schema_says(changes: dict[str, Any], target: str | None) -> None:
    found = as_json(trace(translator(**changes), "abc de", target))
    CHECK.validate(json.loads(json.dumps(found, allow_nan=False)))
    assert bool(found["decodings"]) == (target is None)
    assert found["target"]["given"] == (target is not None)
    for kind, station in found["stations"].items():
        types = {side: changes.get(f"{side}_layer_type") for side in ("encoder", "decoder")}
        own_type = types.get(kind.removesuffix("_self"))
        missing = own_type in ("recurrent", "convolutional")
        assert (station is None) == missing
    assert len(found["cannot_show"]) == list(found["stations"].values()).count(None)


def test_it_is_what_the_translator_says() -> None:
    own = translator()
    found = trace(own, "abc de")
    best = own.translate(["abc de"])[0].hypotheses[0]
    assert found["target"]["text"] == best.text
    names = [token["text"] for token in found["target"]["tokens"]]
    assert [name.replace("END", "</s>") for name in names] == list(best.tokens)
    assert found["target"]["log_probabilities"] == pytest.approx(best.log_probabilities, abs=1e-5)
    output = found["decodings"][0]["outputs"][0]
    assert output["score"] == pytest.approx(best.score)
    assert output["log_probability"] / output["divisor"] == pytest.approx(output["score"])
    greedy = own.translate(["abc de"], beam_size=1)[0]
    assert found["decodings"][1]["outputs"][0]["text"] == greedy.text
    assert [len(one["steps"][0]["live"]) for one in found["decodings"]] == [1, 1]


def test_recording_changes_nothing() -> None:
    own = translator()
    for beam in (1, 4):
        plain = own.translate(["cab de"], beam_size=beam)[0]
        watched, record, attended = recorded(own, "cab de", beam)
        assert watched == plain
        assert len(record.steps) == len(attended)
        for weights in attended:
            torch.testing.assert_close(weights.sum(-1), torch.ones(len(weights)))
    _, record, attended = recorded(own, "cab de", 1)
    tokens = [token for token in record.outputs[0].tokens if token != EOS]
    model = own.engine.model  # type: ignore[attr-defined]
    weights = attention_weights(model, [(own.source.encode("cab de"), tokens)])[0]["cross"]
    forced = weights[0].mean(dim=0)[: len(attended)]
    torch.testing.assert_close(torch.stack([step[0] for step in attended]), forced)


def test_a_given_target_is_scored_and_named() -> None:
    own = translator()
    found = trace(own, "abc", "de a")
    scored = own.score([("abc", "de a")])[0]
    assert found["target"]["log_probabilities"] == pytest.approx(scored.log_probabilities)
    assert found["target"]["inputs"][0] == {"id": 2, "text": "BEGIN", "special": True}
    assert [word["text"] for word in found["target"]["words"]] == ["de", "a"]
    assert found["target"]["tokens"][-1] == {"id": 3, "text": "END", "special": True}


def test_text_that_is_spelled_like_a_special_token_is_not_one() -> None:
    """Unknown characters are UNKNOWN, and letters stay letters."""
    found = trace(translator(), "abe END")
    special = [token["text"] for token in found["source"]["tokens"] if token["special"]]
    assert special[-1] == "END" and set(special[:-1]) == {"UNKNOWN"}
    assert len(special) > 1


def test_the_chosen_layer_and_head() -> None:
    own = translator()
    found = trace(own, "abc", choice=Choice(encoder_layer=1, decoder_layer=0, head=1))
    assert [(s.layer, s.head) for s in found["stations"].values()] == [(1, 1), (0, 1), (0, 1)]
    usual = trace(own, "abc")
    assert [s.layer for s in usual["stations"].values()] == [0, 0, 0]  # of two, the last but one
    for kind, station in found["stations"].items():
        whole = found["attention"][kind]["weights"][station.layer, station.head]
        torch.testing.assert_close(whole, station.one.alpha)


@pytest.mark.parametrize(
    ("line", "choice", "said"),
    [
        ("  ", Choice(), "blank"),
        ("abc", Choice(encoder_layer=2), "layer 3: the encoder has 2"),
        ("abc", Choice(decoder_layer=5), "layer 6: the decoder has 2"),
        ("abc", Choice(head=2), "head 3: the model has 2"),
    ],
)
def test_what_cannot_be_seen(line: str, choice: Choice, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        trace(translator(), line, choice=choice)


def test_a_target_beyond_the_positions() -> None:
    own = translator(positions="learned", max_positions=6)
    with pytest.raises(UsageError, match="max_positions"):
        trace(own, "abc", "abcdeabc")


def test_an_unfinished_output_has_no_end() -> None:
    own = translator(decoding={"max_extra": 0, "beam_size": 2})
    for line in ("a", "ab", "abc", "abcd", "bd", "ce"):
        found = trace(own, line)
        rows = found["attention"]["cross"]["weights"].size(2)
        assert rows == len(found["target"]["tokens"]) == len(found["target"]["log_probabilities"])
        finished = found["decodings"][0]["outputs"][0]["finished"]
        assert finished == (found["target"]["tokens"][-1]["text"] == "END")


def test_numbers_as_json_are_the_same_float32() -> None:
    x = torch.randn(50) * 10.0 ** torch.randint(-9, 9, (50,))
    back = np.array(json.loads(json.dumps(as_json(x))), dtype=np.float32)
    assert (back == x.numpy()).all()


# Pages


def unpacked(arrays: list[dict[str, Any]], reference: dict[str, int]) -> np.ndarray[Any, Any]:
    own = arrays[reference["array"]]
    kind = "uint8" if own["type"] == "share8" else own["type"]
    return np.frombuffer(base64.b64decode(own["base64"]), dtype=kind).reshape(own["shape"])


def test_packing_loses_nothing_of_a_short_sentence() -> None:
    found = trace(translator(), "abc")
    packed = Packing().trace(found)
    arrays = packed["arrays"]
    for kind, whole in found["attention"].items():
        weights = unpacked(arrays, packed["attention"][kind]["weights"])
        assert (weights == whole["weights"].numpy()).all()
        for name in ("q", "alpha", "b", "raw"):
            there = unpacked(arrays, packed["stations"][kind]["one"][name])
            assert (there == getattr(found["stations"][kind].one, name).numpy()).all()
    same = packed["stations"]["encoder_self"]
    assert same["input"] == same["memory"] == same["x"]  # kept once


def test_large_pages_say_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    found = trace(translator(d_model=32), "abc de")
    whole = page([found], "model")
    assert "All weights would" not in whole
    monkeypatch.setattr("transduce.inspection.pages.LARGE", len(whole) - 1)
    fewer = page([found], "model")
    assert "All weights would" in fewer and "Of long vectors" not in fewer
    assert len(fewer) < len(whole)
    monkeypatch.setattr("transduce.inspection.pages.LARGE", len(fewer) - 1)
    least = page([found], "model")
    assert "Of long vectors the first 8" in least and len(least) < len(fewer)


def test_long_vectors_are_written_as_far_as_they_are_shown() -> None:
    found = trace(translator(d_model=512), "abc")
    packed = Packing().trace(found)
    own, arrays = packed["stations"]["cross"], packed["arrays"]
    assert unpacked(arrays, own["out"]).shape[1] == 128
    assert unpacked(arrays, own["memory"]).shape[1] == 512  # its components are followed


def test_only_the_chosen_layers() -> None:
    found = only_chosen(trace(translator(), "abc", choice=Choice(1, 1)))
    assert [own["layers"] for own in found["attention"].values()] == [[1], [1], [1]]
    assert [len(own["weights"]) for own in found["attention"].values()] == [1, 1, 1]


def test_weights_of_long_sentences_are_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transduce.inspection.pages.EXACT", 10)
    found = trace(translator(), "abc")
    packed = Packing().trace(found)
    rough = unpacked(packed["arrays"], packed["attention"]["cross"]["weights"]) / 255
    exact = found["attention"]["cross"]["weights"].numpy()
    assert np.abs(rough - exact).max() <= 0.5 / 255 + 1e-6


def test_text_is_never_markup() -> None:
    """A40: neither as an element nor as the end of the script."""
    found = trace(translator(), "abc")
    found["source"]["text"] = "</script><script>alert(1)</script><!--\u2028"
    text = page([found], "a <b> model")
    assert "<script>alert" not in text and "<b>" not in text
    assert text.count("</script>") == 2
    assert json.loads(in_script(json.dumps("</script>\u2028"))) == "</script>\u2028"


def test_the_same_trace_gives_the_same_page() -> None:
    found = trace(translator(), "abc")
    assert page([found], "model") == page([found], "model")


def test_in_the_terminal() -> None:
    own = translator()
    lines = list(printed(trace(own, "abc de")))
    assert lines[0] == "source: abc de"
    assert any("cross-attention, layer 1 of 2, mean of 2 heads" in line for line in lines)
    assert any("search: beam of 4" in line for line in lines)
    forced = "\n".join(printed(trace(own, "abc de", "de a")))
    assert "search:" not in forced
    found = re.search(r"alignment \(layer 1, mean of all heads\): (.*)", forced)
    assert found and {link[-1] for link in found[1].split()} <= {"0", "1"}


def test_the_sum_of_each_path_is_its_score() -> None:
    found = as_json(trace(translator(), "abc de"))
    for decoding in found["decodings"]:
        nodes = {one["id"]: one for step in decoding["steps"] for one in step["candidates"]}
        for output in decoding["outputs"]:
            total, at = 0.0, output["id"]
            while at:
                total, at = total + nodes[at]["log_probability"], nodes[at]["parent"]
            assert total == pytest.approx(output["log_probability"], abs=1e-5)
            assert math.isclose(total / output["divisor"], output["score"], abs_tol=1e-5)


def test_the_public_name_gives_json() -> None:
    found = transduce.inspection.trace(translator(), "abc", "de")
    CHECK.validate(json.loads(json.dumps(found, allow_nan=False)))
    assert found["target"]["text"] == "de"


def test_tensors_of_any_kind_become_lists() -> None:
    assert as_json({"a": [torch.tensor([1, 2]), (torch.tensor(0.5),)]}) == {"a": [[1, 2], [0.5]]}
    assert isinstance(as_json(torch.tensor([True])), list)
    assert not isinstance(as_json(torch.zeros(2)), Tensor)
