"""Everything here runs on virtual time, each test on a loop of its own.

Not on anyio's: its runner is one per process while a session-scoped async fixture (the gRPC suites have one) is alive,
so that these tests would run in real time beside those.
"""

import inspect

import pytest

from tests.contract.prepare.virtual import run


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True
