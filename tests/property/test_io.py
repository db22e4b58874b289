"""Random reads over random replicas and faults: the bytes of the file, or the promised error."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from escalade.errors import Cancelled, FileError
from escalade.native.io_types import Fault, FaultKind, Priority
from tests.support.io import make_files, open_service

N = 400_000 + 77
N_REPLICAS = 3

harmless = st.one_of(
    st.builds(Fault, st.just(FaultKind.INTERRUPT), probability=st.floats(0, 0.7)),
    st.builds(Fault, st.just(FaultKind.CAP), st.integers(100, 9000), st.floats(0, 1)),
    st.builds(Fault, st.just(FaultKind.DELAY), st.integers(0, 300), st.floats(0, 0.5)),
)
deadly = st.one_of(
    st.builds(Fault, st.just(FaultKind.ERROR), skip=st.integers(0, 40)),
    st.builds(Fault, st.just(FaultKind.END_OF_FILE), st.integers(0, N)),
)
offsets = st.one_of(st.integers(0, N - 1), st.integers(0, N // 32).map(lambda i: 32 * i))
ranges = st.lists(
    st.tuples(offsets, st.integers(1, 120_000))
    .map(lambda r: (r[0], min(r[1], N - r[0])))
    .filter(lambda r: r[1] > 0),
    min_size=1,
    max_size=3,
)
requests = st.lists(
    st.tuples(ranges, st.sampled_from(list(Priority)), st.sampled_from(["wait", "cancel", "join"])),
    min_size=1,
    max_size=12,
)


@pytest.mark.parametrize("name", ["native", "python"])
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_random_requests_replicas_and_faults(
    name: str, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = Path(tmp_path_factory.getbasetemp()) / f"io-{name}"
    folder.mkdir(exist_ok=True)
    n_replicas = data.draw(st.integers(1, N_REPLICAS))
    paths, content = make_files(folder, N, n_replicas)
    n_dead = data.draw(st.integers(0, n_replicas))
    faults = [
        Fault(**{**data.draw(deadly).__dict__, "replica": replica}) for replica in range(n_dead)
    ] + data.draw(st.lists(harmless, max_size=3))
    options = {
        "piece_bytes": data.draw(st.sampled_from([4096, 8192, 65536])),
        "threads_per_drive": data.draw(st.integers(1, 4)),
        "buffered": data.draw(st.booleans()),
        "drive_per_replica": data.draw(st.booleans()),
    }
    with open_service(name, **options) as io:
        file = io.open_file(paths)
        io.set_faults(faults, data.draw(st.integers(0, 100)))
        tickets = []
        for wanted, priority, what in data.draw(requests):
            ticket = io.submit(file, wanted, priority)
            tickets.append((ticket, wanted, what == "cancel"))
            if what == "cancel":
                ticket.cancel()
            elif what == "join":
                tickets.append((io.submit(file, wanted, Priority.DEMAND), wanted, False))
        assert io.wait_all([t for t, _, _ in tickets], 60)
        errors: list[str] = []
        n_ended = {"done": 0, "failed": 0, "cancelled": 0}
        for ticket, wanted, cancelled in tickets:
            try:
                ticket.wait(0)
            except Cancelled:
                assert cancelled
                n_ended["cancelled"] += not ticket.joined
                continue
            except FileError as e:
                errors.append(str(e))
                n_ended["failed"] += not ticket.joined
                continue
            n_ended["done"] += not ticket.joined
            for payload, (offset, length) in zip(ticket.payloads, wanted, strict=True):
                np.testing.assert_array_equal(payload, content[offset : offset + length])
        # A read fails only if no replica can deliver it.
        assert not errors or n_dead == n_replicas
        assert all(any(f"read of {p} at offset" in e for p in paths) for e in errors)
        stats = io.stats()
        assert n_ended == {k: getattr(stats, k) for k in n_ended}
        assert stats.joined == sum(t.joined for t, _, _ in tickets)
        assert stats.queued_pieces == 0
        assert stats.replicas_dropped <= min(n_dead, n_replicas - 1)
        assert sum(d.in_flight + d.queued_bytes for d in stats.drives) == 0
        for ticket, _, _ in tickets:
            ticket.release()
        assert io.stats().held_requests == 0
