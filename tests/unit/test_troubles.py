"""Trouble is told once for each text, and so is its end."""

import logging

import pytest

from kubeletplugin.errors import NotActiveError, RecoverableError
from kubeletplugin.troubles import Troubles

log = logging.getLogger("troubles")


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_each_text_once_until_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    troubles = Troubles(log)
    for text in ("disk full", "disk full", "read-only", "disk full"):
        troubles.failed("sweep", RecoverableError(text))
    troubles.failed("look", RecoverableError("disk full"))
    assert told(caplog) == ["sweep: disk full", "sweep: read-only"]
    caplog.clear()
    troubles.over("look")
    troubles.over("sweep")
    troubles.over("sweep")
    troubles.failed("sweep", RecoverableError("disk full"))
    assert told(caplog) == ["sweep: works again", "sweep: disk full"]


def test_what_has_worked_meanwhile_is_news_when_it_fails(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    troubles = Troubles(log)
    for _ in range(2):
        troubles.failed("sweep", RecoverableError("disk full"))
        troubles.forget("sweep")
    assert told(caplog) == ["sweep: disk full"] * 2


def test_what_nobody_foresaw_shows_its_origin_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    troubles = Troubles(log)
    for _ in range(2):
        troubles.failed("sweep", KeyError("x"))
    (record,) = caplog.records
    assert record.exc_info
    assert record.getMessage() == "sweep: an error that nobody foresaw"


def test_what_is_never_done_again_mutes_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """A claim ended while the disk was full; months later it is full again."""
    caplog.set_level(logging.INFO)
    troubles = Troubles(log)
    troubles.failed("check claim ns/a", RecoverableError("disk full"))
    troubles.only(["check claim ns/b"])
    troubles.failed("check claim ns/b", RecoverableError("disk full"))
    troubles.only(["check claim ns/b"])
    troubles.failed("check claim ns/b", RecoverableError("disk full"))
    assert told(caplog) == ["check claim ns/a: disk full", "check claim ns/b: disk full"]


def test_what_is_tried_fails_alone_but_for_a_lost_lease(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    troubles = Troubles(log)
    for error in (RecoverableError("disk full"), None):
        with troubles.trying("sweep"):
            if error is not None:
                raise error
    with pytest.raises(NotActiveError), troubles.trying("sweep"):
        raise NotActiveError("lost")
    assert told(caplog) == ["sweep: disk full", "sweep: works again"]
