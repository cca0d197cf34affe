"""Which holds are in each other's way."""

import sqlite3
from collections.abc import Iterator
from dataclasses import replace

import pytest

from kubeletplugin.ledger import queries, schema
from kubeletplugin.ledger.model import Drain, HeldDevice, Hold
from tests.unit.ledger.rows import gpu, mig, record


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    schema.prepare_for_writing(connection, ":memory:", "boot-1")
    yield connection
    connection.close()


@pytest.mark.parametrize(
    ("held", "wanted", "in_the_way"),
    [
        (gpu(0), gpu(0), True),
        (gpu(0), gpu(1), False),
        (gpu(0), mig(0, 1), True),
        (mig(0, 1), gpu(0), True),
        (mig(0, 1), mig(0, 1), True),
        (mig(0, 1), mig(0, 2), False),
        (mig(0, 1), mig(1, 1), False),
        (gpu(0, admin=True), gpu(0), False),
        (gpu(0), gpu(0, admin=True), False),
        (gpu(0, share_id="s1"), gpu(0, share_id="s2"), False),
        (gpu(0, share_id="s1"), gpu(0), True),
        (gpu(0, share_id="s1"), mig(0, 1), True),
    ],
    ids=lambda value: (
        f"{value.name}{'!' if value.admin else ''}{value.share_id}" if isinstance(value, HeldDevice) else ""
    ),
)
def test_overlap(connection: sqlite3.Connection, held: HeldDevice, wanted: HeldDevice, in_the_way: bool) -> None:
    assert queries.commit_claim(connection, record("a"), [held]) == ()

    found = queries.commit_claim(connection, record("b"), [wanted])

    assert [hold.holder.id for hold in found] == (["a"] if in_the_way else [])
    assert (queries.claim(connection, "b") is None) == in_the_way
    assert [hold.device for hold in queries.holds_of(connection, "b")] == ([] if in_the_way else [wanted])


def test_a_claim_is_not_in_its_own_way(connection: sqlite3.Connection) -> None:
    queries.commit_claim(connection, record("a"), [gpu(0)])
    queries.end_claim(connection, "a", [Drain(gpu(0), frozenset({"p"}), "why")], "now")

    assert queries.commit_claim(connection, record("a"), [gpu(0)]) == ()
    assert queries.commit_claim(connection, record("a"), [gpu(0), gpu(1)]) == ()
    assert [(hold.device.name, hold.state) for hold in queries.holds_of(connection, "a")] == [
        ("gpu-0", "draining"),
        ("gpu-0", "held"),
        ("gpu-1", "held"),
    ]


def test_a_claim_that_is_tried_again_has_had_its_devices_since_the_first_time(connection: sqlite3.Connection) -> None:
    def commit(fingerprint: str, at: str) -> set[str]:
        tried = replace(record("a", fingerprint=fingerprint), prepared_at=at)
        assert queries.commit_claim(connection, tried, [gpu(0), gpu(1)]) == ()
        return {hold.since for hold in queries.holds_of(connection, "a")}

    assert commit("one", "early") == {"early"}
    assert commit("one", "late") == {"early"}
    assert commit("another", "late") == {"late"}


def test_a_draining_device_is_in_the_way_until_its_drain_ends(connection: sqlite3.Connection) -> None:
    queries.commit_claim(connection, record("a"), [gpu(0), gpu(1)])
    queries.end_claim(connection, "a", [Drain(gpu(0), frozenset({"p1", "p2"}), "still running")], "later")

    (drain,) = queries.conflicts(connection, "b", [gpu(0), gpu(1)])

    assert drain.pods == {"p1", "p2"}
    assert (drain.state.value, drain.reason, drain.since) == ("draining", "still running", "later")
    assert (drain.holder.id, drain.holder.namespace, drain.holder.name) == ("a", "default", "claim-a")
    assert queries.claim(connection, "a") is None
    queries.end_drain(connection, drain)
    assert queries.commit_claim(connection, record("b"), [gpu(0), gpu(1)]) == ()
    assert connection.execute("SELECT count(*) FROM drain_pods").fetchone() == (0,)


def test_ending_a_drain_never_ends_a_hold(connection: sqlite3.Connection) -> None:
    queries.commit_claim(connection, record("a"), [gpu(0)])
    (hold,) = queries.holds(connection)
    assert not queries.end_drain(connection, hold)
    assert queries.holds(connection) == (hold,)


def _drain(connection: sqlite3.Connection, uid: str, at: str = "later") -> Hold:
    queries.commit_claim(connection, record(uid), [gpu(0)])
    queries.end_claim(connection, uid, [Drain(gpu(0), frozenset({f"p-{uid}"}), "why")], at)
    (drain,) = queries.draining(connection)
    return drain


