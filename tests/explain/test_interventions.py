"""Interventions against their definitions, on small untrained models."""

import math
from functools import partial

import numpy as np
import pytest
import torch

from pe_lab.core.rng import generator
from pe_lab.explain.answers import find_questions, predict
from pe_lab.explain.diagnose import measure_attention
from pe_lab.explain.hook import Intervention, apply_intervention
from pe_lab.explain.interventions import (
    clamp_distances,
    clamp_positions,
    clamp_terms,
    compute_term,
    drop_keys,
    force_attention,
    hide_tokens,
    lift_penalty,
    mask_far_keys,
    mask_strongest_others,
    reset_at_answers,
    reset_at_length,
    scale_by_log_n,
    scale_logits,
    switch_attention_off,
    weigh_as_usual,
)
from pe_lab.models.attention import Attention
from tests.trainers import planned

TRAINED = 7
LONG = "sparse_x4"


@pytest.fixture
def made():
    """A model, and answers at four times its trained length."""

    def make(pe, n=6, split=LONG, words=()):
        plan = planned("task=flipflop", "task.length=8", f"pe={pe}", "model.d_model=16",
                       "model.n_heads=2", "model.n_layers=2", "train.fast=false",
                       *words)  # fmt: skip
        task = plan.task.split(split)
        batch = task.sample(generator(0, "test"), n)
        positions = np.arange(batch.tokens.shape[1])[None]
        model = plan.model().eval()
        # Parts that start at zero would leave nothing to see.
        with torch.no_grad():
            for p in model.parameters():
                p.add_(0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1)))
        return model, find_questions(task, split, batch, positions)

    return make


def seen_by(model, questions, make=lambda part: Intervention()):
    """The logits and weights of the answering queries: layer -> (n, H, S)."""
    found = {}

    def reading(part):
        def read(logits, weights, seen):
            rows = [x.expand(len(part.batch), -1, -1, -1)[part.row, :, part.place]
                    for x in (logits, weights)]  # fmt: skip
            found[seen.layer] = [a.clone() for a in rows]

        return read

    predict(model, questions, make, reading)
    return found


def test_no_change_leaves_the_pass_and_the_model_as_they_were(made):
    model, questions = made("rope")
    tokens = torch.from_numpy(questions.batch.tokens)
    positions = torch.from_numpy(questions.positions)
    with torch.no_grad():
        before = model(tokens, positions)
        with apply_intervention(model, Intervention()):
            assert torch.equal(model(tokens, positions), before)
        with apply_intervention(model, scale_logits(questions, 3)):
            assert not torch.allclose(model(tokens, positions), before)
        assert torch.equal(model(tokens, positions), before)


def test_what_is_asked_has_its_sources_and_another_answer(made):
    _, questions = made("none", 30, "dense_x4")
    tokens, word = questions.batch.tokens, questions.task.vocab
    for n in range(len(questions)):
        row, place = questions.row[n], questions.place[n]
        bits = {word[t] for t in tokens[row][questions.held[n]]}
        assert bits == {word[questions.target[n]]}
        assert not questions.held[n, place:].any()
        if questions.wrong_target[n] >= 0:
            others = {word[t] for t in tokens[row][questions.wrong[n]]}
            assert others == {word[questions.wrong_target[n]]} != bits
            assert not (questions.wrong[n] & questions.held[n]).any()
            assert not questions.wrong[n, place:].any()
    assert (questions.wrong_target >= 0).any()


@pytest.mark.parametrize("layers", [None, [1]])
def test_far_keys_are_hidden_but_for_the_answer(made, layers):
    model, questions = made("alibi")
    found = seen_by(model, questions, partial(mask_far_keys, trained=TRAINED, layers=layers))
    places = np.arange(questions.held.shape[1])
    hidden = questions.place[:, None] - places >= TRAINED
    hidden &= ~questions.held
    for layer in (0, 1):
        weights = found[layer][1].numpy()
        assert np.allclose(weights.sum(-1), 1, atol=1e-5)
        assert ((weights == 0).all(1)[hidden]).all() == (layers is None or layer in layers)
    seen = questions.held | ((questions.place[:, None] - places < TRAINED)
                             & (places <= questions.place[:, None]))  # fmt: skip
    assert (found[1][1].numpy() > 0).all(1)[seen].all()


