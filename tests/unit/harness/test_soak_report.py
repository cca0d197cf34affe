"""The soak's table says well only when everything passed and nothing was held twice, lost or left behind."""

from pathlib import Path

import pytest

from tests.soak.report import COUNTS, Case, Run, is_well, read_cases, render

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
    assert case == ["test_stream.test_kills", "passed", "0:12", "60", "5", "0", "-", "-"]
    assert next(line for line in lines if "TOTAL" in line).split()[:6] == [
        *("1.36.3", "TOTAL", "1", "passed,", "1", "skipped"),
    ]
    assert "skipped 1.36.3 test_mig.test_skipped: needs 1.37.2" in lines
    assert "1.36.3 test_stream.test_kills: looks 900" in lines


def test_a_run_without_any_case_is_not_well() -> None:
    assert not is_well([])
    assert not is_well([Run("1.36.3", "soak", [Case("pytest", 0, problem="it ended without a result")], 1)])


def test_each_suite_must_have_a_case_that_passed(tmp_path: Path) -> None:
    """One run that went well says nothing of another."""
    skipped = Run("1.34.4", "cluster", [Case("a.test_b", 0, skipped="needs root")], 1)
    found = [*runs(tmp_path), skipped]
    assert not is_well(found)
    lines = render(found, {}).splitlines()
    assert "NOT WELL 1.34.4 cluster: no case passed" in lines
    assert lines[-1] == "NOT WELL: 0 double holds, - lost claims, - leftovers; 1 of 3 cases passed, 0 failed"


ALL_COUNTED = {"double_holds": "0", "lost_claims": "0", "leftovers": "0"}


@pytest.mark.parametrize("name", COUNTS)
def test_what_nobody_counted_is_not_well(name: str) -> None:
    def run(figures: dict[str, str], **rest: str) -> Run:
        others = Case("a.other", 1, {"pods": "3"})
        return Run("1.36.3", "soak", [Case("a.test_b", 1, figures, **rest), others], 2, expected=COUNTS)

    words = name.replace("_", " ")
    assert is_well([run(ALL_COUNTED)])
    rest = {key: value for key, value in ALL_COUNTED.items() if key != name}
    for uncounted in (run(rest), run({**rest, name: "unknown"}), run(ALL_COUNTED, skipped="for now")):
        assert not is_well([uncounted])
        assert f"NOT WELL 1.36.3 soak: nobody counted {words}" in render([uncounted], {})
    assert f"- {words}" in render([run(rest)], {}).splitlines()[-1]
    assert not is_well([run({**ALL_COUNTED, name: "1"})])


def test_a_failed_case_tells_what_it_counted(tmp_path: Path) -> None:
    """A count that is only told once all is well would always be 0."""
    found = runs(tmp_path, doubles=2, result='<failure message="two pods"/>')
    assert render(found, {}).splitlines()[-1].startswith("NOT WELL: 2 double holds")


def test_a_case_that_failed_at_its_end_has_failed(tmp_path: Path) -> None:
    path = tmp_path / "junit.xml"
    entry = '<testcase classname="a.test_b" name="test_c" time="1">{}</testcase>'
    for parts in (("", '<error message="left"/>'), ('<error message="left"/>', "")):
        path.write_text(f"<testsuite>{''.join(entry.format(part) for part in parts)}</testsuite>")
        assert [case.problem for case in read_cases(path)] == ["left"]