def test_a_hold_never_gets_the_id_of_one_that_is_over(connection: sqlite3.Connection) -> None:
    first = _drain(connection, "a")
    queries.end_drain(connection, first)
    schema.prepare_for_writing(connection, ":memory:", "boot-1")
    second = _drain(connection, "b")
    assert second.id > first.id
    assert not queries.end_drain(connection, first)
    assert queries.draining(connection) == (second,)


def test_ids_go_on_behind_those_of_a_release_that_doesnt_count_them(connection: sqlite3.Connection) -> None:
    queries.commit_claim(connection, record("a"), [gpu(0)])
    connection.execute("UPDATE holds SET id = 77")
    queries.commit_claim(connection, record("b"), [gpu(1)])
    assert [hold.id for hold in queries.holds(connection)] == [77, 78]


@pytest.mark.parametrize(("uid", "at"), [("b", "later"), ("a", "even later")])
def test_a_ledger_begun_anew_may_repeat_an_id_but_its_drain_stays(
    connection: sqlite3.Connection, uid: str, at: str
) -> None:
    shown = _drain(connection, "a")
    connection.execute("DELETE FROM holds")
    connection.execute("DELETE FROM drain_pods")
    connection.execute("DELETE FROM meta WHERE key = ?", (schema.LAST_HOLD_ID,))
    other = _drain(connection, uid, at)
    assert other.id == shown.id
    assert not queries.end_drain(connection, shown)
    assert queries.draining(connection) == (other,)


def test_pods_only_grow_while_the_claim_is_prepared(connection: sqlite3.Connection) -> None:
    queries.commit_claim(connection, record("a", pods=frozenset({"p1"})), [gpu(0)])
    queries.add_pods(connection, "a", ["p2", "p1"])
    queries.commit_claim(connection, record("a", fingerprint="g", pods=frozenset({"p3"})), [gpu(0)])
    queries.add_pods(connection, "unknown", ["p4"])

    kept = queries.claim(connection, "a")

    assert kept is not None
    assert kept.fingerprint == "g"
    assert kept.pods == {"p1", "p2", "p3"}
    queries.end_claim(connection, "a", [], "now")
    assert connection.execute("SELECT count(*) FROM claim_pods").fetchone() == (0,)


class _Cost:
    """Statements and virtual machine steps: what SQLite did, whatever the machine's speed."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.statements: list[str] = []
        self.steps = 0
        connection.set_trace_callback(self.statements.append)
        connection.set_progress_handler(self._step, 1)

    def _step(self) -> int:
        self.steps += 1
        return 0


def _one_life(connection: sqlite3.Connection) -> None:
    queries.claim(connection, "x")
    queries.conflicts(connection, "x", [gpu(0)])
    queries.commit_claim(connection, record("x", pods=frozenset({"p"})), [gpu(0)])
    queries.add_pods(connection, "x", ["q"])
    queries.holds_of(connection, "x")
    queries.end_claim(connection, "x", [Drain(gpu(0), frozenset({"p"}), "why")], "now")
    (drain,) = queries.draining(connection)
    queries.end_drain(connection, drain)


def test_the_cost_of_a_claim_is_flat(connection: sqlite3.Connection) -> None:
    few = _Cost(connection)
    _one_life(connection)
    connection.set_trace_callback(None)
    for index in range(1, 201):
        queries.commit_claim(connection, record(f"c{index}", pods=frozenset({f"p{index}"})), [gpu(index)])
    many = _Cost(connection)
    _one_life(connection)
    connection.set_trace_callback(None)
    connection.set_progress_handler(None, 1)

    assert len(many.statements) == len(few.statements)
    assert many.steps <= few.steps + 10
    for statement in many.statements:
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}")]
        scans = [step for step in plan if step.startswith("SCAN") and "holds_draining" not in step]
        assert not scans, f"{statement}: {plan}"


def test_pods_of_every_claim_on_a_gpu(connection: sqlite3.Connection) -> None:
    """A claim without pods, and those on other GPUs, are left out."""
    held = (("a", mig(0, 1)), ("b", mig(0, 2)), ("c", gpu(1)), ("d", gpu(0, admin=True)))
    for uid, device in held:
        pods = frozenset() if uid == "d" else frozenset({f"{uid}1", f"{uid}2"})
        assert queries.commit_claim(connection, record(uid, pods=pods), [device]) == ()

    assert queries.pods_on(connection, "GPU-0") == {"a": {"a1", "a2"}, "b": {"b1", "b2"}}
    assert queries.pods_on(connection, "GPU-7") == {}