@pytest.mark.parametrize("window", [64, 24])
def test_a_query_sees_as_many_keys_as_in_training_and_those_of_its_answer(made, window):
    model, questions = made("alibi", words=[f"model.window={window}"])
    draws, behind = [], questions.place[:, None] - np.arange(questions.held.shape[1])
    for draw in (0, 1):
        make = partial(drop_keys, trained=TRAINED, draw=draw)
        seen = (seen_by(model, questions, make)[1][1] > 0).all(1).numpy()
        kept = (questions.held | np.roll(questions.held, -1, axis=1)) & (behind < window)
        many = (questions.place + 1 > TRAINED) & (kept.sum(1) + 4 <= TRAINED)
        assert many.any()
        assert (seen[many].sum(1) == TRAINED).all()
        assert seen[questions.held & (behind < window)].all()
        assert all(seen[n, p - 3 : p + 1].all() for n, p in enumerate(questions.place) if p > 2)
        draws.append(seen)
    assert (draws[0] != draws[1]).any()


def test_the_answer_is_hidden_from_its_query_alone(made):
    model, questions = made("alibi")
    weights = seen_by(model, questions, lambda part: hide_tokens(part, part.held))[0][1].numpy()
    assert (weights.transpose(0, 2, 1)[questions.held] == 0).all()
    assert np.allclose(weights.sum(-1), 1, atol=1e-5)


def test_forced_heads_read_these_tokens_in_their_own_shares(made):
    model, questions = made("rope")
    before = seen_by(model, questions)
    after = seen_by(model, questions, partial(force_attention, heads=[(0, 1)]))
    plain, changed = before[0][1], after[0][1]
    held = torch.from_numpy(questions.held)
    assert torch.equal(changed[:, 0], plain[:, 0])
    expected = plain[:, 1] * held
    expected = expected / expected.sum(-1, keepdim=True)
    assert torch.allclose(changed[:, 1], expected, atol=1e-6)


@pytest.mark.parametrize(
    "pe",
    ["rope", "alibi", "t5", "kerple", "relative", "shaw", "xpos", "transformer_xl", "sandwich"],
)
def test_distances_are_clamped_as_if_each_key_were_at_most_so_far(made, pe):
    """Of the first layer, whose input does not change: the logit at distance d is that of a
    sequence in which the key has been moved to min(d, trained - 1) tokens before its query."""
    model, questions = made(pe, n=2)
    found = seen_by(model, questions, partial(clamp_distances, trained=TRAINED))[0][0]
    attention = model.blocks[0].attention
    captured = []

    def keep(logits, weights, seen):
        captured.append(seen.inputs)

    with torch.no_grad(), apply_intervention(model, Intervention(), keep):
        model(torch.from_numpy(questions.batch.tokens), torch.from_numpy(questions.positions))
    x, encoding = captured[0], attention.encoding
    for n in range(0, len(questions), 3):
        row, i = questions.row[n], questions.place[n]
        for j in range(i + 1):
            near = min(i - j, TRAINED - 1)
            # Two tokens: the key at 0, the query at `near`.
            q = x.q_BHTD[row, :, [j, i]][None]
            k = x.k_BHSD[row, :, [j, i]][None]
            at = torch.tensor([[0, near]])
            two = type(x)(x.x_BSE[row, [j, i]][None], q, k, k, at, at)
            rotated = encoding.rotate(q, k, two)
            logits, _ = Attention.weights(attention, *rotated, two)
            assert torch.allclose(found[n, :, j], logits[0, :, 1, 0], atol=2e-5), (n, j)


