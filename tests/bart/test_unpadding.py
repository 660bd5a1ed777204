"""Training without padding: its results are those with padding, and layers see the tokens alone."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bart.backend import IGNORE_INDEX, Backend
from bart.cpu.backend import CpuBackend
from bart.cpu.kernels import NO_DRAWS, Spans, load
from bart.cpu.operators import CompiledAttention
from bart.cuda import backend as cuda
from bart.cuda.backend import CudaBackend, CudaRows
from bart.cuda.linear import HalfCopies
from bart.modeling.heads import BartForQuestionAnswering, BartForSequenceClassification, BartForTokenClassification
from bart.modeling.pretrained import PretrainedModel
from bart.unpadding import KnownRows, carrying
from bert.configuration.configuration_bert import BertConfig
from bert.modeling.modeling_bert import BertForMaskedLM, BertModel
from tests.tiny_run import tiny_bart

bart = functools.partial(tiny_bart, encoder_layers=2, decoder_layers=2, max_position_embeddings=12, dropout=0.0)


def known(mask: Tensor, nothing: int) -> Tensor:
    """A mask that carries its rows, as those of batches on GPUs do."""
    return carrying(mask, KnownRows.of(mask != nothing, CudaRows))


# Padding behind, before and between tokens, and none.
MASK = known(torch.tensor([[1] * 9 + [0] * 3, [0] * 2 + [1] * 10, [1, 0] * 6, [1] * 12]), 0)
# Behind targets, and between them; and a row without any.
LABELS = known(torch.tensor([[7, 8, 2, -100, -100], [9, -100, 4, 2, -100], [-100] * 5, [3, 4, 5, 6, 2]]), IGNORE_INDEX)


@pytest.fixture(params=["cpu", "cuda", "copies"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Backend:
    """That of CPUs; and that of GPUs, also with copies of the weights, as they are under autocast.

    Attention of GPUs is replaced by torch's of each article, and the copies are as precise as the weights.
    """

    def attend(query, keys, values, starts, longest, is_causal, dropout):  # as in `bart.torch_internals`
        counts = [each.diff().tolist() for each in starts]
        assert all(max(count) <= most for count, most in zip(counts, longest, strict=True))
        parts = (
            rows.transpose(0, 1)[None].split(count, dim=2)
            for rows, count in zip((query, keys, values), (*counts, counts[1]), strict=True)
        )
        articles = [F.scaled_dot_product_attention(*part, is_causal=is_causal) for part in zip(*parts, strict=True)]
        return torch.cat(articles, dim=2)[0].transpose(0, 1)

    monkeypatch.setattr(cuda, "attend_to_spans", attend)
    monkeypatch.setattr(cuda, "has_flash", lambda *_: True)
    made = (CpuBackend if request.param == "cpu" else CudaBackend)(leaves_out_padding=True)
    if request.param == "copies":
        made.copies, made.joins_layers = HalfCopies(torch.float64), True
    return made


def inputs() -> dict[str, Tensor]:
    ids = torch.randint(5, 50, MASK.shape, generator=torch.Generator().manual_seed(1))
    ids[:, -1] = 2  # </s>, whose state is classified; behind a source it is padding
    ids[0, 8] = ids[2, 10] = 2
    return {"input_ids": ids.where(MASK.bool(), 1), "attention_mask": MASK}


def bert() -> PretrainedModel:
    torch.manual_seed(0)
    names = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    dropouts = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return BertForMaskedLM(BertConfig(vocab_size=50, max_position_embeddings=12, **names, **dropouts))


def of_labels(model: PretrainedModel) -> Tensor:
    return model(**inputs(), labels=LABELS, summed_loss=True, label_smoothing=0.1).loss


def of_hooked(model: PretrainedModel) -> Tensor:
    """Somebody changes the gradient of what the encoder gives."""
    states = model.model.encoder(*inputs().values())
    states.register_hook(lambda gradient: 3 * gradient)
    return model(**inputs(), encoder_outputs=states, labels=LABELS, summed_loss=True).loss


def of_tokens(model: PretrainedModel) -> Tensor:
    labels = torch.arange(4).repeat(4, 3).where(MASK.bool(), -100)
    return model(**inputs(), labels=labels).loss


def of_texts(model: PretrainedModel) -> Tensor:
    return model(**inputs(), labels=torch.tensor([0, 2, 1, 0])).loss


def of_answers(model: PretrainedModel) -> Tensor:
    output = model(**inputs())
    return sum(logits.masked_fill(MASK == 0, 0).square().sum() for logits in (output.start_logits, output.end_logits))


CASES = {
    "post-LN": (bart, of_labels),
    "a hook": (bart, of_hooked),
    "Pre-LN": (lambda: bart(pre_ln=True), of_labels),
    "an encoder before the encoder": (lambda: bart(source_encoder_layers=1, source_vocab_size=50), of_labels),
    "classes": (lambda: bart(BartForSequenceClassification), of_texts),
    "tags": (lambda: bart(BartForTokenClassification, num_labels=4), of_tokens),
    "tags by the encoder": (lambda: bart(BartForTokenClassification, num_labels=4, token_states="encoder"), of_tokens),
    "answers": (lambda: bart(BartForQuestionAnswering), of_answers),
    "BERT": (bert, of_tokens),
}


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_losses_and_gradients_are_those_with_padding(case: str, checkpointing: bool, backend: Backend) -> None:
    """In double precision, which leaves of them nothing but rounding."""
    make, loss_of = CASES[case]
    padded = make().double().train()
    unpadded = copy.deepcopy(padded)
    unpadded.compute_with(backend)
    unpadded.gradient_checkpointing_enable(enabled=checkpointing)
    actual = []
    for model in (padded, unpadded):
        loss = loss_of(model)
        loss.backward()
        actual.append(
            {"loss": loss} | {name: one.grad for name, one in model.named_parameters() if one.grad is not None}
        )
    assert actual[0].keys() == actual[1].keys() and len(actual[0]) > 20
    torch.testing.assert_close(*actual, rtol=0, atol=1e-12)


def test_no_target_at_all_has_no_gradient(backend: Backend) -> None:
    model = bart().double().train()
    model.compute_with(backend)
    labels = known(torch.full((4, 5), IGNORE_INDEX), IGNORE_INDEX)
    model(**inputs(), labels=labels, summed_loss=True).loss.backward()
    gradients = [one.grad for one in model.parameters() if one.grad is not None]
    assert len(gradients) > 20 and not any(gradient.any() for gradient in gradients)


@pytest.mark.parametrize("backend", ["copies"], indirect=True)
def test_layers_that_are_left_out_get_no_gradient(backend: Backend) -> None:
    model = bart(decoder_layerdrop=0.999999).double().train()
    model.compute_with(backend)
    of_labels(model).backward()
    assert all(weight.grad is None for weight in model.model.decoder.layers.parameters())
    assert model.model.decoder.layernorm_embedding.weight.grad is not None


def rows_of_layers(
    model: PretrainedModel, run: Callable[[PretrainedModel], object] = of_labels
) -> list[tuple[int, ...]]:
    """The shapes of what the stacks' second layers read."""
    seen: list[tuple[int, ...]] = []
    hooks = [
        stack.layers[1].register_forward_pre_hook(lambda _, args: seen.append(tuple(args[0].shape)))
        for stack in model.stacks
    ]
    run(model)
    for hook in hooks:
        hook.remove()
    return seen


