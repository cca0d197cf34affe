"""Answers and exceptions as callers see them."""

import json

import aiohttp
import pytest
import yarl
from multidict import CIMultiDict, CIMultiDictProxy

from kubeapi.errors import AlreadyExists, ApiError, ServerError, TooManyRequests
from kubeapi.failures import from_exception, from_response, from_status_object

URL = "https://10.0.0.1:443"
_PROXY = yarl.URL("http://user:secret@proxy:3128")
_PROXIED = aiohttp.RequestInfo(_PROXY, "CONNECT", CIMultiDictProxy(CIMultiDict()), _PROXY)


def _status(**fields: object) -> bytes:
    return json.dumps({"kind": "Status", "message": "because", **fields}).encode()


@pytest.mark.parametrize(
    ("headers", "body", "seconds"),
    [
        ({"Retry-After": "3"}, _status(), 3.0),
        ({}, _status(details={"retryAfterSeconds": 4}), 4.0),
        ({"Retry-After": "3"}, _status(details={"retryAfterSeconds": 4}), 3.0),
        ({"Retry-After": "Fri, 31 Dec 1999 23:59:59 GMT"}, _status(), None),
        ({"Retry-After": "5"}, b"busy", 5.0),
        ({}, _status(details={"retryAfterSeconds": 0}), None),
        ({}, _status(details=None), None),
    ],
)
def test_when_to_come_back(headers: dict[str, str], body: bytes, seconds: float | None) -> None:
    error = from_response(URL, 429, "Too Many Requests", headers, body)
    assert isinstance(error, TooManyRequests)
    assert error.retry_after == seconds


def test_a_status_code_of_its_own_wins() -> None:
    error = from_status_object({"code": 504, "reason": "Timeout", "message": "too large resource version"}, status=500)
    assert isinstance(error, ServerError)
    assert error.status == 504


def test_already_exists_is_told_from_other_conflicts() -> None:
    assert type(from_status_object({"code": 409, "reason": "AlreadyExists"})) is AlreadyExists
    assert type(from_status_object({"code": 418})) is ApiError


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ConnectionResetError(104, "Connection reset by peer"), "connection reset by peer"),
        (TimeoutError(), "no answer within the time limit"),
        (aiohttp.ServerDisconnectedError(), "it closed the connection before it answered"),
        (aiohttp.ClientPayloadError("x"), "the connection was cut in the middle of an answer"),
        (aiohttp.InvalidURL("x"), "InvalidURL: x"),
        (aiohttp.InvalidURL("http://user:secret@proxy:3128:1"), "InvalidURL: http://proxy:3128:1"),
        (
            aiohttp.ClientHttpProxyError(_PROXIED, (), status=407, message="Proxy Authentication Required"),
            "the proxy refused: 407 Proxy Authentication Required",
        ),
        (
            aiohttp.ClientResponseError(_PROXIED, (), status=400, message="bad header"),
            "ClientResponseError: 400 bad header",
        ),
    ],
)
def test_one_line_for_each_way_not_to_answer(error: Exception, text: str) -> None:
    assert str(from_exception(URL, error)) == f"reach API server {URL}: {text}"