def test_terms_of_the_context_stay_in_their_range_in_domain(made):
    model, questions = made("fox")
    least = {layer: torch.full((2, 1, 1), -1.5) for layer in (0, 1)}
    most = {layer: torch.full((2, 1, 1), -0.5) for layer in (0, 1)}
    plain = seen_by(model, questions)[0][0]
    found = seen_by(model, questions, partial(clamp_terms, least=least, largest=most))[0][0]
    bare = lambda part: Intervention(lambda logits, seen: logits - compute_term(seen))  # noqa: E731
    content = seen_by(model, questions, bare)[0][0]
    term = (plain - content).clamp(-1.5, -0.5)
    visible = torch.arange(found.shape[-1]) <= torch.from_numpy(questions.place)[:, None]
    assert (found - content - term).masked_fill(~visible[:, None], 0).abs().max() < 1e-5


def test_the_penalty_of_the_answer_alone_is_lifted_to_its_usual_value(made):
    model, questions = made("alibi")
    usual = {layer: torch.tensor([[[-0.2]], [[-0.1]]]) for layer in (0, 1)}
    plain = seen_by(model, questions)[0][0]
    found = seen_by(model, questions, lambda part: lift_penalty(part, usual))[0][0]
    slopes = torch.tensor([2**-4.0, 2**-8.0])
    away = torch.from_numpy(questions.place[:, None] - np.arange(found.shape[-1]))[:, None]
    bias = -slopes[:, None] * away
    lifted = (usual[0][:, 0] - bias).clamp(min=0)
    expected = plain + torch.where(torch.from_numpy(questions.held)[:, None], lifted, 0.0)
    assert torch.allclose(found, expected, atol=1e-5)
    assert (found > plain + 0.1).any()


@pytest.mark.parametrize("window", [64, 24])
def test_log_n_scales_only_beyond_the_trained_number_of_keys(made, window):
    model, questions = made("none", words=[f"model.window={window}"])
    plain = seen_by(model, questions)[0][0]
    found = seen_by(model, questions, partial(scale_by_log_n, trained=TRAINED))[0][0]
    for n, place in enumerate(questions.place):
        factor = max(1.0, math.log(min(place + 1, window)) / math.log(TRAINED))
        assert torch.allclose(found[n], factor * plain[n], atol=1e-5)


def test_positions_are_moved_so_that_the_query_is_the_last_trained(made):
    _, questions = made("none")
    moved = clamp_positions(questions, TRAINED)
    assert sorted(moved.row) == list(range(len(questions.batch)))
    for row, place in zip(moved.row, moved.place, strict=True):
        at = moved.positions[row]
        assert at[place] == min(place, TRAINED - 1)
        if place >= TRAINED:
            first = place - TRAINED + 1
            assert list(at[first - 1 : first + 2]) == [0, 0, 1]
            assert at[: place + 1].max() < TRAINED


def test_log_odds_are_the_count_less_the_gap_and_those_of_softmax(made):
    model, questions = made("rope")
    found = measure_attention(model, questions)
    for layer in (0, 1):
        of = {name: values[layer] for name, values in found.values.items()}
        assert torch.allclose(of["log_odds"], of["count"] - of["gap"])
        odds = (of["mass"] / (1 - of["mass"])).log()
        assert torch.allclose(of["log_odds"], odds, atol=1e-4)
        others = questions.place + 1 - questions.held.sum(1)
        assert np.allclose(of["count"].numpy(), -np.log(others)[:, None])
        assert ((of["entropy"] >= 0) & (of["entropy"] <= np.log(questions.place + 1).max())).all()


def test_placebos_have_the_dose_of_their_interventions(made):
    """The strongest others are hidden in each head; keys of another answer are kept, or lifted as
    much as those of the right one."""
    model, questions = made("alibi", 30, "dense_x4")
    held, wrong = (torch.from_numpy(of)[:, None] for of in (questions.held, questions.wrong))
    plain = seen_by(model, questions)[0][0]
    visible = torch.arange(plain.shape[-1]) <= torch.from_numpy(questions.place)[:, None, None]
    hidden = seen_by(model, questions, mask_strongest_others)[0][0] < -1e8
    others = plain.masked_fill(held | ~visible, -torch.inf)
    assert (hidden.sum(-1) == 4).all()
    least = others.masked_fill(~hidden, torch.inf).amin(-1)
    assert (least >= others.masked_fill(hidden, -torch.inf).amax(-1)).all()

    kept = partial(drop_keys, trained=TRAINED, draw=0, onto="wrong")
    weights = seen_by(model, questions, kept)[1][1]
    assert (weights > 0)[wrong.expand_as(weights)].all()
    assert (weights == 0)[held.expand_as(weights)].any()

    usual = {layer: torch.tensor([[[-0.2]], [[-0.1]]]) for layer in (0, 1)}
    lifted, placebo = (
        seen_by(model, questions, partial(lift_penalty, usual=usual, onto=onto))[0][0] - plain
        for onto in ("held", "wrong")
    )
    dose = (lifted * held).sum(-1, keepdim=True) / held.sum(-1, keepdim=True)
    assert dose.max() > 0.1
    assert torch.allclose(placebo, dose * wrong, atol=1e-5)