def test_layers_read_tokens_alone_in_training() -> None:
    """And a spare row."""
    model = bart().train()
    with_padding = [(4, 12, 16), (4, 5, 16)]
    assert rows_of_layers(model) == with_padding
    model.compute_with(CpuBackend(leaves_out_padding=True))
    assert rows_of_layers(model) == [(1, int(MASK.sum()) + 1, 16), (1, 3 + 4 + 0 + 5 + 1, 16)]
    assert rows_of_layers(model.eval()) == with_padding
    model.train().compile_layers()
    for stack in model.stacks:
        stack._run = lambda layer, *args: layer(*args)  # as compiled layers are called
    assert rows_of_layers(model) == with_padding


def test_batches_that_keep_their_padding() -> None:
    """Those without any, targets whose source has no token, and targets under a mask."""
    model = bart().train()
    model.compute_with(CpuBackend(leaves_out_padding=True))
    ids = inputs()["input_ids"]
    for mask in (None, torch.ones_like(MASK)):
        shapes = rows_of_layers(model, lambda model, mask=mask: model(ids, mask, labels=LABELS.clamp(min=3)))
        assert shapes == [(4, 12, 16), (4, 5, 16)]
    empty = MASK * torch.tensor([[1], [0], [1], [1]])
    output = model(ids, empty, labels=LABELS, summed_loss=True)
    assert output.loss.isfinite()
    shapes = rows_of_layers(model, lambda model: model(ids, empty, labels=LABELS, summed_loss=True))
    assert shapes == [(1, int(empty.sum()) + 1, 16), (4, 5, 16)]
    hides = {"decoder_input_ids": LABELS.clamp(min=3), "decoder_attention_mask": torch.ones_like(LABELS)}
    assert rows_of_layers(model, lambda model: model(**inputs(), **hides)) == [(1, 38, 16), (4, 5, 16)]


