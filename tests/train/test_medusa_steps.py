"""What Medusa heads are trained on, against their definition, token by token."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from yggc.models.medusa import MedusaConfig, MedusaForCausalLM
from yggc.train.batches import Batch, collate
from yggc.train.features import StoredFeatures
from yggc.train.medusa_learner import MedusaLearner, MedusaOptions
from yggc.train.texts import Row
from yggc.train.validate import HeldOut

VOCAB, HIDDEN, HEADS = 50, 24, 3


def row(num_prompt: int, num: int, seed: int) -> Row:
    ids = np.random.default_rng(seed).integers(0, VOCAB, num).astype(np.int32)
    return Row(ids, num_prompt, bytes([seed]))


ROWS = (row(3, 9, 1), row(7, 10, 2), row(1, 8, 3), row(4, 6, 4))


@pytest.fixture(scope="module")
def features() -> dict[bytes, torch.Tensor]:
    draw = torch.Generator().manual_seed(1)
    return {
        one.digest: torch.randn(len(one.ids), HIDDEN, generator=draw).bfloat16() for one in ROWS
    }


@pytest.fixture(scope="module")
def batch(features: dict[bytes, torch.Tensor]) -> Batch:
    return collate(ROWS, StoredFeatures(features), torch.device("cpu"))


@pytest.fixture(scope="module")
def verifier_head() -> torch.Tensor:
    return torch.randn(VOCAB, HIDDEN, generator=torch.Generator().manual_seed(2))


DRAFT_IDS = torch.tensor(sorted({*range(0, VOCAB, 5), 1, 2, 3}))


def learner(verifier_head: torch.Tensor, rejected_weight: float | None = None) -> MedusaLearner:
    torch.manual_seed(0)
    config = MedusaConfig(
        vocab_size=VOCAB, hidden_size=HIDDEN, num_heads=HEADS, draft_vocab_size=len(DRAFT_IDS)
    )
    options = MedusaOptions(
        verifier="", data=(), output=Path(), num_steps=HEADS, rejected_weight=rejected_weight,
        temperature=0.7,
    )  # fmt: skip
    model = MedusaForCausalLM(config).float()
    return MedusaLearner(model, verifier_head[DRAFT_IDS], DRAFT_IDS, options, {})


def drafts(
    one: MedusaLearner, features: dict[bytes, torch.Tensor], output: torch.Tensor
) -> Iterator[list[tuple[torch.Tensor, torch.Tensor]]]:
    """Of every draft the logits of each head and those of the verifier for the same token: a
    draft's root is any token from the prompt's last on, and the heads read the state of the token
    before it; head k from it guesses the token k behind the root.
    """
    for text in ROWS:
        states = features[text.digest].float()
        for root in range(text.num_prompt - 1, len(text.ids) - 1):
            read = states[root - 1] if root else torch.zeros(HIDDEN)
            steps = []
            for k, head in enumerate(one.model.heads, 1):
                # The verifier says token root + k from the state of the token before that.
                if root + k < len(text.ids):
                    theirs = states[root + k - 1] @ output.T
                    steps.append((head(read) @ output.T, theirs))
            yield steps


@pytest.mark.parametrize("rejected_weight", [None, 3.0])
def test_losses_are_those_of_the_definition(
    features: dict[bytes, torch.Tensor],
    batch: Batch,
    verifier_head: torch.Tensor,
    rejected_weight: float | None,
) -> None:
    one = learner(verifier_head, rejected_weight)
    sums, weights = torch.zeros(HEADS), torch.zeros(HEADS)
    with torch.no_grad():
        for steps in drafts(one, features, verifier_head[DRAFT_IDS]):
            rejected = False
            for k, (logits, theirs) in enumerate(steps):
                wrong = bool(logits.argmax() != theirs.argmax()) and not rejected
                rejected |= wrong
                weight = rejected_weight if rejected_weight is not None and wrong else 1.0
                target = torch.softmax(theirs / 0.7, 0)
                sums[k] += weight * torch.nn.functional.cross_entropy(logits, target)
                weights[k] += weight
        found = one.loss(batch, torch.Generator())
    wanted = sums / weights
    torch.testing.assert_close(found.parts["token"], wanted, rtol=1e-4, atol=1e-4)
    total = sum(0.8**k * loss for k, loss in enumerate(wanted, 1))
    torch.testing.assert_close(found.total, total, rtol=1e-4, atol=1e-4)


def test_agreement_is_that_of_the_definition(
    features: dict[bytes, torch.Tensor], batch: Batch, verifier_head: torch.Tensor
) -> None:
    """The verifier's choice is over all its ids, a head's over those that it has logits for."""
    one = learner(verifier_head)
    hits, counts = torch.zeros(HEADS), torch.zeros(HEADS)
    with torch.no_grad():
        for head in one.model.heads:
            # Nothing is likeliest after a state of zeros otherwise.
            head.blocks[0].linear.bias.normal_()
        for ours, theirs in zip(
            drafts(one, features, verifier_head[DRAFT_IDS]),
            drafts(one, features, verifier_head),
            strict=True,
        ):
            for k, ((logits, _), (_, wanted)) in enumerate(zip(ours, theirs, strict=True)):
                hits[k] += DRAFT_IDS[logits.argmax()] == wanted.argmax()
                counts[k] += 1
        found = one.measure(HeldOut([batch], verifier_head, DRAFT_IDS))
    assert found.num_tokens == int(counts[0])
    assert sum(hits) > 0
    tops = torch.tensor([shares[0] for shares in found.top])
    torch.testing.assert_close(tops, hits / counts)


def test_gradients_reach_the_heads_alone(batch: Batch, verifier_head: torch.Tensor) -> None:
    one = learner(verifier_head)
    one.model.lm_head.requires_grad_(False)  # type: ignore[union-attr]
    one.loss(batch, torch.Generator()).total.backward()
    for name, parameter in one.model.named_parameters():
        assert (parameter.grad is None) == name.startswith("lm_head")
