"""What a connection shows of itself."""

from kubeapi.credentials import Connection


def test_neither_token_nor_proxy_password_is_shown() -> None:
    connection = Connection("https://10.0.0.1", "Bearer t0ken", proxy="http://user:secret@proxy:3128")
    shown = repr(connection)
    assert "t0ken" not in shown
    assert "secret" not in shown
    assert "https://10.0.0.1" in shown