def test_spare_rows_of_targets_have_a_source_to_read() -> None:
    """Without one they would be NaN, which no gradient of 0 takes back."""
    model = bart().train()
    model.compute_with(CpuBackend(leaves_out_padding=True))
    source, target = (
        torch.arange(12) < torch.tensor(lengths)[:, None] for lengths in ([8, 12, 12, 12], [12, 12, 8, 1])
    )
    assert (source.sum(), target.sum()) == (44, 33)  # the one recurs, the other does not
    with torch.autocast("cpu", torch.bfloat16):
        labels = torch.full((4, 12), 9).where(target, -100)
        loss = model(inputs()["input_ids"], source.long(), labels=labels, summed_loss=True).loss
    loss.backward()
    assert all(one.grad.isfinite().all() for one in model.parameters() if one.grad is not None)


@pytest.mark.parametrize(("dtype", "dropout"), [(torch.float32, 0.0), (torch.bfloat16, 0.0), (torch.float64, 0.2)])
def test_attention_of_spans_is_that_of_each_article(dtype: torch.dtype, dropout: float) -> None:
    """Compiled kernels compute it where there are any for the type; else it is computed article by article."""
    states = [torch.randn(1, 2, 9, 8, dtype=dtype, requires_grad=True) for _ in range(3)]
    starts = torch.tensor([0, 4, 4, 9])
    torch.manual_seed(3)
    context = CpuBackend().attend(*states, Spans(starts, starts), True, dropout)
    torch.manual_seed(3)

    def alone(*part: Tensor) -> Tensor:
        kernels = None if dtype == torch.float64 else load()
        if kernels is None:
            return CpuBackend().attend(*part, None, True, dropout)
        return CompiledAttention.apply(*part, None, True, NO_DRAWS, kernels)

    parts = ((state[:, :, part] for state in states) for part in (slice(0, 4), slice(4, 9)))
    expected = torch.cat([alone(*part) for part in parts], dim=2)
    assert context.equal(expected)
    gradient = torch.randn(context.shape).to(dtype)
    ours, theirs = (torch.autograd.grad(one, states, gradient) for one in (context, expected))
    assert all(map(torch.equal, ours, theirs))


@pytest.mark.gpu
@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_attention_of_spans_on_a_gpu(half: torch.dtype) -> None:
    """Its loss and gradients are as near to those in double precision as those with padding."""
    exact = bart(d_model=64).double().train()
    errors = []
    for backend in (None, Backend(), CudaBackend(leaves_out_padding=True)):
        model = copy.deepcopy(exact)
        given = inputs()
        mask, labels = given.pop("attention_mask"), LABELS
        if backend is not None:
            model.float().cuda().compute_with(backend)
            mask, labels = (carrying(one.cuda(), one.known_rows.moved(Tensor.cuda)) for one in (mask, labels))
            given = {name: one.cuda() for name, one in given.items()}
        with torch.autocast("cuda", half, enabled=backend is not None):
            loss = model(**given, attention_mask=mask, labels=labels, summed_loss=True, label_smoothing=0.1).loss
        loss.backward()
        flat = torch.cat([loss.flatten(), *(one.grad.flatten() for one in model.parameters() if one.grad is not None)])
        errors.append(flat.detach().cpu().double())
    expected, padded, unpadded = errors
    assert (unpadded - expected).norm() < 3 * (padded - expected).norm()


@pytest.mark.gpu
@pytest.mark.parametrize("is_causal", [False, True])
def test_dropout_of_attention_of_spans_on_a_gpu(is_causal: bool) -> None:
    """It drops so many weights, and the same ones in both passes: what values give is linear in them."""
    torch.manual_seed(0)
    starts = torch.tensor([0, 2048, 2100, 3000], dtype=torch.int32, device="cuda")
    query, keys = (torch.zeros(1, 2, 3000, 32, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    spans, rate = cuda.CudaSpans((starts, starts), (2048, 2048)), 0.1
    backend = CudaBackend()
    context = backend.attend(query, keys, torch.ones_like(keys), spans, is_causal, dropout=rate).float()
    kept = context[..., 0, :2048, 0] * (1 - rate)  # the share of the keys of each query that were kept
    assert abs(float(kept.mean()) - (1 - rate)) < 0.01 and float(kept.std()) > 0.004
    values = torch.randn(1, 2, 3000, 32, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    context = backend.attend(query, keys, values, spans, is_causal, dropout=rate)
    gradient = torch.randn_like(context)
    (of_values,) = torch.autograd.grad(context, values, gradient)
    # For each column of each head; masks that differ would move these by nearly half of their deviation.
    products = [(one.float() * other.float()).sum(dim=2) for one, other in ((context, gradient), (values, of_values))]
    torch.testing.assert_close(*products, rtol=0, atol=0.05 * float(context.float().norm(dim=2).mean()))


@pytest.mark.gpu
def test_copies_for_inference_give_the_states_of_padding_where_they_are_read() -> None:
    config = BertConfig(vocab_size=50, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64)
    copied = BertModel(config).cuda().for_inference("bf16")
    given = {name: tensor.cuda() for name, tensor in inputs().items()}
    with torch.no_grad():
        output = copied(**given)
    assert output.last_hidden_state.norm(dim=2).min() > 1
