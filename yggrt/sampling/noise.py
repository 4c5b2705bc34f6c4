"""Gumbel noise that is a pure function of (seed, choice, position, token id), the same bits on
every machine.

Generator: SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators",
OOPSLA 2014; its finalizer is Stafford's "Mix13"). `mix64` of seed, choice and position in turn
gives the key of a stream, and token t gets the stream's number t. Nothing is drawn in order, so a
tree may ask for any token at any position.

The hash's upper 52 bits give x, an odd multiple of 2^-53 in (0, 1), which is exact in float64, and
the noise is G = -log(-log x), with the logarithms of `yggrt.core.gumbel`. Range of G: GUMBEL_MIN
to GUMBEL_MAX.
"""

from __future__ import annotations

import math

import torch

from yggrt.core.gumbel import gumbel, gumbel_nearly

_GOLDEN = 0x9E3779B97F4A7C15
_MULTIPLIER_1 = 0xBF58476D1CE4E5B9
_MULTIPLIER_2 = 0x94D049BB133111EB
_WORD = 2**64 - 1

# x is 2^-53 at least and 1 - 2^-53 at most; the values are rounded outwards.
GUMBEL_MIN = -math.log(53 * math.log(2)) - 1e-9
GUMBEL_MAX = 53 * math.log(2) + 1e-9


def mix64(word: int) -> int:
    """SplitMix64's finalizer, a bijection of 64-bit words."""
    word = ((word ^ (word >> 30)) * _MULTIPLIER_1) & _WORD
    word = ((word ^ (word >> 27)) * _MULTIPLIER_2) & _WORD
    return word ^ (word >> 31)


def stream_key(seed: int, choice: int, position: int) -> int:
    """The state of the stream that one token is drawn with."""
    key = mix64((seed + _GOLDEN) & _WORD)
    for number in (choice, position):
        key = mix64((key + (number + 1) * _GOLDEN) & _WORD)
    return key


class KeyedNoise:
    """The noise of one completion. `temperature` (above 0) divides the logits that it is added to.

    Both the verifier and a drafter may ask for it; neither changes it.
    """

    def __init__(self, seed: int, choice: int, temperature: float) -> None:
        self.temperature = temperature
        self._seed, self._choice = seed, choice
        self._steps: dict[int, tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}

    def __call__(self, position: int, token_ids: torch.Tensor) -> torch.Tensor:
        """G of tokens [n] int64 at `position` of prompt and output: [n] float64, off by a few
        rounding errors (far below 1e-12), which is enough to rank guesses.
        """
        return gumbel_nearly(self.uniform(position, token_ids))

    def portable(self, position: int, token_ids: torch.Tensor) -> torch.Tensor:
        """As a call, with the same bits on every machine."""
        return gumbel(self.uniform(position, token_ids))

    def uniform(self, position: int, token_ids: torch.Tensor) -> torch.Tensor:
        """x of tokens [n] int64: [n] float64."""
        words = token_ids + 1
        words.mul_(_signed(_GOLDEN)).add_(self.key(position))
        _mix_in_place(words, torch.empty_like(words))
        return uniform_of(words)

    def of_one(self, position: int, token_id: int) -> float:
        """As a call, for one token."""
        word = mix64(
            (stream_key(self._seed, self._choice, position) + (token_id + 1) * _GOLDEN) & _WORD
        )
        return -math.log(-math.log((2 * (_signed(word) >> 12) + 1 + 2**52) * 2.0**-53))

    def loud(
        self, position: int, vocab_size: int, num_bits: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Words of the whole vocabulary, for `uniform_of`, and a mask of the tokens whose x is at
        least 1 - 2^-num_bits; both valid until the next call.

        All others have G of at most `loudness(num_bits)`.
        """
        if vocab_size not in self._steps:
            steps = torch.arange(1, vocab_size + 1).mul_(_signed(_GOLDEN))
            self._steps = {vocab_size: (steps, torch.empty_like(steps), torch.empty_like(steps))}
        steps, words, room = self._steps[vocab_size]
        torch.add(steps, self.key(position), out=words)
        _mix_in_place(words, room)
        # The hash's last step, still to come, leaves the upper 31 bits as they are.
        assert num_bits <= 31
        return words, words >= 2**63 - 2 ** (64 - num_bits)

    def key(self, position: int) -> int:
        """The state of the stream at `position`, as a signed word."""
        return _signed(stream_key(self._seed, self._choice, position))


def loudness(num_bits: int) -> float:
    """The most that G can be for an x below 1 - 2^-num_bits, rounded upwards."""
    return -math.log(-math.log1p(-(2.0**-num_bits))) + 1e-9


def uniform_of(words: torch.Tensor) -> torch.Tensor:
    """x from words [n] int64 that lack the last step of their hash, in the order of signed words:
    [n] float64. Changes `words`.
    """
    _xor_shifted(words, 31, torch.empty_like(words))
    # Each step is exact: -2^51 <= k < 2^51 gives (2k + 1 + 2^52) 2^-53.
    x = words.bitwise_right_shift_(12).to(torch.float64)
    return x.mul_(2.0**-52).add_(0.5 + 2.0**-53)


def _mix_in_place(words: torch.Tensor, room: torch.Tensor) -> None:
    """All of mix64 but its last step."""
    for shift, multiplier in ((30, _MULTIPLIER_1), (27, _MULTIPLIER_2)):
        _xor_shifted(words, shift, room)
        words.mul_(_signed(multiplier))


def _xor_shifted(words: torch.Tensor, shift: int, room: torch.Tensor) -> None:
    # The mask makes an arithmetic shift a logical one.
    torch.bitwise_right_shift(words, shift, out=room)
    words.bitwise_xor_(room.bitwise_and_((1 << (64 - shift)) - 1))


def _signed(word: int) -> int:
    """The int64 with the bits of a 64-bit word."""
    return word - 2**64 if word >= 2**63 else word
