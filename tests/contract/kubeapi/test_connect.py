"""Finding the API server and staying known to it."""

import asyncio
import asyncio.sslproto
import gc
import shutil
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuclaim.demo.apiserver import FakeApiServer
from kubeapi.client import NODES
from kubeapi.credentials import ServiceAccount
from kubeapi.errors import ConfigError, Unauthorized, Unreachable
from kubeapi.rest import RestKubeApi, connect
from kubeapi.transport import TLS_READ_BUFFER
from tests.contract.kubeapi.certificates import Certificates, make_certificates

Json = dict[str, Any]
pytestmark = pytest.mark.anyio


def _kubeconfig(
    path: Path, url: str, *, user: dict[str, Any] | None = None, cluster: dict[str, Any] | None = None
) -> str:
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [
            {"name": "here", "context": {"cluster": "c", "user": "u"}},
            {"name": "elsewhere", "context": {"cluster": "d", "user": "u"}},
        ],
        "clusters": [
            {"name": "c", "cluster": {"server": url, **(cluster or {})}},
            {"name": "d", "cluster": {"server": "http://127.0.0.1:1"}},
        ],
        "users": [{"name": "u", "user": user or {}}],
    }
    path.write_text(yaml.safe_dump(content))
    return str(path)


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody's real kubeconfig is ever read."""
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("KUBECONFIG", "/nonexistent")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    if shutil.which("openssl") is None:
        pytest.skip("openssl isn't there to make certificates")
    return make_certificates(tmp_path_factory.mktemp("tls"))


def _service_account(folder: Path, certificates: Certificates, token: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "ca.crt").write_bytes(certificates.ca.read_bytes())
    (folder / "token").write_text(token)
    return folder


def _environ(server: FakeApiServer) -> dict[str, str]:
    host, port = server.url.removeprefix("https://").split(":")
    return {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}


async def _node_name(api: RestKubeApi) -> str:
    async with api:
        return str((await api.get(NODES, "n1"))["metadata"]["name"])


async def test_flag_before_environment_before_home(server: FakeApiServer, tmp_path: Path) -> None:
    server.put(NODES, {"metadata": {"name": "n1"}})
    good = _kubeconfig(tmp_path / "good", server.url)
    bad = str(tmp_path / "nothing")
    assert await _node_name(await connect(good, environ={"KUBECONFIG": bad})) == "n1"
    assert await _node_name(await connect(environ={"KUBECONFIG": good})) == "n1"
    with pytest.raises(ConfigError, match=f"read kubeconfig {bad}: no such file"):
        await connect(bad, environ={"KUBECONFIG": good})
    (tmp_path / "home" / ".kube").mkdir()
    shutil.copy(good, tmp_path / "home" / ".kube" / "config")
    assert await _node_name(await connect(environ={})) == "n1"


async def test_a_chosen_context(server: FakeApiServer, tmp_path: Path) -> None:
    path = _kubeconfig(tmp_path / "config", server.url)
    async with await connect(path, "elsewhere") as api:
        with pytest.raises(Unreachable, match=r"http://127\.0\.0\.1:1: connection refused"):
            await api.get(NODES, "n1")
    with pytest.raises(ConfigError, match=r"no context 'elswhere'; did you mean 'elsewhere'\?"):
        await connect(path, "elswhere")
    with pytest.raises(ConfigError, match="no context 'x'; it has here, elsewhere"):
        await connect(path, "x")


async def test_merged_files(server: FakeApiServer, tmp_path: Path) -> None:
    server.put(NODES, {"metadata": {"name": "n1"}})
    good = _kubeconfig(tmp_path / "good", server.url)
    assert await _node_name(await connect(environ={"KUBECONFIG": f"{tmp_path / 'none'}:{good}"})) == "n1"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (": :\n\t-", "not YAML"),
        ("[]", "not a kubeconfig"),
        ("{}", "Expected key"),
        ("contexts: 7\ncurrent-context: a\nclusters: []\nusers: []", r"read kubeconfig .*config"),
        ("current-context: a\ncontexts: []\nclusters: []\nusers: []", "object with name a"),
    ],
)
async def test_a_bad_kubeconfig_is_named_with_its_fault(tmp_path: Path, content: str, complaint: str) -> None:
    (tmp_path / "config").write_text(content)
    with pytest.raises(ConfigError, match=complaint) as raised:
        await connect(str(tmp_path / "config"))
    assert str(tmp_path / "config") in str(raised.value)
    assert "\n" not in str(raised.value)


async def test_a_server_that_is_no_url(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="server 'localhost:6443' isn't an http or https URL"):
        await connect(_kubeconfig(tmp_path / "config", "localhost:6443"))


async def test_nothing_at_all_says_what_to_do() -> None:
    with pytest.raises(ConfigError, match=r"no --kubeconfig, no \$KUBECONFIG, not in a pod, no ~/\.kube/config"):
        await connect(environ={})


async def test_a_token_of_a_kubeconfig(server: FakeApiServer, tmp_path: Path) -> None:
    server.put(NODES, {"metadata": {"name": "n1"}})
    server.faults.tokens = {"right"}
    assert await _node_name(await connect(_kubeconfig(tmp_path / "a", server.url, user={"token": "right"}))) == "n1"
    async with await connect(_kubeconfig(tmp_path / "b", server.url, user={"token": "wrong"})) as api:
        with pytest.raises(Unauthorized):
            await api.get(NODES, "n1")
    assert server.requests["get", "nodes"] == 3, "one more try with credentials read anew"


