"""Tables in which equal objects are one object."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ferrule.base import interning
from ferrule.base.interning import Entry, Table, forget


class Thing:
    """Something that can be referred to weakly."""


def test_a_dead_object_is_found_no_more() -> None:
    table, thing = Table(), Thing()
    table.remember("key", thing)
    assert table.find("key") is thing
    del thing
    assert table.find("key") is None
    assert not table


def test_who_comes_second_gets_what_the_first_made() -> None:
    """Two threads find none, and make one each."""
    table, first, second = Table(), Thing(), Thing()
    assert table.remember("key", first) is first
    assert table.remember("key", second) is first
    del second
    assert table.find("key") is first


def test_what_took_the_place_of_an_object_outlives_it() -> None:
    table, old, new = Table(), Thing(), Thing()
    table.remember("key", old)
    entry = table["key"]
    del old
    table["key"] = entry  # as long as nobody was told that it is gone
    assert table.remember("key", new) is new
    forget(entry)
    assert table.find("key") is new


class Key:
    """A key whose hashing runs Python, and so other threads."""

    def __init__(self) -> None:
        self.meanwhile: list[Callable[[], object]] = []

    def __hash__(self) -> int:
        if self.meanwhile:
            self.meanwhile.pop(0)()
        return 1


@pytest.mark.parametrize("is_replaced", [True, False])
def test_another_thread_changes_an_entry_while_it_is_removed(is_replaced: bool) -> None:
    table, key, old, new = Table(), Key(), Thing(), Thing()
    table.remember(key, old)
    entry = table[key]

    def replace() -> None:
        table.clear()
        if is_replaced:
            table[key] = other

    other = Entry(new)
    key.meanwhile = [replace]
    forget(entry)
    assert list(table.values()) == ([other] if is_replaced else [])


def test_no_key_is_hashed_when_the_process_ends() -> None:
    """An object may outlive what hashing its key takes."""
    table, key, thing = Table(), Key(), Thing()
    table.remember(key, thing)
    (entry,) = table.values()
    key.meanwhile = [lambda: pytest.fail("its key was hashed")]
    interning.forget(entry, lambda: True)
    assert key.meanwhile.pop()
