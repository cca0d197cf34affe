"""The in-memory API server as a process of its own, so that it doesn't share an interpreter with who measures.

``python -m tests.bench.fake_apiserver FOLDER`` makes its certificates in FOLDER and prints its URL. For each line
that it reads it prints the requests so far, as JSON of "verb plural" to a number; it ends with its input.
"""

import asyncio
import json
import logging
import sys
from pathlib import Path

from gpuclaim.demo.apiserver import FakeApiServer
from tests.contract.kubeapi.certificates import make_certificates


async def main(folder: Path) -> None:
    # It reports every client that ends a watch before it has begun.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    certificates = await asyncio.to_thread(make_certificates, folder)
    async with FakeApiServer(tls=certificates.server) as server:
        print(server.url, flush=True)
        while await asyncio.to_thread(sys.stdin.readline):
            print(json.dumps({" ".join(key): count for key, count in server.requests.items()}), flush=True)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
