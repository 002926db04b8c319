"""Random numbers: the generator is the published one, and noise belongs to its entity."""

import numpy as np
import pytest
from scipy.stats import kstest

from dyads.engine.entity import noise_pass
from dyads.model.streams import Key, Stream, SweepNoise, fill_normal, log_chance, philox, random_stream

PUBLISHED = {
    # (key, counter) -> words: the test vectors of Random123 for Philox4x32-10.
    ((0, 0), (0, 0, 0, 0)): (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8),
    ((0xFFFFFFFF,) * 2, (0xFFFFFFFF,) * 4): (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ((0xA4093822, 0x299F31D0), (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)): (
        0xD16CFE09,
        0x94FDCCEB,
        0x5001E420,
        0x24126EA1,
    ),
}


@pytest.mark.parametrize(("given", "words"), PUBLISHED.items())
def test_the_generator_gives_the_published_words(given, words):
    key, counter = (tuple(map(np.uint64, part)) for part in given)
    assert philox(Key(*key), *counter) == words


def test_noise_depends_on_the_entity_alone_and_not_on_who_is_drawn_with_it():
    key = SweepNoise(3, 0, 7).blocks(1)
    together, alone = np.empty((50, 7)), np.empty((1, 7))
    noise_pass(key, np.arange(50), together)
    for entity in (0, 31, 49):
        noise_pass(key, np.array([entity]), alone)
        np.testing.assert_array_equal(alone[0], together[entity])
    shorter = np.empty(5)
    fill_normal(key, 31, 0, shorter)
    np.testing.assert_array_equal(shorter, together[31, :5])


def test_every_part_of_a_key_gives_other_noise():
    keys = [
        SweepNoise(*numbers).blocks(role) for numbers in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)) for role in (0, 1)
    ]
    drawn = {
        tuple(noise.tolist())
        for key in keys
        for entity in (0, 2**32)
        for part in (0, 1)
        for noise in [np.empty(4)]
        if fill_normal(key, entity, part, noise) is None
    }
    assert len(drawn) == len(keys) * 4
    assert len({float(log_chance(key, 0, 0)) for key in keys}) == len(keys)


def test_noise_is_standard_normal_and_chances_are_uniform():
    key, noise = Key.of(5, Stream.BLOCKS), np.empty((20_000, 5))
    noise_pass(key, np.arange(len(noise)), noise)
    assert kstest(noise.ravel(), "norm").pvalue > 1e-3
    assert np.abs(np.corrcoef(noise.T) - np.eye(5)).max() < 0.03
    assert abs(np.corrcoef(noise[:-1, 0], noise[1:, 0])[0, 1]) < 0.03
    chances = np.exp([log_chance(key, entity, 0) for entity in range(2000)])
    assert kstest(chances, "uniform").pvalue > 1e-3


def test_streams_are_named_and_no_two_are_alike():
    assert len({random_stream(0, stream).integers(2**63) for stream in Stream}) == len(Stream)
