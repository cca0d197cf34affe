"""Which files of others are named, and that they are read once."""

import os
from pathlib import Path

import pytest

from kubeletplugin.cdi.strangers import Strangers

CLAIM = "11111111-2222-3333-4444-555555555555"
OTHER = "99999999-2222-3333-4444-555555555555"


@pytest.mark.parametrize(
    ("name", "content", "word"),
    [
        ("x.yaml", "cdiVersion: 0.6.0\nkind: a.com/b\n", "a.com/b"),
        ("x.json", '{"cdiVersion":"0.6.0","kind":"v/class"}', "v/class"),
        ("x.yaml", "kind: 'vendor.com/c' # comment\n", "vendor.com/c"),
        ("x.yaml", "kind: vendor.com/class\n", ""),
        ("x.txt", "kind: a.com/b\n", ""),
        ("x.json", "", ""),
        ("x.json", '{"kind":', ""),
        ("x.json", '{"kind":"k8s.gpu.nvidia.com/driver"}', "second time"),
        ("k8s.gpu.nvidia.com-driver.json", '{"kind":"k8s.gpu.nvidia.com/driver"}', ""),
        (f"k8s.gpu.nvidia.com-claim_{CLAIM}.json", f'{{"kind":"k8s.gpu.nvidia.com/claim","x":"{CLAIM}"}}', ""),
        (f"k8s.gpu.nvidia.com-claim_{CLAIM}.yaml", f"kind: k8s.gpu.nvidia.com/claim\nname: {CLAIM}-gpu-0\n", "second"),
        (f"k8s.gpu.nvidia.com-claim_{OTHER}.yaml", f"kind: k8s.gpu.nvidia.com/claim\nname: {OTHER}-gpu-0\n", ""),
    ],
)
def test_what_harms_others_is_named(tmp_path: Path, name: str, content: str, word: str) -> None:
    (tmp_path / name).write_text(content)
    problems = Strangers(tmp_path).look([CLAIM])
    assert len(problems) == bool(word)
    assert all(word in problem and str(tmp_path / name) in problem for problem in problems)


def test_a_deadly_file_in_another_folder(tmp_path: Path) -> None:
    other = tmp_path / "etc"
    other.mkdir()
    (other / "x.yaml").write_text("kind: a.com/b\n")
    (other / "y.yaml").write_text("kind: k8s.gpu.nvidia.com/driver\n")
    (problem,) = Strangers(tmp_path, [other, tmp_path / "missing"]).look([])
    assert str(other / "x.yaml") in problem


def test_what_has_not_changed_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("kind: a.com/b\n")
    strangers = Strangers(tmp_path)
    first = strangers.look([])
    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", lambda *_: pytest.fail("opened again"))
        assert strangers.look([]) == first
    path.write_text("kind: a.com/both\n")
    assert strangers.look([]) == ()
    path.unlink()
    assert strangers.look([]) == ()


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    """Opening a FIFO waits for a writer: the look would never end, and no other either."""
    os.mkfifo(tmp_path / "x.json")
    (tmp_path / "y.json").symlink_to(tmp_path / "x.json")
    (tmp_path / "z.yaml").write_text("kind: a.com/b\n")
    (problem,) = Strangers(tmp_path).look([])
    assert "z.yaml" in problem
