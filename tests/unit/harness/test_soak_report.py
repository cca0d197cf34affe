"""The soak's table says well only when everything passed and nothing was held twice, lost or left behind."""

from pathlib import Path

import pytest

from tests.soak.report import Case, Run, is_well, read_cases, render

JUNIT = """<testsuites><testsuite name="pytest">
<testcase classname="tests.soak.test_stream" name="test_kills" time="12.5">
  <properties><property name="pods" value="60"/><property name="kills" value="5"/>
  <property name="double_holds" value="{doubles}"/><property name="looks" value="900"/></properties>{result}
</testcase>
<testcase classname="tests.soak.test_mig" name="test_skipped" time="0"><skipped message="needs 1.37.2"/></testcase>
</testsuite></testsuites>"""


def runs(tmp_path: Path, doubles: int = 0, result: str = "") -> list[Run]:
    path = tmp_path / "junit.xml"
    path.write_text(JUNIT.format(doubles=doubles, result=result))
    return [Run("1.36.3", "soak", list(read_cases(path)), 90.0)]


@pytest.mark.parametrize(
    ("doubles", "result", "well"),
    [
        (0, "", True),
        (1, "", False),
        (0, '<failure message="assert 1 == 2&#10;more"/>', False),
        (0, '<error message="teardown"/>', False),
    ],
)
def test_what_is_well(tmp_path: Path, doubles: int, result: str, well: bool) -> None:
    found = runs(tmp_path, doubles, result)
    text = render(found, {"gpuclaim": "0.1.0"})
    assert is_well(found) is well
    assert ("NOT WELL" not in text) is well
    assert ("FAILED 1.36.3 test_stream.test_kills" in text) is bool(result)


def test_the_table(tmp_path: Path) -> None:
    lines = render(runs(tmp_path), {"gpuclaim": "0.1.0", "runc": "1.1.5"}).splitlines()
    assert "gpuclaim 0.1.0, runc 1.1.5" in lines
    case = next(line for line in lines if "test_stream.test_kills" in line).split()
    assert case == ["test_stream.test_kills", "passed", "0:12", "60", "5", "0"]
    assert next(line for line in lines if "TOTAL" in line).split()[:6] == [
        *("1.36.3", "TOTAL", "1", "passed,", "1", "skipped"),
    ]
    assert "skipped 1.36.3 test_mig.test_skipped: needs 1.37.2" in lines
    assert "1.36.3 test_stream.test_kills: looks 900" in lines


def test_a_run_without_any_case_is_not_well() -> None:
    assert not is_well([])
    assert not is_well([Run("1.36.3", "soak", [Case("pytest", 0, problem="it ended without a result")], 1)])


def test_a_case_that_failed_at_its_end_has_failed(tmp_path: Path) -> None:
    path = tmp_path / "junit.xml"
    entry = '<testcase classname="a.test_b" name="test_c" time="1">{}</testcase>'
    for parts in (("", '<error message="left"/>'), ('<error message="left"/>', "")):
        path.write_text(f"<testsuite>{''.join(entry.format(part) for part in parts)}</testsuite>")
        assert [case.problem for case in read_cases(path)] == ["left"]
