"""Batches without padding: their results are those with padding, and layers see the tokens alone."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bart.backend import IGNORE_INDEX, TORCH, Backend
from bart.cpu.backend import CpuBackend
from bart.cuda import backend as cuda
from bart.cuda.backend import CudaBackend
from bart.errors import InputError
from bart.modeling.heads import BartForQuestionAnswering, BartForSequenceClassification, BartForTokenClassification
from bart.modeling.pretrained import PretrainedModel
from bart.rows import Rows, Spans
from bert.configuration.configuration_bert import BertConfig
from bert.modeling.modeling_bert import BertForMaskedLM, BertForPreTraining, BertModel
from tests.tiny_run import tiny_bart

bart = functools.partial(tiny_bart, encoder_layers=2, decoder_layers=2, max_position_embeddings=12, dropout=0.0)


# Padding behind, and none; sources are longer than the spare rows, and targets shorter.
MASK = (torch.arange(12) < torch.tensor([[9], [3], [7], [12]])).long()
# Without any target, and with places between them that have none.
LABELS = torch.tensor([[7, 8, 2, -100, -100], [9, -100, 4, 2, -100], [-100] * 5, [3, 4, 5, 6, 2]])
# Before and between tokens, too, as only callers have it.
SCATTERED = torch.tensor([[1] * 9 + [0] * 3, [0] * 2 + [1] * 10, [1, 0] * 6, [1] * 12])


@pytest.fixture(params=["torch", "cpu", "cuda", "copies"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Backend:
    """Torch's; that of CPUs; and that of GPUs, also with copies of the weights, as they are under autocast.

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
    made = {"torch": Backend, "cpu": CpuBackend}.get(request.param, CudaBackend)()
    if request.param == "copies":
        made.dtype, made.joins_layers = torch.float64, True
    return made


def inputs(mask: Tensor = MASK) -> dict[str, Tensor]:
    ids = torch.randint(5, 50, mask.shape, generator=torch.Generator().manual_seed(1))
    ids[torch.arange(4), (mask * torch.arange(12)).argmax(dim=1)] = 2  # </s>, whose state is classified
    return {"input_ids": ids.where(mask.bool(), 1), "attention_mask": mask}


def rows() -> Rows:
    return Rows.of(*inputs().values(), multiple=4)


def bert(head: type[PretrainedModel] = BertForMaskedLM) -> PretrainedModel:
    torch.manual_seed(0)
    names = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    dropouts = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return head(BertConfig(vocab_size=50, max_position_embeddings=12, **names, **dropouts))


def of_labels(model: PretrainedModel, by_rows: bool) -> Tensor:
    given, labels = inputs(), LABELS
    if by_rows:
        is_read = LABELS.flip(1).cummax(dim=1).values.flip(1) >= 0  # up to the last target
        given, labels = {"input_ids": rows()}, Rows.of(LABELS, is_read, multiple=4, spare=IGNORE_INDEX)
    return model(**given, labels=labels, summed_loss=True, smoothing=0.1).loss


def of_logits(model: PretrainedModel, by_rows: bool) -> Tensor:
    """The mean loss, which has logits."""
    labels = Rows.of(LABELS.clamp(min=3), spare=IGNORE_INDEX) if by_rows else LABELS.clamp(min=3)
    return model(**({"input_ids": rows()} if by_rows else inputs()), labels=labels).loss


def of_tokens(model: PretrainedModel, by_rows: bool) -> Tensor:
    labels = torch.arange(4).repeat(4, 3).where(MASK.bool(), -100)
    if by_rows:
        return model(rows(), labels=rows().pack(labels, IGNORE_INDEX)).loss
    return model(**inputs(), labels=labels).loss


def of_masked(model: PretrainedModel, by_rows: bool) -> Tensor:
    """Places with a label, filled up with others; the last text has none behind it."""
    columns = torch.tensor([[1, 8, 11], [2, 0, 5], [6, 1, 9], [11, 3, 4]])
    labels = torch.full_like(MASK, -100).scatter(1, columns[:, :2], 7).where(MASK.bool(), -100)
    types = (torch.arange(12) > 4) * MASK
    given = {**inputs(), "labels": labels, "masked_positions": columns}
    if by_rows:
        places = rows().places(columns).flatten()[None]
        given = {"input_ids": rows(), "labels": rows().pack(labels, IGNORE_INDEX), "masked_positions": places}
    output = model(**given, token_type_ids=rows().pack(types) if by_rows else types)
    return output.loss + F.cross_entropy(output.seq_relationship_logits, torch.tensor([0, 1, 1, 0]))


