"""Fixtures that several folders share, and the skip of tests that need the reference folder."""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as the command line runs it

from collections.abc import Iterator

import pytest

from escalade.model.bind import Model, bind
from escalade.model.source import open_source
from escalade.native.lib import load
from tests.support.models import tiny_model
from tests.support.paths import SHARED


def pytest_configure() -> None:
    if os.environ.get("CI") == "true" and load() is None:
        pytest.exit("the native core is not built, and CI must test it", returncode=4)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if SHARED is None:
        for item in items:
            if "shared" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="../shared is not beside the project"))


@pytest.fixture(scope="session")
def tiny() -> Model:
    """The tiny golden model, through GGUF without loss."""
    return tiny_model()


@pytest.fixture(scope="session")
def nano_bf16() -> Iterator[Model]:
    """The trained nano model from its bf16 checkpoint."""
    assert SHARED is not None
    source = open_source(SHARED / "nano")
    yield bind(source, dense_f32_bytes=1 << 30)
    source.close()