async def test_an_exec_plugin_is_asked_again_after_a_401(server: FakeApiServer, tmp_path: Path) -> None:
    server.put(NODES, {"metadata": {"name": "n1"}})
    token, plugin = tmp_path / "token", tmp_path / "plugin"
    token.write_text("one")
    plugin.write_text(
        f"#!{sys.executable} -I\n"
        "import json\n"
        f"token = open({str(token)!r}).read()\n"
        'version = "client.authentication.k8s.io/v1"\n'
        'print(json.dumps({"apiVersion": version, "kind": "ExecCredential", "status": {"token": token}}))\n'
    )
    plugin.chmod(plugin.stat().st_mode | stat.S_IXUSR)
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(plugin)}}
    server.faults.tokens = {"one"}
    async with await connect(_kubeconfig(tmp_path / "config", server.url, user=user)) as api:
        await api.get(NODES, "n1")
        server.faults.tokens = {"two"}
        token.write_text("two")
        calls = await asyncio.gather(*(api.get(NODES, "n1") for _ in range(3)))
    assert [body["metadata"]["name"] for body in calls] == ["n1"] * 3


async def test_a_failing_exec_plugin_is_named(server: FakeApiServer, tmp_path: Path) -> None:
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "false"}}
    with pytest.raises(ConfigError, match="exec plugin 'false' gave none; run it by hand"):
        await connect(_kubeconfig(tmp_path / "config", server.url, user=user))


async def test_in_a_pod(certificates: Certificates, tmp_path: Path) -> None:
    folder = _service_account(tmp_path / "sa", certificates, "t1\n")
    async with FakeApiServer(tls=certificates.server) as server:
        server.put(NODES, {"metadata": {"name": "n1"}})
        server.faults.tokens = {"t1"}
        assert await _node_name(await connect(environ=_environ(server), service_account_dir=folder)) == "n1"


async def test_a_connection_is_small(certificates: Certificates, tmp_path: Path) -> None:
    """Each watched claim has one; asyncio's own buffer is eight times as large."""
    account = _service_account(tmp_path / "account", certificates, "token")
    async with FakeApiServer(seed=1, tls=certificates.server) as server:
        server.put(NODES, {"metadata": {"name": "n1"}})
        async with await connect(environ=_environ(server), service_account_dir=account) as api:
            await api.get(NODES, "n1")
            found = [item for item in gc.get_objects() if isinstance(item, asyncio.sslproto.SSLProtocol)]
            sizes = {len(protocol.__dict__["_ssl_buffer"]) for protocol in found}
    assert sizes == {TLS_READ_BUFFER}


async def test_a_server_of_another_ca_is_not_trusted(certificates: Certificates, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    others = make_certificates(tmp_path / "other")
    folder = _service_account(tmp_path / "sa", others, "t1")
    async with FakeApiServer(tls=certificates.server) as server:
        async with await connect(environ=_environ(server), service_account_dir=folder) as api:
            with pytest.raises(Unreachable) as raised:
                await api.get(NODES, "n1")
        assert str(raised.value).startswith(f"reach API server {server.url}: its TLS certificate isn't trusted: ")
        insecure = _kubeconfig(tmp_path / "config", server.url, cluster={"insecure-skip-tls-verify": True})
        server.put(NODES, {"metadata": {"name": "n1"}})
        assert await _node_name(await connect(insecure)) == "n1"


@pytest.mark.parametrize(
    ("missing", "complaint"),
    [("token", r"read .*/token: No such file"), ("ca.crt", r"read .*/ca\.crt: No such file")],
)
async def test_a_service_account_that_isnt_mounted(
    certificates: Certificates, tmp_path: Path, missing: str, complaint: str
) -> None:
    folder = _service_account(tmp_path / "sa", certificates, "t1")
    (folder / missing).unlink()
    environ = {"KUBERNETES_SERVICE_HOST": "::1", "KUBERNETES_SERVICE_PORT": "443"}
    with pytest.raises(ConfigError, match=complaint):
        await connect(environ=environ, service_account_dir=folder)


async def test_a_ca_that_is_none(certificates: Certificates, tmp_path: Path) -> None:
    folder = _service_account(tmp_path / "sa", certificates, "t1")
    (folder / "ca.crt").write_text("not PEM")
    environ = {"KUBERNETES_SERVICE_HOST": "::1", "KUBERNETES_SERVICE_PORT": "443"}
    with pytest.raises(ConfigError, match=r"read the CA of the API server from .*/ca\.crt: "):
        await connect(environ=environ, service_account_dir=folder)


async def test_the_token_is_read_anew_each_minute_and_after_a_401(certificates: Certificates, tmp_path: Path) -> None:
    folder = _service_account(tmp_path / "sa", certificates, "t1")
    now = 0.0
    source = ServiceAccount(
        directory=folder,
        environ={"KUBERNETES_SERVICE_HOST": "::1", "KUBERNETES_SERVICE_PORT": "443"},
        monotonic=lambda: now,
    )
    first = await source.current()
    assert (first.url, first.authorization) == ("https://[::1]:443", "Bearer t1")
    (folder / "token").write_text("t2")
    now = 59.0
    assert await source.current() is first
    now = 60.0
    second = await source.current()
    assert second.authorization == "Bearer t2"
    assert second.tls is first.tls, "the CA didn't change"
    (folder / "token").write_text("t3")
    assert (await source.renew(second)).authorization == "Bearer t3"
    assert (await source.renew(second)).authorization == "Bearer t3", "somebody else renewed it already"
    (folder / "token").unlink()
    now = 200.0
    assert (await source.current()).authorization == "Bearer t3", "better an old one than none"