def of_texts(model: PretrainedModel, by_rows: bool) -> Tensor:
    return model(**({"input_ids": rows()} if by_rows else inputs()), labels=torch.tensor([0, 2, 1, 0])).loss


def of_answers(model: PretrainedModel, by_rows: bool) -> Tensor:
    output = model(**({"input_ids": rows()} if by_rows else inputs()))
    logits = torch.stack([output.start_logits, output.end_logits]).masked_fill(MASK == 0, -torch.inf)
    return F.cross_entropy(logits.flatten(0, 1), torch.tensor([0, 2, 6, 11, 3, 1, 0, 11]))


CASES = {
    "post-LN": (bart, of_labels),
    "Pre-LN": (lambda: bart(pre_ln=True), of_labels),
    "logits": (bart, of_logits),
    "an encoder before the encoder": (lambda: bart(source_encoder_layers=1, source_vocab_size=50), of_labels),
    "classes": (lambda: bart(BartForSequenceClassification), of_texts),
    "tags": (lambda: bart(BartForTokenClassification, num_labels=4), of_tokens),
    "answers": (lambda: bart(BartForQuestionAnswering), of_answers),
    "BERT": (bert, of_tokens),
    "BERT with pairs": (lambda: bert(BertForPreTraining), of_masked),
}


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_losses_and_gradients_are_those_with_padding(case: str, checkpointing: bool, backend: Backend) -> None:
    """In double precision, which leaves of them nothing but rounding."""
    make, loss_of = CASES[case]
    padded = make().double().train()
    of_rows = copy.deepcopy(padded)
    of_rows.compute_with(backend)
    of_rows.gradient_checkpointing_enable(enabled=checkpointing)
    actual = []
    for model in (padded, of_rows):
        loss = loss_of(model, model is of_rows)
        loss.backward()
        actual.append(
            {"loss": loss} | {name: one.grad for name, one in model.named_parameters() if one.grad is not None}
        )
    assert actual[0].keys() == actual[1].keys() and len(actual[0]) > 20
    torch.testing.assert_close(*actual, rtol=0, atol=1e-12)


@pytest.mark.parametrize("mask", [MASK, SCATTERED, None, MASK * torch.tensor([[1], [0], [1], [1]])])
def test_padded_batches_give_the_same(mask: Tensor | None, backend: Backend) -> None:
    """Where tokens alone are computed, where they cannot be, and where a hook changes a gradient."""
    losses = {}
    for chosen in (TORCH, backend):
        model = bart().double().train()
        model.compute_with(chosen)
        states = model.model.encoder(inputs()["input_ids"], mask)
        states.register_hook(lambda gradient: 3 * gradient)
        loss = model(attention_mask=mask, encoder_outputs=states, labels=LABELS, summed_loss=True).loss
        loss.backward()
        losses[chosen] = loss, *(one.grad for one in model.parameters() if one.grad is not None)
    torch.testing.assert_close(losses[TORCH], losses[backend], rtol=0, atol=1e-12)


def test_no_target_at_all_has_no_gradient(backend: Backend) -> None:
    model = bart().double().train()
    model.compute_with(backend)
    labels = Rows.of(torch.full((4, 5), IGNORE_INDEX), spare=IGNORE_INDEX)
    model(rows(), labels=labels, summed_loss=True).loss.backward()
    gradients = [one.grad for one in model.parameters() if one.grad is not None]
    assert len(gradients) > 20 and not any(gradient.any() for gradient in gradients)


@pytest.mark.parametrize("backend", ["copies"], indirect=True)
def test_layers_that_are_left_out_get_no_gradient(backend: Backend) -> None:
    model = bart(decoder_layerdrop=0.999999).double().train()
    model.compute_with(backend)
    of_labels(model, True).backward()
    assert all(weight.grad is None for weight in model.model.decoder.layers.parameters())
    assert model.model.decoder.layernorm_embedding.weight.grad is not None


