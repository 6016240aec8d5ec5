from __future__ import annotations

from airflow_llmsched.domain.slots import accelerator_of, slice_slots, taken_of


def test_a_slices_number_says_of_which_accelerator_it_is() -> None:
    numbers = [slot for accelerator in range(16) for slot in (accelerator, *slice_slots(accelerator, 64))]
    assert len(set(numbers)) == len(numbers)
    assert [accelerator_of(slot) for slot in numbers] == [each for each in range(16) for _ in range(65)]


def test_an_accelerator_is_had_whole_or_in_slices_and_never_both() -> None:
    first, second = slice_slots(3, 2)
    assert taken_of([0, 3, first, second], [3]) == {3, first, second}
    assert taken_of([0, 3, first, second], [first]) == {3, first}
    assert taken_of([0, 1, *slice_slots(2, 2)], [3, first]) == set()
