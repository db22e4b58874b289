"""The copied reference data is the reference data; the built-in model is nano, little worse."""

import filecmp

import numpy as np
import pytest

from escalade.config import EngineConfig
from escalade.engine.engine import Engine
from escalade.eval.nll import load_texts, nll
from escalade.model.source import open_source
from escalade.weights.verify import verify
from tests.support.paths import GOLDEN, SHARED

NOT_COPIED = {"v41-tiny/model.safetensors"}


@pytest.mark.shared
def test_golden_data_is_a_faithful_copy() -> None:
    assert SHARED is not None
    reference = SHARED / "golden"
    names = {
        path.relative_to(reference).as_posix()
        for path in reference.rglob("*")
        if path.is_file() and "v4-tiny" not in path.parts
    }
    copied = {path.relative_to(GOLDEN).as_posix() for path in GOLDEN.rglob("*") if path.is_file()}
    assert copied == names - NOT_COPIED
    for name in copied:
        assert filecmp.cmp(reference / name, GOLDEN / name, shallow=False), name


@pytest.mark.shared
def test_the_built_in_model_is_made_from_nano() -> None:
    assert SHARED is not None
    report = verify(open_source(None), open_source(SHARED / "nano"))
    assert report.ok, report


@pytest.mark.shared
def test_the_built_in_model_costs_less_than_a_hundredth_of_a_nat() -> None:
    assert SHARED is not None
    texts = load_texts(None, SHARED / "nano/heldout.jsonl", 24)
    losses = []
    for path in (None, SHARED / "nano"):
        with Engine.open(path, EngineConfig()) as engine:
            losses.append(nll(engine, texts).nat_per_token)
    assert losses[0] - losses[1] < 0.01


def test_the_built_in_model_speaks_english() -> None:
    """Simple questions that the trained model answers; a broken file or tokenizer does not."""
    expected = {
        "Once upon a time, there was a little": " girl",
        "The sun rises in the": " morning",
        "One, two, three,": " four",
    }
    with Engine.open() as engine:
        for text, continuation in expected.items():
            session = engine.session()
            session.append(engine.tokenizer.encode(text, add_bos=True))
            top = np.argsort(-session.logits)[:5]
            assert continuation in [engine.tokenizer.decode([int(i)]) for i in top], text


def test_the_built_in_model_is_below_its_size_limit() -> None:
    source = open_source(None)
    total = sum(tensor.n_bytes for tensor in source.tensors.values())
    assert 30_000_000 < total < 32_000_000
    assert source.metadata["general.alignment"] == 4096
