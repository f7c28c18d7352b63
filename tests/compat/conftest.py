from tests.hub.conftest import open_logic

__all__ = ["open_logic"]
