"""Fixtures of the tests that run on several ranks.

muster-run starts this suite on every rank; all ranks run the same tests in the
same order, so a test may call collectives. See verbs_test.sh.
"""

import pytest

import muster


@pytest.fixture(scope="session", autouse=True)
def world():
    """The default group, for the whole session."""
    muster.init(timeout=60)
    yield
    muster.destroy()


@pytest.fixture
def rank():
    return muster.get_rank()


@pytest.fixture
def size():
    return muster.get_world_size()
