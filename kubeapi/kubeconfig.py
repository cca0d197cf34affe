"""Kubeconfig files, read by the official client's loader (contexts, merged files, exec plugins, OIDC).

Kept apart and imported only where a kubeconfig is used: importing anything of ``kubernetes.aio`` runs the whole
package, the synchronous client included, and costs 20 MB and 0.4 s that an agent in a pod doesn't need to spend.
"""

import difflib
import os
from typing import Any

import yaml
from kubernetes.aio.client import Configuration
from kubernetes.aio.config import ConfigException, load_kube_config

from kubeapi.credentials import Connection, tls_context
from kubeapi.errors import ConfigError


class KubeconfigSource:
    """A context of one or several kubeconfig files. Credentials are fetched anew (exec plugin run, token file read)
    after a 401, not before: how long they live is known for certain only to the server."""

    def __init__(self, paths: str, context: str | None, connection: Connection) -> None:
        self._paths = paths
        self._context = context
        self._connection = connection

    @classmethod
    async def load(cls, paths: str, context: str | None = None) -> "KubeconfigSource":
        """``paths`` as in $KUBECONFIG, joined by os.pathsep. Raises ConfigError."""
        return cls(paths, context, await _load(paths, context))

    async def current(self) -> Connection:
        return self._connection

    async def renew(self, rejected: Connection) -> Connection:
        if rejected is self._connection:
            self._connection = await _load(self._paths, self._context)
        return self._connection


async def _load(paths: str, context: str | None) -> Connection:
    _check(paths, context)
    configuration: Any = Configuration()
    configuration.host = ""
    try:
        load: Any = load_kube_config
        loader = await load(
            config_file=paths, context=context, client_configuration=configuration, persist_config=False
        )
    except ConfigException as e:
        raise ConfigError(f"read kubeconfig {paths}: {_plain(e)}") from e
    except (OSError, ValueError, TypeError, AttributeError, KeyError) as e:
        raise ConfigError(f"read kubeconfig {paths}: {type(e).__name__}: {e}") from e
    authorization = configuration.api_key.get("BearerToken", "")
    _check_exec(loader, authorization, configuration)
    return _connection(paths, configuration, authorization)


def _connection(paths: str, configuration: Any, authorization: str) -> Connection:
    url = (configuration.host or "").rstrip("/")
    if not url.startswith(("https://", "http://")):
        raise ConfigError(f"read kubeconfig {paths}: the cluster's server {url!r} isn't an http or https URL")
    context = None
    if url.startswith("https://"):
        context = tls_context(cafile=configuration.ssl_ca_cert, verify=configuration.verify_ssl)
        if configuration.cert_file:
            try:
                context.load_cert_chain(configuration.cert_file, configuration.key_file)
            except OSError as e:
                raise ConfigError(f"read the client certificate of kubeconfig {paths}: {e}") from e
    return Connection(
        url, authorization.strip(), context, configuration.tls_server_name or "", configuration.proxy or ""
    )


def _check(paths: str, context: str | None) -> None:
    """What the loader would only log, or report without saying where."""
    files = [os.path.expanduser(p) for p in paths.split(os.pathsep) if p]
    present = [f for f in files if os.path.exists(f)]
    if not present:
        raise ConfigError(f"read kubeconfig {paths}: no such file")
    contexts: list[str] = []
    for file in present:
        contexts += _contexts(file)
    if context is not None and context not in contexts:
        near = difflib.get_close_matches(context, contexts, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(contexts) or 'none'}"
        raise ConfigError(f"read kubeconfig {paths}: no context {context!r}; {hint}")


def _contexts(file: str) -> list[str]:
    try:
        with open(file, encoding="utf-8") as stream:
            content = yaml.safe_load(stream)
    except OSError as e:
        raise ConfigError(f"read kubeconfig {file}: {e.strerror}") from e
    except (yaml.YAMLError, UnicodeDecodeError) as e:
        raise ConfigError(f"read kubeconfig {file}: not YAML: {' '.join(str(e).split())}") from e
    if not isinstance(content, dict):
        raise ConfigError(f"read kubeconfig {file}: not a kubeconfig (no mapping at its top)")
    entries = content.get("contexts")
    return [str(e.get("name", "")) for e in entries or [] if isinstance(e, dict)] if isinstance(entries, list) else []


def _check_exec(loader: Any, authorization: str, configuration: Any) -> None:
    """The loader logs a failing exec plugin and goes on without credentials; the server would say only 401."""
    user = getattr(loader, "_user", None)
    if user is None or "exec" not in user or authorization or configuration.cert_file:
        return
    command = user["exec"].safe_get("command") if user["exec"] is not None else None
    raise ConfigError(f"get credentials: the kubeconfig's exec plugin {command!r} gave none; run it by hand to see why")


def _plain(error: Exception) -> str:
    return " ".join(str(error).split())
