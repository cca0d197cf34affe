"""Trouble is told once per text, its end once, and what nobody expected with where it comes from."""

import logging

import pytest

from kubeapi.complaints import Complaints
from kubeapi.errors import Conflict, Forbidden, Unauthorized, Unreachable, explain

log = logging.getLogger("tests.complaints")


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    found = [(record.levelname, record.getMessage()) for record in caplog.records]
    caplog.clear()
    return found


def test_once_per_text_until_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    complaints = Complaints(log, "do this")
    complaints.healed()
    assert lines(caplog) == []
    for error in (Unreachable("a"), Unreachable("b"), Unreachable("a")):
        complaints.failed(error, 0.25)
    assert lines(caplog) == [
        ("WARNING", "do this: a; again in 0.2 s"),
        ("WARNING", "do this: b; again in 0.2 s"),
        ("DEBUG", "do this: a; again in 0.2 s"),
    ]
    complaints.healed()
    complaints.healed()
    assert lines(caplog) == [("INFO", "do this: works again")]
    complaints.failed(Unreachable("a"), 1)
    assert lines(caplog) == [("WARNING", "do this: a; again in 1.0 s")]


def test_a_text_that_is_another_each_time_doesnt_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    complaints = Complaints(log, "do this")
    for number in range(1000):
        complaints.failed(Unreachable(f"request {number}"), 1)
    assert len(caplog.records) == 16


def test_a_mistake_of_our_own_shows_where_it_was_made(caplog: pytest.LogCaptureFixture) -> None:
    complaints = Complaints(log, "do this")
    try:
        raise KeyError("spec")
    except KeyError as error:
        complaints.failed(error, 1)
    complaints.failed(Unreachable("a"), 1)
    assert "Traceback" in caplog.text
    assert [record.exc_info is not None for record in caplog.records] == [True, False]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            Forbidden(403, "Forbidden", "x may not"),
            "x may not (403 Forbidden); apply deploy/manifests, and check the ClusterRole of this user and its binding",
        ),
        (
            Unauthorized(401, "Unauthorized", "no"),
            "no (401 Unauthorized); check the service account (or the kubeconfig) whose credentials are used",
        ),
        (Conflict(409, "Conflict", "changed"), "changed (409 Conflict)"),
        (ValueError("odd"), "odd"),
    ],
)
def test_what_to_do(error: Exception, text: str) -> None:
    assert explain(error) == text
