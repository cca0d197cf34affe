"""`gpuclaim kubeletplugin` whose SQLite keeps next to nothing of the ledger in memory."""

import sys

from kubeletplugin.app.main import main
from kubeletplugin.ledger import files

files.CACHE_KIBIBYTES = 1

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
