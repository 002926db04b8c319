"""Random numbers: named streams, and noise keyed by entity.

A stream is identified by its key, (seed, `Stream`, further numbers), so the draws of one part of a fit never depend on
those of another. The noise of a block has the code of its entity in its counter (`fill_normal`), so it does not depend
on which other entities are drawn, where, or in which order.

The counter-based generator is Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3").
"""

import math
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]

FIXED_SEED = 0
"""Seed of draws for which users choose no seed: a model without a `random_state` must give the same answers twice."""


class Stream(IntEnum):
    """The purpose of a random stream; further key numbers are in parentheses.

    Never change a number: the draws of the stream would change with it.
    """

    HOLD_OUT = 0
    """The dyads held out for early stopping."""
    START = 1
    """The initial parameters of a restart: (restart)."""
    BLOCKS = 2
    """The noise of the sampler's blocks: (chain, sweep, role), then by entity."""
    WATCHED = 3
    """The predictions that are monitored for mixing."""
    CHAIN_START = 4
    """The start of latent columns that a penalty has shrunk to zero: (chain)."""
    PRIORS = 5
    """The sampler's learnt priors: (chain, sweep, role)."""
    SIDE_WEIGHTS = 6
    """The sampler's side weights and their precisions: (chain, sweep)."""
    ROUNDS = 7
    """The order of the rounds of an SGD epoch: (epoch)."""
    VISITS = 8
    """The order of the dyads of an SGD cell: (epoch, cell)."""
    SPREAD = 9
    """The sample of training dyads that represents entities without labels."""
    SPREAD_UPDATE = 10
    """The draws of that sample that a new batch of dyads replaces: (dyads so far)."""
    FOLD_IN = 12
    """The noise of blocks folded into a posterior: (draw, round, role), then by entity."""
    COMPARED = 13
    """The partners on which entities are compared."""
    COPIES = 14
    """The copies of entities to which dyads belong in SGD on a device, then by dyad."""


def random_stream(seed: int, stream: Stream, *key: int) -> np.random.Generator:
    """Return the generator of a key; streams with different keys are independent."""
    return np.random.default_rng(_sequence(seed, stream, *key))


def _sequence(seed: int, *key: int) -> np.random.SeedSequence:
    return np.random.SeedSequence(seed, spawn_key=tuple(map(int, key)))


class Key(NamedTuple):
    """The key of the counter-based generator: two 32-bit words, each held in 64 bits."""

    low: Any
    high: Any

    @classmethod
    def of(cls, seed: int, stream: Stream, *key: int) -> "Key":
        """Return the key of a random stream."""
        low, high = _sequence(seed, stream, *key).generate_state(2)
        return cls(np.uint64(low), np.uint64(high))


class SweepNoise(NamedTuple):
    """The random numbers of one sweep of one chain of the sampler."""

    seed: int
    chain: int
    sweep: int

    def blocks(self, role: int) -> Key:
        """Return the key of the noise of all blocks of one role."""
        return Key.of(self.seed, Stream.BLOCKS, self.chain, self.sweep, role)

    def prior(self, role: int) -> np.random.Generator:
        """Return the generator for the learnt prior of one role."""
        return random_stream(self.seed, Stream.PRIORS, self.chain, self.sweep, role)

    def side_weights(self) -> np.random.Generator:
        """Return the generator for all side weights and their precisions."""
        return random_stream(self.seed, Stream.SIDE_WEIGHTS, self.chain, self.sweep)


# The functions below are kernels, see `structure`. All words are unsigned and below 2^32, so no product overflows.

WORD = np.uint64(0xFFFFFFFF)
"""Mask of a 32-bit word."""

SHIFT = np.uint64(32)
"""Number of bits of a word."""

FIRST_MULTIPLIER, SECOND_MULTIPLIER = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
"""Multipliers of Philox4x32 (Salmon et al. 2011)."""

FIRST_STEP, SECOND_STEP = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
"""Key increments of Philox4x32, the Weyl constants of Salmon et al.: fractions of the golden ratio and of sqrt(3)."""

ROUNDS = 10
"""Rounds of Philox4x32-10, the number that Salmon et al. recommend."""

CHANCE = 0xFFFFFFFF
"""Counter of the uniform number that decides on acceptance: the largest word, which no entry of a block reaches."""

HIGH_DROPPED, LOW_DROPPED = np.uint64(5), np.uint64(6)
"""Low bits dropped from two words to leave 27 and 26 bits: together the 53 bits of a double's significand."""

LOW_RANGE = np.uint64(67108864)
"""2^26, the number of values of the low part."""

TO_UNIT = 2.0**-53
"""Scales integers of 53 bits to the unit interval."""


def philox(key: Key, a: Any, b: Any, c: Any, d: Any) -> tuple[Any, Any, Any, Any]:
    """Return four random words for the counter (a, b, c, d) of four words."""
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
    """Return four random words keyed by an entity, a part of its block and a counter."""
    code = np.uint64(entity)
    return philox(key, code & WORD, code >> SHIFT, np.uint64(counter), np.uint64(part))


def unit(high: Any, low: Any) -> Any:
    """Return a number in (0, 1] made of 27 bits of one word and 26 bits of another; every step is exact."""
    whole = (high >> HIGH_DROPPED) * LOW_RANGE + (low >> LOW_DROPPED)
    return (np.float64(whole) + 1.0) * TO_UNIT


def fill_normal(key: Key, entity: int, part: int, out: Array) -> None:
    """WRITE standard normal numbers (Box-Muller), keyed by an entity and a part of its block, to `out`."""
    for n in range((out.size + 1) // 2):
        fill_normal_pair(key, entity, part, n, out)


def fill_normal_pair(key: Key, entity: int, part: int, n: int, out: Array) -> None:
    """WRITE the n-th pair of the numbers of `fill_normal`."""
    a, b, c, d = words_of(key, entity, n, part)
    radius, angle = math.sqrt(-2.0 * math.log(unit(a, b))), 2.0 * math.pi * unit(c, d)
    out[2 * n] = radius * math.cos(angle)
    if 2 * n + 1 < out.size:
        out[2 * n + 1] = radius * math.sin(angle)


def log_chance(key: Key, entity: int, part: int) -> Any:
    """Return the log of a uniform number keyed by an entity and a part.

    A proposal is accepted if its log acceptance ratio is greater.
    """
    a, b, _, _ = words_of(key, entity, CHANCE, part)
    return math.log(unit(a, b))


COMPOSED = (philox, words_of, unit, fill_normal, fill_normal_pair, log_chance)
"""Kernels of this module; an engine compiles them as they are."""
