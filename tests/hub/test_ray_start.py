"""What trieye does beside starting Ray."""

import stat

from trieye.hub.ray_start import keep_token_private


def test_the_token_of_ray_is_closed_to_others(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH", raising=False)
    keep_token_private()  # there may be none
    token = tmp_path / ".ray" / "auth_token"
    token.parent.mkdir()
    token.write_text("0" * 64)
    token.chmod(0o644)
    keep_token_private()
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
