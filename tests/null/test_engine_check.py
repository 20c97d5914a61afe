"""What the engine refuses for good, and what only for now."""

import pytest
from fakes import END, VOCABULARY, HashRunner

from bosquet.errors import InvalidParameter, Overloaded
from bosquet.radix_cache.pool import PagePool
from bosquet.radix_cache.tree import RadixCache
from bosquet.runtime.engine import Bounds, Engine
from bosquet.runtime.limits import Limits, Vocabulary
from bosquet.types import Request, SamplingParams


def request(number: int, n: int) -> Request:
    return Request(id=str(number), ids=[1, 2], sampling=SamplingParams(n=n, max_tokens=1))


@pytest.mark.parametrize("waiting", [1, 4])
def test_only_a_request_that_could_fit_an_empty_queue_is_told_to_try_again(waiting: int):
    engine = Engine(
        HashRunner(50),
        RadixCache(PagePool(50)),
        Limits(64, 2, ageing_s=5.0),
        Bounds(VOCABULARY, 800, max_waiting=waiting),
        Vocabulary([b"?"] * VOCABULARY, frozenset({END}), (END,)),
    )
    with pytest.raises(InvalidParameter) as never:
        engine.check(request(0, waiting + 1))
    assert never.value.field == "n"
    engine.check(request(1, waiting))
    engine.add(request(1, waiting))
    with pytest.raises(Overloaded):
        engine.check(request(2, 1))
    with pytest.raises(InvalidParameter):  # a full queue does not change what could never fit
        engine.check(request(3, waiting + 1))
    while not engine.idle:
        engine.step()
    engine.check(request(4, waiting))
