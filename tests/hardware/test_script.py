"""The whole script on this machine's GPU (see __main__.py); it skips with the reason that the script gives."""

import pytest

from tests.hardware.__main__ import main

pytestmark = pytest.mark.hardware


@pytest.mark.timeout(120)
def test_the_claim_route_on_a_real_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    status = main([])
    report = capsys.readouterr().out
    if status == 2:
        pytest.skip(report.strip())
    assert status == 0, report
