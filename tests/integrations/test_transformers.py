"""Models of transformers with generated attention beside the same with eager attention."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers", minversion="5.17")

from transformers.generation.continuous_batching.model_runner import ModelRunner  # noqa: E402

from flashgen.errors import ModelError, UsageError  # noqa: E402
from flashgen.integrations import comparing, models, tiny  # noqa: E402
from flashgen.integrations.transformers import register  # noqa: E402
from flashgen.runtime import strides  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("registered"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU suite has these models"),
]
SIZE = tiny.Size()


def near(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return float((found - expected).detach().norm()) <= 1e-5 * float(expected.detach().norm())


@pytest.mark.parametrize("name", tiny.MODELS)
def test_a_model_agrees_with_its_eager_self(name: str) -> None:
    found = comparing.compare(name, SIZE, "generated")
    assert found.agrees, found
    assert (found.tokens is None) == (name in tiny.ENCODERS)


def test_a_model_whose_parts_have_another_attention_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    config, architecture = tiny.MODELS["T5"](SIZE)

    class Halves(architecture):  # type: ignore[misc, valid-type]
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.encoder.config._attn_implementation = "eager"

    monkeypatch.setitem(tiny.MODELS, "T5", lambda size: (config, Halves))
    with pytest.raises(
        ModelError, match=r"parts of T5 have the attention \['eager', 'generated'\]; expected 'generated'"
    ):
        comparing.compare("T5", SIZE, "generated")


@pytest.mark.parametrize("name", tiny.MODELS)
def test_a_model_is_timed_with_what_it_reads(name: str) -> None:
    made = tiny.model(name, SIZE, "eager")
    given, tokens = models.trained_on(made, 2, 12)
    assert made(**given).loss.isfinite()
    written = given["labels"].numel() if made.config.is_encoder_decoder else 0
    places = made.config.max_source_positions if name == "Whisper" else 12
    assert tokens == 2 * places + written
    assert name in tiny.ENCODERS or len(made.generate(**models.reading(made, 3, 12), max_new_tokens=2)) == 3


@pytest.mark.parametrize("name", ["Llama", "Gemma 3", "Llama 4"])
def test_a_static_cache_gives_the_same_tokens(name: str) -> None:
    if name == "Llama 4" and not comparing.has_static_chunks():
        pytest.skip("this transformers raises for a static cache of chunks, whatever the attention")
    made, inputs = tiny.model(name, SIZE, "eager"), comparing.sample(name, SIZE)
    eager = comparing.greedy(made, inputs, 12)
    made.set_attn_implementation("generated")
    strides.say_once.cache_clear()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*it is copied on each call")
        found = comparing.greedy(made, inputs, 12, cache_implementation="static", disable_compile=True)
    assert torch.equal(found, eager)


def test_padding_between_the_tokens_is_not_read() -> None:
    made, inputs = tiny.model("Mistral", SIZE, "eager"), comparing.sample("Mistral", SIZE)
    inputs["attention_mask"][0, 5:9] = 0
    expected = comparing.results(made, inputs)
    made.set_attn_implementation("generated")
    assert all(map(near, comparing.results(made, inputs), expected))


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
def test_a_mask_of_the_caller_is_an_input(dtype: torch.dtype) -> None:
    made, words = tiny.model("Llama", SIZE, "eager"), comparing.sample("Llama", SIZE)["input_ids"]
    seen = torch.rand(2, 1, 15, 15, generator=torch.Generator().manual_seed(2)) < 0.5
    seen |= torch.eye(15, dtype=torch.bool)
    added = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
    expected = made(input_ids=words, attention_mask=added).logits
    made.set_attn_implementation("generated")
    found = made(input_ids=words, attention_mask=seen if dtype == torch.bool else added).logits
    assert near(found, expected)


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
@pytest.mark.parametrize("shape", [(2, 1, 15, 16), (2, 1, 15, 14), (3, 1, 15, 15), (2, 3, 15, 15), (2, 1, 14, 15)])
def test_a_mask_of_other_lengths_is_refused(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    made, words = tiny.model("Llama", SIZE, "generated"), comparing.sample("Llama", SIZE)["input_ids"]
    with pytest.raises(ModelError, match=r"expected \[batch, heads, q_len, kv_len\] of"):
        made(input_ids=words, attention_mask=torch.ones(shape, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8])
@pytest.mark.parametrize("length", [1, 2, 3, 15])
def test_a_mask_of_integers_is_refused(length: int, dtype: torch.dtype) -> None:
    # With so few keys it has the shape of the interface's own.
    made, words = tiny.model("Llama", SIZE, "generated"), comparing.sample("Llama", SIZE)["input_ids"][:, :length]
    with pytest.raises(ModelError, match=f"{dtype}.*expected bools"):
        made(input_ids=words, attention_mask=torch.ones(2, 1, length, length, dtype=dtype).tril())


@pytest.mark.parametrize("name", ["Llama", "Mistral"])
@pytest.mark.parametrize("padded", [False, True])
def test_a_padding_mask_shorter_than_the_text_is_refused(name: str, padded: bool) -> None:
    made, words = tiny.model(name, SIZE, "generated"), comparing.sample(name, SIZE)["input_ids"]
    seen = torch.ones(2, 9, dtype=torch.int64)
    seen[0, :3] = int(not padded)
    with pytest.raises(ModelError, match=r"\(2, 1, 15, 9\); expected .* \(2, 2, 15, 15\)"):
        made(input_ids=words, attention_mask=seen, use_cache=False)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", ["Gemma 2", "GPT-OSS"])
def test_a_text_of_a_few_tokens(name: str, padded: bool) -> None:
    made = tiny.model(name, SIZE, "eager")
    for length in (1, 2, 3):
        inputs = {key: value[:, :length].clone() for key, value in comparing.sample(name, SIZE).items()}
        inputs["attention_mask"][:] = 1
        inputs["attention_mask"][1, : length - 1] = int(not padded)
        made.set_attn_implementation("eager")
        expected = comparing.results(made, inputs)
        made.set_attn_implementation("generated")
        assert all(map(near, comparing.results(made, inputs), expected))


def test_torch_compile_makes_one_graph_of_packed_documents() -> None:
    made, words = tiny.model("Mistral", SIZE, "eager"), comparing.sample("Mistral", SIZE)["input_ids"]
    places = torch.tensor([[*range(6), *range(9)], [*range(12), *range(3)]])
    # Beside a cache transformers takes no position_ids for documents.
    inputs = {"input_ids": words, "position_ids": places, "use_cache": False}
    expected = comparing.results(made, inputs)
    made.set_attn_implementation("generated")
    compiled = torch.compile(made, fullgraph=True, backend="aot_eager")
    assert all(map(near, comparing.results(made, inputs, compiled), expected))


@pytest.mark.parametrize("padded", [False, True], ids=["as they are", "padded"])
@pytest.mark.parametrize("name", ["Llama", "GPT-OSS"])
def test_requests_are_batched_continuously(name: str, padded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if padded:
        # As where a CUDA graph of each step is kept.
        monkeypatch.setattr(ModelRunner, "__init__", _padding(ModelRunner.__init__))
    made = tiny.model(name, SIZE, "eager")
    prompts = [torch.randint(3, SIZE.vocabulary, (length,)).tolist() for length in (5, 11, 17)]

    def answers() -> list[list[int]]:
        return comparing.batched(made, prompts, 6, num_blocks=32, max_batch_tokens=64, use_cuda_graph=False)

    expected = answers()
    assert all(len(answer) == 6 for answer in expected)
    made.set_attn_implementation("generated")
    assert answers() == expected


def _padding(made: Callable[..., None]) -> Callable[..., None]:
    def init(self: ModelRunner, *given: Any, **options: Any) -> None:
        made(self, *given, **options)
        self.pad_inputs = True

    return init


def test_what_it_does_not_have_is_named() -> None:
    whisper = tiny.model("Whisper", SIZE, "eager")
    whisper.set_attn_implementation("generated")
    with pytest.raises(ModelError, match="output_attentions"):
        whisper.model.encoder.layers[0].self_attn(torch.randn(1, 4, SIZE.hidden), output_attentions=True)


def test_a_model_drops_weights_in_training_alone() -> None:
    made, inputs = tiny.model("Llama", SIZE, "generated"), comparing.sample("Llama", SIZE)
    for layer in made.model.layers:
        layer.self_attn.attention_dropout = 0.5

    def logits() -> torch.Tensor:
        torch.manual_seed(3)
        return made(**inputs).logits

    made.eval()
    whole = logits()
    assert torch.equal(made(**inputs).logits, whole)
    made.train()
    dropped = logits()
    assert not torch.allclose(dropped, whole)
    assert torch.equal(logits(), dropped)
    assert not torch.allclose(made(**inputs).logits, dropped)


@pytest.mark.parametrize("name", ["flash_mine", "eager", "paged|mine", ""])
def test_a_name_of_transformers_own_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="means something else"):
        register(name)


def test_one_command_prints_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert models.main(["BERT"]) == 0
    assert "| BERT | " in capsys.readouterr().out
    with pytest.raises(SystemExit):
        models.main(["Bert"])
    assert "unknown models ['Bert']" in capsys.readouterr().err
