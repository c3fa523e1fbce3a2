"""Quantization gives the same bytes on any number of threads and without AVX-512; benchmarks/determinism.py takes any model."""

import determinism


def test_profile_plan_and_model_are_the_same_bytes(monkeypatch) -> None:
    ways = determinism.environments()
    monkeypatch.setattr(determinism, "environments", lambda: {name: ways[name] for name in [*ways][:: len(ways) - 1]})
    found = determinism.everywhere(determinism.DIGITS, samples=8)
    assert len(found) == 2
    (digests,) = set(found.values())
    assert len(digests.split()) == 4