def rows_of_layers(model: PretrainedModel, run: Callable[[PretrainedModel], object]) -> list[tuple[int, ...]]:
    """The shapes of what the stacks' second layers read."""
    seen: list[tuple[int, ...]] = []
    hooks = [
        stack.layers[1].register_forward_pre_hook(lambda _, args: seen.append(tuple(args[0][0].shape)))
        for stack in model.stacks
    ]
    run(model)
    for hook in hooks:
        hook.remove()
    return seen


def test_layers_read_tokens_alone(backend: Backend) -> None:
    """And spare rows: of rows, whatever computes; on GPUs of a padded batch, too, whose padding is behind."""
    model, tokens = bart().double().train(), [(1, 32, 16), (1, 13, 16)]  # of 31 and 12
    model.compute_with(backend)
    by_rows, padded = (lambda model, by_rows=by_rows: of_labels(model, by_rows) for by_rows in (True, False))
    assert rows_of_layers(model, by_rows) == tokens
    is_cuda, targets = isinstance(backend, CudaBackend), (4, 5, 16)
    assert rows_of_layers(model, padded) == [tokens[0] if is_cuda else (4, 12, 16), targets]
    scattered = {**inputs(), "attention_mask": SCATTERED, "labels": LABELS}
    assert rows_of_layers(model, lambda model: model(**scattered)) == [(4, 12, 16), targets]
    classifier = bart(BartForSequenceClassification).double().train()
    classifier.compute_with(backend)
    assert (
        rows_of_layers(classifier, lambda model: of_texts(model, False))
        == [(1, 32, 16) if is_cuda else (4, 12, 16)] * 2
    )


def test_rows_and_padded_batches_do_not_mix() -> None:
    for given in ({"input_ids": rows(), "labels": LABELS}, {**inputs(), "labels": rows()}):
        with pytest.raises(InputError, match="is Rows.*allowed: a tensor"):
            bart()(**given)


def test_a_text_that_is_too_long_is_refused() -> None:
    ids = torch.full((2, 13), 5)
    with pytest.raises(InputError, match="a sequence has 13 tokens; allowed: at most"):
        bart()(Rows.of(ids), labels=Rows.of(ids))


def test_spare_rows_of_targets_have_a_source_to_read() -> None:
    """Without one they would be NaN, which no gradient of 0 takes back."""
    model = bart().train()
    model.compute_with(CpuBackend())
    lengths = ([8, 12, 12, 12], [12, 12, 8, 1])  # 44, which recurs, and 33, which does not
    ids = torch.full((4, 12), 9)
    source, target = (
        Rows.of(ids, torch.arange(12) < torch.tensor(part)[:, None], 32, spare)
        for part, spare in zip(lengths, (0, IGNORE_INDEX), strict=True)
    )
    with torch.autocast("cpu", torch.bfloat16):
        model(source, labels=target, summed_loss=True).loss.backward()
    assert all(one.grad.isfinite().all() for one in model.parameters() if one.grad is not None)


def test_attention_among_rows_drops_weights() -> None:
    """By torch; that of the kernels is tested with them."""
    query, keys, values = (torch.ones(1, 2, len(rows().texts), 8, dtype=torch.float64) for _ in range(3))
    context = TORCH.attend(query, keys, values, Spans(rows(), rows()), dropout=0.5)[:, :, : rows().tokens]
    assert context.unique().numel() > 1 and context.mean().sub(1).abs() < 0.5


@pytest.mark.gpu
@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_rows_on_a_gpu(half: torch.dtype) -> None:
    """Their loss and gradients are as near to those in double precision as those with padding."""
    exact = bart(d_model=64).double().train()
    errors = []
    for backend in (None, Backend(), CudaBackend()):
        model = copy.deepcopy(exact)
        source, labels = rows(), Rows.of(LABELS[[0, 3]].clamp(min=3)[[0, 1, 0, 1]], spare=IGNORE_INDEX)
        if backend is not None:
            model.float().cuda().compute_with(backend)
            source, labels = source.moved(Tensor.cuda), labels.moved(Tensor.cuda)
        with torch.autocast("cuda", half, enabled=backend is not None):
            loss = model(source, labels=labels, summed_loss=True, smoothing=0.1).loss
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
    texts = Rows.of(torch.ones(3, 2048), torch.arange(2048) < torch.tensor([[2048], [52], [899]]))
    query, keys = (torch.zeros(1, 2, 3000, 32, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    rows = texts.moved(Tensor.cuda)
    spans, rate = Spans(rows, rows), 0.1
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
