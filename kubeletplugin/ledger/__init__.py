"""The node's record of claims, holds, intents and name bindings: one SQLite file."""
