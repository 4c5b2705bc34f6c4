"""A head's steps on its own features, against a loop that drafts as decoding does."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import LlamaConfig

from yggc.models.eagle import EagleConfig, EagleForCausalLM, HeadForCausalLM, head_config
from yggc.models.eagle3 import Eagle3Config, Eagle3ForCausalLM, head3_config
from yggc.train.batches import Batch, collate
from yggc.train.cross_entropy import SoftCrossEntropy, TrainedHeadCrossEntropy, mean_rows
from yggc.train.eagle import LossWeights, losses, unroll
from yggc.train.features import StoredFeatures
from yggc.train.texts import Row

VOCAB, HIDDEN, STEPS = 50, 24, 4


def row(num_prompt: int, num: int, seed: int) -> Row:
    ids = np.random.default_rng(seed).integers(0, VOCAB, num).astype(np.int32)
    return Row(ids, num_prompt, bytes([seed]))


ROWS = (row(3, 9, 1), row(7, 10, 2), row(1, 8, 3))


VERIFIER = LlamaConfig(
    vocab_size=VOCAB,
    hidden_size=HIDDEN,
    intermediate_size=40,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
)


def shows_features(model: HeadForCausalLM) -> HeadForCausalLM:
    """A head whose logits are its features, so that `forward` shows them."""
    model.norm = torch.nn.Identity()
    with torch.no_grad():
        model.lm_head.weight.copy_(torch.eye(HIDDEN))
    return model.float().eval()


@pytest.fixture(scope="module")
def head() -> HeadForCausalLM:
    torch.manual_seed(0)
    config = EagleConfig(**{**head_config(VERIFIER, HIDDEN).to_dict(), "initializer_range": 0.3})
    return shows_features(EagleForCausalLM(config))


@pytest.fixture(scope="module")
def head3() -> HeadForCausalLM:
    torch.manual_seed(4)
    fields = head3_config(VERIFIER, HIDDEN, taps=(1, 3)).to_dict()
    return shows_features(Eagle3ForCausalLM(Eagle3Config(**{**fields, "initializer_range": 0.3})))


def random_features(num_taps: int) -> dict[bytes, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    width = (1 + num_taps) * HIDDEN
    return {
        one.digest: torch.randn(len(one.ids), width, generator=generator).bfloat16()
        for one in ROWS
    }


@pytest.fixture(scope="module")
def features() -> dict[bytes, torch.Tensor]:
    return random_features(0)


def batch_of(features: dict[bytes, torch.Tensor], num_taps: int) -> Batch:
    made = collate(ROWS, StoredFeatures(features, num_taps), torch.device("cpu"))
    return made.with_given(made.given.float())


@pytest.fixture(scope="module")
def batch(features: dict[bytes, torch.Tensor]) -> Batch:
    return batch_of(features, 0)


@torch.no_grad()
def drafted(head: HeadForCausalLM, ids: torch.Tensor, taps: torch.Tensor, root: int) -> list:
    """Features of tokens root, root + 1, ...: the first from the verifier's, the others from the
    head's own; every step runs the whole context again.
    """
    given = torch.cat([torch.zeros(1, HIDDEN), head.fuse(taps[:root])])
    found = []
    for step in range(STEPS):
        if root + step >= len(ids) - 1:
            break
        out = head(ids[None, : root + step + 1], given[None]).logits[0]
        found.append(out[-1])
        given = torch.cat([given, out[-1:]])
    return found


@pytest.mark.parametrize(("kind", "num_taps"), [("head", 0), ("head3", 2)])
def test_steps_see_what_drafting_sees(
    request: pytest.FixtureRequest, kind: str, num_taps: int
) -> None:
    head: HeadForCausalLM = request.getfixturevalue(kind)
    stored = random_features(num_taps)
    batch = batch_of(stored, num_taps)
    with torch.no_grad():
        steps = unroll(head, batch, head.model.embed_tokens(batch.ids), STEPS)
    compared = 0
    for index, one in enumerate(ROWS):
        ids, own = torch.from_numpy(one.ids).long(), stored[one.digest].float()
        start = batch.ids.shape[1] - batch.num_queries + 1 - one.num_prompt
        assert torch.equal(batch.features[index, start], own[0, :HIDDEN].bfloat16())
        taps = own[:, HIDDEN:] if num_taps else own
        for root in range(one.num_prompt - 1, len(ids) - 1):
            for step, wanted in enumerate(drafted(head, ids, taps, root)):
                query = root + step - (one.num_prompt - 1)
                assert batch.valid_at(step)[index, query]
                torch.testing.assert_close(steps[step][index, query], wanted, rtol=1e-4, atol=1e-4)
                compared += 1
    assert compared == sum(int(batch.valid_at(step).sum()) for step in range(STEPS))


def test_detached_steps_have_the_same_values_and_other_gradients(
    head: HeadForCausalLM, batch: Batch
) -> None:
    embeddings = head.model.embed_tokens(batch.ids).detach()
    kept, cut = (unroll(head, batch, embeddings, 2, detach=detach) for detach in (False, True))
    torch.testing.assert_close(kept[1], cut[1])
    gradients = [torch.autograd.grad(steps[1].sum(), head.fc.weight)[0] for steps in (kept, cut)]
    assert not torch.allclose(*gradients)


def test_cross_entropy_is_torchs(batch: Batch) -> None:
    generator = torch.Generator().manual_seed(2)
    matrix = torch.randn(30, HIDDEN, generator=generator)
    true = torch.randn(700, HIDDEN, generator=generator)
    found = torch.randn(700, HIDDEN, generator=generator, requires_grad=True)
    ours = SoftCrossEntropy.apply(found, matrix, mean_rows(true, matrix, 0.7))
    target = torch.softmax(true @ matrix.T / 0.7, -1)
    wanted = torch.nn.functional.cross_entropy(found @ matrix.T, target, reduction="none")
    torch.testing.assert_close(ours, wanted, rtol=1e-4, atol=1e-4)
    scale = torch.randn(700, generator=generator)
    gradients = [torch.autograd.grad((one * scale).sum(), found)[0] for one in (ours, wanted)]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)


def test_padding_changes_no_loss(
    head: HeadForCausalLM, features: dict[bytes, torch.Tensor], batch: Batch
) -> None:
    matrix = torch.randn(30, HIDDEN, generator=torch.Generator().manual_seed(3))

    def parts(made: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        made = made.with_given(made.given.float())
        steps = unroll(head, made, head.model.embed_tokens(made.ids), 1)
        found = losses(steps, made, matrix, LossWeights())
        return found.token[0] * made.valid.sum(), made.valid.sum()

    together, _ = parts(batch)
    alone = sum(
        parts(collate([one], StoredFeatures(features), torch.device("cpu")))[0] for one in ROWS
    )
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-4)


def test_a_draft_is_rejected_at_its_first_wrong_step(
    head: EagleForCausalLM, features: dict[bytes, torch.Tensor], batch: Batch
) -> None:
    matrix = torch.randn(5, HIDDEN, generator=torch.Generator().manual_seed(6))
    steps = unroll(head, batch, head.model.embed_tokens(batch.ids), STEPS)
    found = losses(steps, batch, matrix, LossWeights(rejected=3.0)).token
    # Draft by draft, as decoding compares them.
    sums = np.zeros((STEPS, 2))
    num_rejected = [0] * STEPS
    for one in ROWS:
        ids, true = torch.from_numpy(one.ids).long(), features[one.digest].float()
        for root in range(one.num_prompt - 1, len(ids) - 1):
            rejected = False
            for step, made in enumerate(drafted(head, ids, true, root)):
                logits, wanted = matrix @ made, matrix @ true[root + step]
                is_first = not rejected and logits.argmax() != wanted.argmax()
                rejected |= bool(is_first)
                num_rejected[step] += bool(is_first)
                weight = 3.0 if is_first else 1.0
                loss = torch.nn.functional.cross_entropy(logits[None], wanted.softmax(-1)[None])
                sums[step] += weight * loss.item(), weight
    assert all(num_rejected[:2])
    np.testing.assert_allclose(found.numpy(), sums[:, 0] / sums[:, 1], rtol=1e-4)
    equal = losses(steps, batch, matrix, LossWeights(rejected=1.0)).token
    plain = losses(steps, batch, matrix, LossWeights()).token
    torch.testing.assert_close(equal, plain)
    assert not torch.allclose(found, plain)


def test_only_the_rows_told_can_weigh_more() -> None:
    generator = torch.Generator().manual_seed(9)
    hidden, true = (torch.randn(300, HIDDEN, generator=generator) for _ in range(2))
    head, theirs = (torch.randn(6, HIDDEN, generator=generator) for _ in range(2))
    among = torch.arange(300) % 3 == 0
    found = TrainedHeadCrossEntropy.apply(hidden, head, true, theirs, 1.0, 4.0, among)
    logits, target = hidden @ head.T, true @ theirs.T
    weights = 1 + 3 * (among & (logits.argmax(-1) != target.argmax(-1))).float()
    by_row = torch.nn.functional.cross_entropy(logits, target.softmax(-1), reduction="none")
    torch.testing.assert_close(found, (by_row * weights).sum() / weights.sum())
