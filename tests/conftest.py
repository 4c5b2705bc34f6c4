"""Bundles that several tests use, built when the first test asks."""

from __future__ import annotations

from pathlib import Path

import pytest

from yggrt.threads import wait_briefly

# Before anything imports torch.
wait_briefly()

import bundles  # noqa: E402


@pytest.fixture(scope="session", params=["static", "dynamic"])
def tiny_bundle(request: pytest.FixtureRequest) -> Path:
    """A random two-layer model in a bundle of each graph kind."""
    return bundles.tiny(request.param)


@pytest.fixture(scope="session")
def tiny_reference() -> object:
    """transformers' model with the weights of `tiny_bundle`."""
    return bundles.reference(bundles.tiny_model())


@pytest.fixture(scope="session")
def smol_bundle() -> Path:
    """SmolLM2-135M-Instruct, float32."""
    return bundles.smol_for_tests()
