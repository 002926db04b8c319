"""Random numbers: streams with names, and noise that belongs to an entity.

A stream is found by its key, (seed, `Stream`, further numbers), so what one part of a fit draws never depends on what
another has drawn. The noise of a block is keyed further by its entity and counted from there, so it does not depend
on which other entities are drawn beside it, where, or in which order: see `fill_normal`.

The counter-based generator is Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3").
"""

import math
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]

FIXED_SEED = 0
"""The seed of draws that a user cannot choose: a model without a `random_state` must give the same answers twice."""


class Stream(IntEnum):
    """What random numbers are drawn for. A number, once given, stays: another one gives other draws."""

    HOLD_OUT = 0
    """Which dyads early stopping holds out."""
    START = 1
    """Where a restart begins: (restart)."""
    BLOCKS = 2
    """Noise of the sampler's blocks: (chain, sweep, role), then by entity."""
    WATCHED = 3
    """Which predictions are watched for mixing."""
    CHAIN_START = 4
    """Latent columns that a penalty has brought to zero: (chain)."""
    PRIORS = 5
    """The sampler's learnt priors: (chain, sweep, role)."""
    SIDE_WEIGHTS = 6
    """The sampler's side weights and their precisions: (chain, sweep)."""
    ROUNDS = 7
    """The order of the rounds of an SGD epoch: (epoch)."""
    VISITS = 8
    """The order of the dyads of an SGD cell: (epoch, cell)."""
    SPREAD = 9
    """Which training dyads stand for entities without labels."""
    SPREAD_UPDATE = 10
    """Which of them a batch of more dyads replaces: (dyads so far)."""
    PRIOR_DRAWS = 11
    """What entities without labels may be in a posterior: (draw)."""
    FOLD_IN = 12
    """Blocks that are folded into a posterior: (draw, round, role), then by entity."""


def random_stream(seed: int, stream: Stream, *key: int) -> np.random.Generator:
    """An independent stream of random numbers for each key."""
    return np.random.default_rng(_sequence(seed, stream, *key))


def _sequence(seed: int, *key: int) -> np.random.SeedSequence:
    return np.random.SeedSequence(seed, spawn_key=tuple(map(int, key)))


class Key(NamedTuple):
    """The key of a counter-based generator: two words of 32 bits, held in 64."""

    low: Any
    high: Any

    @classmethod
    def of(cls, seed: int, stream: Stream, *key: int) -> "Key":
        low, high = _sequence(seed, stream, *key).generate_state(2)
        return cls(np.uint64(low), np.uint64(high))


class SweepNoise(NamedTuple):
    """The random numbers of one sweep of one chain of the sampler."""

    seed: int
    chain: int
    sweep: int

    def blocks(self, role: int) -> Key:
        """The key of the noise of all blocks of one role."""
        return Key.of(self.seed, Stream.BLOCKS, self.chain, self.sweep, role)

    def prior(self, role: int) -> np.random.Generator:
        return random_stream(self.seed, Stream.PRIORS, self.chain, self.sweep, role)

    def side_weights(self) -> np.random.Generator:
        return random_stream(self.seed, Stream.SIDE_WEIGHTS, self.chain, self.sweep)


# The functions below are kernels, see `structure`. All words are unsigned and below 2^32, so that no product overflows.

WORD = np.uint64(0xFFFFFFFF)
SHIFT = np.uint64(32)
FIRST_MULTIPLIER, SECOND_MULTIPLIER = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
FIRST_STEP, SECOND_STEP = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
ROUNDS = 10

CHANCE = 0xFFFFFFFF
"""The counter of the number that decides on acceptance; blocks have fewer entries."""

TO_UNIT = 2.0**-53
"""Integers of 53 bits become numbers of the unit interval by this."""


def philox(key: Key, a: Any, b: Any, c: Any, d: Any) -> tuple[Any, Any, Any, Any]:
    """Four random words for the counter (a, b, c, d) of words."""
    low, high = key.low, key.high
    for _ in range(ROUNDS):
        first, second = FIRST_MULTIPLIER * a, SECOND_MULTIPLIER * c
        a, b, c, d = (
            (second >> SHIFT) ^ b ^ low,
            second & WORD,
            (first >> SHIFT) ^ d ^ high,
            first & WORD,
        )
        low, high = (low + FIRST_STEP) & WORD, (high + SECOND_STEP) & WORD
    return a, b, c, d


def words_of(key: Key, entity: int, counter: int, part: int) -> tuple[Any, Any, Any, Any]:
    """Four random words that belong to an entity, one of its parts and a counter."""
    who = np.uint64(entity)
    return philox(key, who & WORD, who >> SHIFT, np.uint64(counter), np.uint64(part))


def unit(high: Any, low: Any) -> Any:
    """A number in (0, 1] of two words: 27 bits of one and 26 of the other; every step is exact."""
    whole = (high >> np.uint64(5)) * np.uint64(67108864) + (low >> np.uint64(6))
    return (np.float64(whole) + 1.0) * TO_UNIT


def fill_normal(key: Key, entity: int, part: int, out: Array) -> None:
    """Write standard normal numbers (Box and Muller), those of an entity and one of the parts of its block."""
    for n in range((out.size + 1) // 2):
        a, b, c, d = words_of(key, entity, n, part)
        radius, angle = math.sqrt(-2.0 * math.log(unit(a, b))), 2.0 * math.pi * unit(c, d)
        out[2 * n] = radius * math.cos(angle)
        if 2 * n + 1 < out.size:
            out[2 * n + 1] = radius * math.sin(angle)


def log_chance(key: Key, entity: int, part: int) -> Any:
    """The log of a uniform number that belongs to an entity and a part: a draw that gains more is accepted."""
    a, b, _, _ = words_of(key, entity, CHANCE, part)
    return math.log(unit(a, b))


COMPOSED = (philox, words_of, unit, fill_normal, log_chance)
