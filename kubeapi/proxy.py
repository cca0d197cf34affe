"""The proxy that the environment names for an API server: HTTPS_PROXY, HTTP_PROXY and NO_PROXY as every Kubernetes
client reads them.

The standard library's reading, with what it lacks: NO_PROXY may hold networks (10.96.0.0/12), which is how clusters
keep their own API server's address from the proxy, and a proxy may come without a scheme. Not aiohttp's trust_env,
which also reads ~/.netrc for each request. This machine itself is never asked for through a proxy.
"""

import contextlib
import ipaddress
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass


def environment_proxy(url: str) -> str | None:
    """The proxy's URL; None for a direct connection."""
    proxies = getproxies()
    parts = urlsplit(url)
    proxy = proxies.get(parts.scheme, "")
    host = parts.hostname or ""
    if not proxy or host == "localhost" or _is_excepted(host, proxies.get("no", "")) or proxy_bypass(parts.netloc):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _is_excepted(host: str, no_proxy: str) -> bool:
    """Whether ``host`` is an address of this machine or of one of the networks."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    if address.is_loopback:
        return True
    for entry in no_proxy.split(","):
        with contextlib.suppress(ValueError):
            if address in ipaddress.ip_network(entry.strip(), strict=False):
                return True
    return False
