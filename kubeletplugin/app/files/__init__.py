"""What the active instance keeps on this node's disk: the ledger's file, the CDI files, and watches of files."""
