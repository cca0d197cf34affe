"""Which proxy a request goes through, by the environment; and that a request does."""

import pytest

from kubeapi.credentials import Connection, FixedConnection
from kubeapi.errors import Unreachable
from kubeapi.proxy import environment_proxy
from kubeapi.transport import Timeouts, Transport

PROXY = "http://proxy.example:3128"
CLUSTER = "https://10.96.0.1:443"


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "REQUEST_METHOD"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


def test_none_without_the_environments_word() -> None:
    assert environment_proxy(CLUSTER) is None


@pytest.mark.parametrize(
    ("variable", "url", "proxied"),
    [
        ("HTTPS_PROXY", CLUSTER, True),
        ("https_proxy", CLUSTER, True),
        ("HTTP_PROXY", CLUSTER, False),
        ("HTTP_PROXY", "http://api.example:8080", True),
        ("HTTPS_PROXY", "http://api.example:8080", False),
        ("ALL_PROXY", CLUSTER, False),
    ],
)
def test_each_scheme_has_its_own(monkeypatch: pytest.MonkeyPatch, variable: str, url: str, proxied: bool) -> None:
    monkeypatch.setenv(variable, PROXY)
    assert environment_proxy(url) == (PROXY if proxied else None)


@pytest.mark.parametrize("value", ["proxy.example:3128", PROXY])
def test_a_scheme_may_be_left_out(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("HTTPS_PROXY", value)
    assert environment_proxy(CLUSTER) == PROXY


def test_an_empty_value_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "")
    assert environment_proxy(CLUSTER) is None


@pytest.mark.parametrize(
    "url", ["https://localhost:6443", "https://127.0.0.1:6443", "https://127.8.9.1", "https://[::1]:6443"]
)
def test_this_machine_is_never_asked_for_through_one(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("HTTPS_PROXY", PROXY)
    assert environment_proxy(url) is None


@pytest.mark.parametrize(
    ("no_proxy", "url", "proxied"),
    [
        ("*", CLUSTER, False),
        ("10.96.0.1", CLUSTER, False),
        ("10.96.0.1:443", CLUSTER, False),
        ("10.96.0.2", CLUSTER, True),
        ("10.96.0.0/12", CLUSTER, False),
        ("192.168.0.0/16, 10.96.0.1/12", CLUSTER, False),
        ("192.168.0.0/16", CLUSTER, True),
        ("fd00::/8", CLUSTER, True),
        ("fd00::/8", "https://[fd00::1]:6443", False),
        ("fd00::1", "https://[fd00::1]:6443", False),
        (".example", "https://api.example:6443", False),
        ("api.example", "https://api.example:6443", False),
        ("example", "https://api.example:6443", False),
        ("example", "https://api.counterexample:6443", True),
        ("10.0.0.0/8", "https://api.example:6443", True),
        ("nonsense/8,,10.96.0.0/12", CLUSTER, False),
        ("", CLUSTER, True),
    ],
)
def test_exceptions(monkeypatch: pytest.MonkeyPatch, no_proxy: str, url: str, proxied: bool) -> None:
    monkeypatch.setenv("HTTPS_PROXY", PROXY)
    monkeypatch.setenv("NO_PROXY", no_proxy)
    assert environment_proxy(url) == (PROXY if proxied else None)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("own", "environment"), [("http://127.0.0.1:1", "http://127.0.0.1:2"), ("", "http://127.0.0.1:1")]
)
async def test_a_request_goes_through_it(monkeypatch: pytest.MonkeyPatch, own: str, environment: str) -> None:
    """The kubeconfig's before the environment's. Nothing listens at either, and the server's name has no address."""
    monkeypatch.setenv("HTTP_PROXY", environment)
    transport = Transport(FixedConnection(Connection("http://api.invalid", proxy=own)), Timeouts(), "test")
    try:
        with pytest.raises(Unreachable) as raised:
            await transport.call("GET", "/version")
    finally:
        await transport.close()
    assert "127.0.0.1:1" in str(raised.value.__cause__)
