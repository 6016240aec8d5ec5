"""The book of rentals: written before and after, closed for those who set out before a teardown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from airflow_llmsched import codec
from airflow_llmsched.control.lease_book import LeaseBook, Rental, RentalEnd, RentalEnding, RentalIntent
from airflow_llmsched.domain.identity import LeaseKey
from airflow_llmsched.errors import AbandonedError, StoreError
from airflow_llmsched.testing.cloud_contract import OTHER_RUN, RUN
from tests.support.lease_house import intent_of
from tests.support.memory_store import MemoryStore


def intend(book: LeaseBook, *, generation: int = 0, since_s: float = 100.0) -> RentalIntent:
    return book.intend(intent_of, generation=generation, since_s=since_s)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def book(store: MemoryStore) -> LeaseBook:
    return LeaseBook(store, RUN)


def test_rentals_are_counted_from_one_in_each_generation(book: LeaseBook) -> None:
    keys = [intend(book, generation=generation).key for generation in (0, 0, 1, 0)]
    assert [(key.generation, key.rental) for key in keys] == [(0, 1), (0, 2), (1, 1), (0, 3)]
    assert [rental.intent.key for rental in book.rentals()] == [keys[0], keys[1], keys[3], keys[2]]


def test_what_is_noted_comes_back_as_it_was(book: LeaseBook) -> None:
    intent = intend(book)
    assert book.open() == (Rental(intent=intent),)


def test_a_rental_is_open_until_its_end_is_noted_and_the_first_note_stays(book: LeaseBook) -> None:
    first, second = intend(book), intend(book)
    book.end(first.key, RentalEnding.RELEASED, reason="done", at_s=200.0)
    book.end(first.key, RentalEnding.REFUSED, reason="late", at_s=300.0)
    assert [rental.intent for rental in book.open()] == [second]
    ended = book.rentals()[0].end
    assert ended == RentalEnd(ending=RentalEnding.RELEASED, reason="done", at_s=200.0)


def test_two_workers_that_rent_at_once_get_keys_of_their_own(store: MemoryStore, book: LeaseBook) -> None:
    other = LeaseBook(store, RUN)

    def race(key: str) -> None:
        store.before_create = lambda _key: None
        intend(other)

    store.before_create = race
    assert intend(book).key.rental == 2
    assert len(book.open()) == 2


def test_whoever_set_out_before_the_book_was_closed_rents_nothing(book: LeaseBook) -> None:
    book.close(at_s=150.0)
    with pytest.raises(AbandonedError, match="torn down"):
        intend(book, since_s=150.0)
    assert book.open() == ()
    assert intend(book, since_s=150.1).key.rental == 2


@pytest.mark.parametrize("when", ["before_create", "after_create"])
def test_a_closing_at_any_moment_is_seen_by_one_of_the_two(store: MemoryStore, book: LeaseBook, when: str) -> None:
    seen: list[Rental] = []

    def close(_key: str) -> None:
        setattr(store, when, lambda _key: None)
        closer = LeaseBook(store, RUN)
        closer.close(at_s=500.0)
        seen.extend(closer.open())

    setattr(store, when, close)
    with pytest.raises(AbandonedError):
        intend(book, since_s=100.0)
    assert len(seen) == (when == "after_create")
    assert book.open() == ()


def test_the_newest_closing_counts(book: LeaseBook) -> None:
    assert book.closed_at_s() is None
    for at_s in (150.0, 1_750_000_000.125, 7.0, 150.0):
        book.close(at_s=at_s)
    assert book.closed_at_s() == 1_750_000_000.125


def test_books_of_other_runs_are_not_read(store: MemoryStore, book: LeaseBook) -> None:
    intend(LeaseBook(store, OTHER_RUN))
    assert book.rentals() == ()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda data: data[:-5], "is damaged"),
        (lambda data: codec.to_json(replace(codec.from_json(RentalIntent, data), v=2)), "format version 2"),
    ],
)
def test_a_record_that_cannot_be_read_is_no_absent_one(
    store: MemoryStore, book: LeaseBook, damage: Callable[[bytes], bytes], words: str
) -> None:
    intend(book)
    store.objects = {key: damage(data) for key, data in store.objects.items()}
    with pytest.raises(StoreError, match=words):
        book.open()


def test_a_rental_costs_its_price_from_the_intent_to_the_end_and_a_refused_one_nothing() -> None:
    intent = intent_of(LeaseKey(run=RUN, generation=0, rental=1))

    def cost_usd(end: RentalEnd | None) -> float:
        return Rental(intent=intent, end=end).cost_usd(100.0 + 2 * 3600.0)

    def ended(ending: RentalEnding) -> RentalEnd:
        return RentalEnd(ending=ending, reason="", at_s=100.0 + 3600.0)

    assert cost_usd(None) == pytest.approx(2 * 2 * 40.0)
    assert cost_usd(ended(RentalEnding.RELEASED)) == pytest.approx(2 * 40.0)
    assert cost_usd(ended(RentalEnding.REFUSED)) == 0.0


def torn(store: MemoryStore, key: LeaseKey, record: str) -> str:
    if record == "intended":
        torn(store, key, "copy")
    (name,) = [each for each in store.objects if each.endswith(f"r{key.rental:05d}/{record}.json")]
    store.objects[name] = store.objects[name][:-5]
    return name


def test_what_can_be_read_beside_a_damaged_record_is_read_and_the_record_named(
    store: MemoryStore, book: LeaseBook
) -> None:
    first, second, third = intend(book), intend(book), intend(book)
    book.end(third.key, RentalEnding.RELEASED, reason="done", at_s=200.0)
    noted, ended = torn(store, first.key, "intended"), torn(store, third.key, "ended")
    pages = book.read_open()
    assert (pages.rentals, pages.lost) == ((Rental(intent=second),), (first.key,))
    assert [noted in words for words in pages.damage] == [True]
    pages = book.read()
    assert [(each.intent, each.end) for each in pages.rentals] == [(second, None), (third, None)]
    assert [name in words for name, words in zip((noted, ended), pages.damage, strict=True)] == [True, True]
    with pytest.raises(StoreError, match=ended):
        book.rentals()


def test_one_record_is_read_whatever_has_become_of_the_others(store: MemoryStore, book: LeaseBook) -> None:
    first, second = intend(book), intend(book)
    torn(store, first.key, "intended")
    assert book.intent(second.key) == second
    assert book.intent(LeaseKey(run=RUN, generation=0, rental=3)) is None
    with pytest.raises(StoreError, match="is damaged"):
        book.intent(first.key)
    assert [book.is_open(key) for key in (first.key, second.key)] == [True, True]
    book.end(first.key, RentalEnding.RELEASED, reason="done", at_s=200.0)
    assert [book.is_open(key) for key in (first.key, second.key)] == [False, True]
    assert not book.is_open(LeaseKey(run=RUN, generation=0, rental=3))


def test_a_record_that_is_removed_while_the_book_is_read_is_no_damage(store: MemoryStore, book: LeaseBook) -> None:
    first, second = intend(book), intend(book)
    get = store.get

    def get_late(key: str) -> bytes:
        store.objects.pop(next((each for each in store.objects if f"r{first.key.rental:05d}" in each), ""), None)
        return get(key)

    store.get = get_late  # type: ignore[method-assign]
    assert book.open() == (Rental(intent=second),)


def test_a_damaged_intent_is_read_from_its_copy_and_said_in_the_log(
    store: MemoryStore, book: LeaseBook, caplog: pytest.LogCaptureFixture
) -> None:
    intent, other = intend(book), intend(book)
    name = f"runs/{RUN}/leases/g0000-r00001/intended.json"
    store.objects[name] = b"{"
    assert book.rentals() == book.open() == (Rental(intent=intent), Rental(intent=other))
    assert book.intent(intent.key) == intent
    assert f"{name} is damaged" in caplog.text
    store.delete(name.replace("intended", "copy"))  # as in a book of an older version
    assert book.read().lost == (intent.key,)
