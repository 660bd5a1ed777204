"""The beam-search machine on probabilities written by hand: no model, every expected number worked out on paper."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from bart.backend import TORCH, Backend
from bart.cpu.backend import CpuBackend
from bart.generation import GenerationConfig
from bart.generation.rules import draw
from bart.generation.search import BeamSearch

PAD, EOS, START, A, B = range(5)
VOCAB = 5


def machine(articles: int = 1, max_length: int = 5, **options) -> BeamSearch:
    ids = {"decoder_start_token_id": START, "pad_token_id": PAD, "eos_token_id": EOS}
    config = GenerationConfig(**{"num_beams": 2, **ids, **options})
    return BeamSearch(config, max_length, articles, torch.device("cpu"))


def table(*rows: dict[int, float]) -> Tensor:
    """Log-probabilities (R, V) of rows like {A: 0.6, EOS: 0.4}; what is not named cannot be."""
    scores = torch.full((len(rows), VOCAB), -math.inf)
    for row, probabilities in enumerate(rows):
        for token, probability in probabilities.items():
            scores[row, token] = math.log(probability)
    return scores


STEP_1 = {A: 0.6, B: 0.3, EOS: 0.1}
AFTER_A = {EOS: 0.5, A: 0.3, B: 0.2}
AFTER_B = {EOS: 0.9, A: 0.1}


def after_two_steps(**options) -> BeamSearch:
    search = machine(**options)
    search.step(table(STEP_1, STEP_1))
    search.step(table(AFTER_A, AFTER_B))
    return search


def prefixes(search: BeamSearch) -> list[list[int]]:
    return search.open.tokens[0, :, : search.lengths[0]].tolist()


def logs(*probabilities: float) -> Tensor:
    return torch.tensor([probabilities]).log()


def test_first_step_extends_the_first_beam_only_and_leaves_eos_below_the_top_unfinished():
    search = machine()
    parents = search.step(table(STEP_1, STEP_1))
    assert prefixes(search) == [[START, A], [START, B]]
    assert parents.tolist() == [[0, 0]]
    torch.testing.assert_close(search.open.scores, logs(0.6, 0.3))
    # EOS (0.1) ranked third of two beams: it neither finishes nor takes a place.
    assert not search.finished.finished.any()


def test_eos_among_the_top_finishes_and_the_next_best_stay_open():
    search = after_two_steps(length_penalty=0.0)
    # 0.6·0.5 and 0.3·0.9 end; 0.6·0.3 and 0.6·0.2 are what is left.
    assert search.finished.tokens[0].tolist() == [[START, A, EOS, PAD, PAD], [START, B, EOS, PAD, PAD]]
    torch.testing.assert_close(search.finished.scores, logs(0.30, 0.27))
    assert search.finished.parents[0].tolist() == [[0, 0, -1, -1], [0, 1, -1, -1]]
    assert prefixes(search) == [[START, A, A], [START, A, B]]
    torch.testing.assert_close(search.open.scores, logs(0.18, 0.12))


@pytest.mark.parametrize(
    ("length_penalty", "early_stopping", "active"),
    [
        (0.0, True, False),  # two finished: done at once
        (2.0, True, False),
        (0.0, False, False),  # 0.18 cannot beat 0.27
        (2.0, False, False),  # log 0.18 / 2² is below log 0.27 / 2²
        (0.0, "never", False),
        (2.0, "never", True),  # log 0.18 / 4² = -0.107 is above log 0.27 / 2² = -0.327
        (-1.0, "never", False),  # shorter is better, so the present length is taken: as with False
    ],
)
def test_when_an_article_is_done(length_penalty: float, early_stopping: bool | str, active: bool):
    search = after_two_steps(length_penalty=length_penalty, early_stopping=early_stopping)
    assert search.active.tolist() == [[active]]


def test_heuristic_keeps_an_article_open_while_the_best_beam_beats_the_worst_finished():
    search = machine(early_stopping=False, length_penalty=1.0)
    search.step(table({A: 0.5, EOS: 0.3, B: 0.2}, STEP_1))  # EOS is second: finished with log 0.3 / 1
    assert search.active.item()  # one of two finished
    search.step(table({A: 0.9, EOS: 0.1}, {EOS: 1.0}))  # beams A, B: 0.45 open; 0.2 finishes with log 0.2 / 2
    torch.testing.assert_close(search.finished.scores, torch.tensor([[math.log(0.2) / 2, math.log(0.3)]]))
    assert search.active.item()  # log 0.45 / 2 = -0.40 is above log 0.3 = -1.20
    # log 0.0225 / 3 = -1.26 is above log 0.2 / 2 = -0.80? No, and not above log 0.3 = -1.20 either.
    search.step(table({A: 0.05, B: 0.95 * 0.05}, {A: 0.05}))
    assert not search.active.item()


def test_length_penalty_decides_between_short_and_long():
    def best(length_penalty: float) -> list[int]:
        search = after_two_steps(length_penalty=length_penalty, early_stopping="never")
        search.step(table({EOS: 0.9, A: 0.1}, {A: 0.5, B: 0.5}))  # A A EOS: 0.18·0.9 = 0.162
        return search.results().tokens[0, 0].tolist()

    assert best(0.0) == [START, A, EOS, PAD, PAD]
    assert best(2.0) == [START, A, A, EOS, PAD]  # log 0.162 / 3² = -0.202 against log 0.30 / 2² = -0.301


def test_done_articles_take_nothing_more():
    search = after_two_steps(length_penalty=0.0, early_stopping=True)
    before = search.finished
    search.step(table({EOS: 1.0}, {EOS: 1.0}))
    assert torch.equal(search.finished.tokens, before.tokens)
    assert torch.equal(search.finished.scores, before.scores)


def test_better_hypotheses_push_out_worse_ones():
    search = machine(length_penalty=0.0, early_stopping="never")
    search.step(table({EOS: 0.5, A: 0.4, B: 0.1}, STEP_1))
    search.step(table({EOS: 0.9, A: 0.1}, {EOS: 0.9, A: 0.1}))  # A EOS 0.36 enters, B EOS 0.09 too
    torch.testing.assert_close(search.finished.scores, logs(0.5, 0.36))


def test_max_length_finishes_whatever_is_on_top():
    search = machine(max_length=3, length_penalty=1.0)
    search.step(table(STEP_1, STEP_1))
    search.step(table({A: 0.7, EOS: 0.3}, {B: 0.8, A: 0.2}))
    # 0.42 and 0.24 are cut; EOS with 0.18 is third.
    assert search.finished.tokens[0].tolist() == [[START, A, A], [START, B, B]]
    torch.testing.assert_close(search.finished.scores, logs(0.42, 0.24) / 2)
    assert search.finished.finished.all()


def test_ties_keep_every_beam_different():
    search = machine()
    search.step(table({A: 0.4, B: 0.4, EOS: 0.2}, STEP_1))
    assert sorted(prefixes(search)) == [[START, A], [START, B]]
    search.step(table({A: 0.5, B: 0.5}, {A: 0.5, B: 0.5}))  # four equal candidates
    assert len({tuple(prefix) for prefix in prefixes(search)}) == 2


def test_articles_do_not_see_each_other():
    alone = [machine(), machine()]
    both = machine(articles=2)
    other_step, other_a, other_b = {B: 0.9, EOS: 0.1}, {A: 0.6, EOS: 0.4}, {A: 0.3, B: 0.7}
    steps = [
        (table(STEP_1, STEP_1), table(other_step, other_step)),
        (table(AFTER_A, AFTER_B), table(other_a, other_b)),
    ]
    for first, second in steps:
        parents = both.step(torch.cat((first, second)))
        alone[0].step(first)
        alone[1].step(second)
    for article, search in enumerate(alone):
        assert torch.equal(both.open.tokens[article], search.open.tokens[0])
        assert torch.equal(both.finished.tokens[article], search.finished.tokens[0])
        assert torch.equal(both.finished.scores[article], search.finished.scores[0])
    assert set(parents.flatten().tolist()) <= {0, 1}


def test_an_article_that_joins_later_and_one_that_stays_get_what_they_get_alone():
    early, late = machine(max_length=4), machine(max_length=4)
    both = machine(max_length=4, articles=2)
    both.step(table(STEP_1, STEP_1, STEP_1, STEP_1))
    early.step(table(STEP_1, STEP_1))
    both.state = [torch.cat([old[1:], new]) for old, new in zip(both.state, late.state, strict=True)]
    both.step(table(AFTER_A, AFTER_B, STEP_1, STEP_1))
    early.step(table(AFTER_A, AFTER_B))
    late.step(table(STEP_1, STEP_1))
    assert both.lengths.tolist() == [3, 2]
    both.step(table(STEP_1, AFTER_A, AFTER_A, AFTER_B))  # the last of the first article, which all finish in
    early.step(table(STEP_1, AFTER_A))
    late.step(table(AFTER_A, AFTER_B))
    for article, search in enumerate((early, late)):
        assert torch.equal(both.finished.tokens[article], search.finished.tokens[0])
        assert torch.equal(both.finished.scores[article], search.finished.scores[0])
        assert torch.equal(both.open.tokens[article, :, :3], search.open.tokens[0, :, :3])
        assert torch.equal(both.active[article], search.active[0])


def test_no_eos_runs_to_max_length():
    search = machine(max_length=4, eos_token_id=None)
    for _ in range(3):
        search.step(table({A: 0.6, B: 0.4}, {A: 0.6, B: 0.4}))
    torch.testing.assert_close(search.finished.scores, logs(0.6**3, 0.6**2 * 0.4) / 3)


@pytest.mark.parametrize("backend", [TORCH, CpuBackend()], ids=["torch", "CPU"])
@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("columns", [100, 128 * 40, 128 * 40 + 77])
def test_the_greatest_sums_of_many(beams: int, columns: int, backend: Backend):
    generator = torch.Generator().manual_seed(0)
    for count in (1, 8, 12):
        scores = torch.randn(3, beams, columns, generator=generator)
        bases = torch.randn(3, beams, generator=generator)
        scores[0], bases[0] = scores[0].round(), bases[0].round()  # ties
        scores[1, :, 5:] = -torch.inf
        scores[2, -1, -1] = 9.0
        actual, places = backend.top_sums(scores, bases, count)
        sums = (scores + bases[:, :, None]).flatten(1)
        assert torch.equal(actual, sums.topk(count).values)
        assert torch.equal(sums.gather(1, places), actual)
        assert all(len(set(row)) == count for row in places.tolist())
    scores[2, 0, 7] = torch.nan  # is the greatest to torch
    assert backend.top_sums(scores, bases, 1)[1].tolist()[2] == [7]


def test_draw_avoids_banned_columns_and_survives_rows_without_any():
    scores = table({A: 0.5, B: 0.5}, {})
    drawn = torch.cat([draw(scores, 1) for _ in range(50)], dim=1)
    assert set(drawn[0].tolist()) == {A, B}
    assert all(0 <= token < VOCAB for token in drawn[1].tolist())
