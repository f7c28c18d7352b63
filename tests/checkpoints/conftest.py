import pytest


@pytest.fixture(autouse=True)
def _own_key(own_key_home):
    """Every test signs with a key of its own."""
