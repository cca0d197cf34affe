"""The agent as its pod runs it: with the service account that is mounted there, so without a kubeconfig's loader.

``python -m tests.bench.agent_in_pod FOLDER FLAGS...``: FOLDER stands for the mount, whose place is fixed in a pod.
Nothing else differs from ``gpuclaim kubeletplugin FLAGS...``.
"""

import sys
from pathlib import Path

import kubeapi.rest
from kubeletplugin.app.main import main

if __name__ == "__main__":
    defaults = kubeapi.rest.connect.__kwdefaults__ or {}
    defaults["service_account_dir"] = Path(sys.argv[1])
    sys.exit(main(sys.argv[2:]))
