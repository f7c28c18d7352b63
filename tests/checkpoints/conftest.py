import pytest


@pytest.fixture(autouse=True)
def _own_key(own_key_home):
    """Give every test its own signing key."""
