"""A fence for what has no second instance."""

import contextlib


class AlwaysHeld:
    def held(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()