def test_the_weighted_oracle_gives_the_weights_of_the_same_kind_of_token_in_domain(made):
    """With the sequences' own weights nothing changes; others share what is left as they did."""
    model, questions = made("rope", 1)
    questions = questions.only(np.arange(len(questions)) == 0)
    own = measure_attention(model, questions).by_kind
    plain = seen_by(model, questions)
    same = seen_by(model, questions, partial(weigh_as_usual, usual=own, heads=[(0, 1)]))
    assert torch.allclose(same[0][1], plain[0][1], atol=1e-6)
    half = {layer: means / 2 for layer, means in own.items()}
    found = seen_by(model, questions, partial(weigh_as_usual, usual=half, heads=[(0, 1)]))[0][1]
    held = torch.from_numpy(questions.held)[:, None]
    mass = (plain[0][1] * held).sum(-1, keepdim=True)
    expected = torch.where(held, plain[0][1] / 2, plain[0][1] * (1 - mass / 2) / (1 - mass))
    assert torch.allclose(found[:, 1], expected[:, 1], atol=1e-6)
    assert torch.equal(found[:, 0], plain[0][1][:, 0])


@pytest.fixture
def hybrid(made):
    """An LSTM below attention, either of them cut if it is named."""

    def make(cut=None):
        model, questions = made("rope", words=["model.pattern=[lstm,attention]"])
        with torch.no_grad():
            for layer, name in zip(model.blocks, ("lstm", "attention"), strict=True):
                if name == cut:
                    layer.attention.out.weight.zero_()
        return model, questions

    return make


def answers_from(model, questions, starts):
    """The logits of each answer by the tokens from its start on, as a sequence of its own."""
    found = []
    with torch.no_grad():
        for row, place, start in zip(questions.row, questions.place, starts, strict=True):
            tokens = torch.from_numpy(questions.batch.tokens[row, start : place + 1])[None]
            hidden = model(tokens, torch.arange(place + 1 - start)[None])
            found.append(model.unembed(hidden[0, -1]))
    return torch.stack(found)


def test_without_attention_the_recurrence_carries_the_answer_alone(hybrid):
    model, questions = hybrid(cut="attention")
    plain = predict(model, questions)
    assert torch.equal(predict(model, questions, switch_attention_off), plain)
    reset = predict(model, questions, reset_at_answers)
    assert torch.allclose(reset, answers_from(model, questions, questions.place), atol=1e-5)
    assert (reset - plain).abs().max() > 0.01
    starts = questions.place // TRAINED * TRAINED
    by_length = predict(model, questions, partial(reset_at_length, trained=TRAINED))
    assert torch.allclose(by_length, answers_from(model, questions, starts), atol=1e-5)


def test_without_recurrence_attention_reads_the_answer_alone(hybrid):
    model, questions = hybrid(cut="lstm")
    plain = predict(model, questions)
    for make in (reset_at_answers, partial(reset_at_length, trained=TRAINED)):
        assert torch.equal(predict(model, questions, make), plain)
    off = predict(model, questions, switch_attention_off)
    assert (off - plain).abs().max() > 0.01
    model.blocks[1].attention.out.weight.data.zero_()
    assert torch.allclose(off, predict(model, questions), atol=1e-6)


def test_a_layer_has_its_number_among_all_and_no_hook_is_left(hybrid):
    model, questions = hybrid()
    assert list(seen_by(model, questions)) == [1]
    assert not any({"weights", "mix"} & vars(module).keys() for module in model.modules())
