"""Collections in a frozen heap."""

import gc
import weakref

from fedsim.flower.heap import frozen_heap


class Node:
    pass


def cycle():
    node = Node()
    node.itself = node
    return weakref.ref(node)


def test_only_what_was_made_inside_is_collected_and_everything_afterwards():
    before = cycle()
    with frozen_heap():
        inside = cycle()
        gc.collect()
        assert inside() is None
        assert before() is not None
    gc.collect()
    assert before() is None


def test_an_error_leaves_nothing_frozen():
    try:
        with frozen_heap():
            raise ValueError
    except ValueError:
        assert gc.get_freeze_count() == 0
