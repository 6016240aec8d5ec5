"""Node lists as Slurm writes them."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched.topology.nodelist import compress, expand

FORMS = {
    "n1": ["n1"],
    "n[1-3]": ["n1", "n2", "n3"],
    "n[1,3]": ["n1", "n3"],
    "n[08-11]": ["n08", "n09", "n10", "n11"],
    "n[8-11]": ["n8", "n9", "n10", "n11"],
    "n[098-101,7]": ["n098", "n099", "n100", "n101", "n7"],
    "a[1-2]b[3-4]": ["a1b3", "a1b4", "a2b3", "a2b4"],
    "rack[0-1]-node[01-02]-ib0": ["rack0-node01-ib0", "rack0-node02-ib0", "rack1-node01-ib0", "rack1-node02-ib0"],
    "login,gpu[1-2].site.edu,x9": ["login", "gpu1.site.edu", "gpu2.site.edu", "x9"],
    "n[1-2],m[1-2]": ["n1", "n2", "m1", "m2"],
    " n[1-2]\n": ["n1", "n2"],
    "[1-2]": ["1", "2"],
}


@pytest.mark.parametrize("text", FORMS, ids=repr)
def test_every_documented_form_is_written_out(text):
    assert list(expand(text)) == FORMS[text]


@pytest.mark.parametrize("text", ["", "(null)", "None assigned", "None", "N/A", "  "], ids=repr)
def test_no_nodes_have_several_words(text):
    assert expand(text) == ()


@pytest.mark.parametrize(
    ("text", "node"),
    [("linux[1,2]", "linux1"), ("alpha,beta,gamma", "alpha"), ("jean-zay-ia810", "jean-zay-ia810")],
)
def test_c25_the_first_node_is_found_in_lists_that_hands_got_wrong(text, node):
    assert expand(text)[0] == node


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("n[1-3", "never ends"),
        ("n1-3]", "too many"),
        ("n[[1]]", "too many"),
        ("n[]", "where a number"),
        ("n[1-]", "where a number"),
        ("n[a-c]", "where a number"),
        ("n[3-1]", "backwards"),
        ("n[1-003]", "padded differently"),
        ("n1,,n2", "empty name"),
        ("n1,", "empty name"),
        ("n1 n2", "no node's name"),
        ("n1;reboot", "no node's name"),
        ("block{b1}", "no node's name"),
    ],
)
def test_what_is_no_node_list_is_refused_and_shown(text, why):
    with pytest.raises(ValueError, match=why):
        expand(text)


@pytest.mark.parametrize("text", ["n[1-999999999]", "a[0-999]b[0-999]", "a[0-99]b[0-99]c[0-99]d[0-99]e[0-99]"])
def test_a_list_of_a_milliard_nodes_is_refused_without_writing_them_out(text):
    start_s = time.process_time()
    with pytest.raises(ValueError, match="more than 65536 nodes"):
        expand(text)
    assert time.process_time() - start_s < 0.5


def test_the_bound_is_the_callers():
    assert len(expand("n[1-10]", max_names=10)) == 10
    with pytest.raises(ValueError, match="more than 9"):
        expand("n[1-10]", max_names=9)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], ""),
        (["n1"], "n1"),
        (["n1", "n2", "n3", "n5"], "n[1-3,5]"),
        (["n08", "n09", "n10"], "n[08-10]"),
        (["n9", "n10"], "n[9-10]"),
        (["n09", "n9"], "n[09,9]"),
        (["r1n1-ib", "r1n2-ib"], "r1n1-ib,r1n2-ib"),
        (["r1n1", "r1n2", "r2n1"], "r1n[1-2],r2n1"),
        (["login", "login", "n1"], "login,login,n1"),
        (["n3", "n1", "n2"], "n[3,1-2]"),
    ],
)
def test_neighbours_share_a_bracket(names, text):
    assert compress(names) == text


@pytest.mark.parametrize("name", ["", "a b", "n[1]", "n1,n2", "n1\n", "é"])
def test_what_no_node_is_called_is_not_folded(name):
    with pytest.raises(ValueError, match="no node's name"):
        compress([name])


NAMES = st.from_regex(r"[a-z]{0,3}-?[0-9]{0,4}(-?[a-z]{1,2}[0-9]{0,3})?", fullmatch=True).filter(bool)
RUNS = st.builds(
    lambda prefix, low, count, width, suffix: [f"{prefix}{n:0{width}}{suffix}" for n in range(low, low + count)],
    st.sampled_from(["n", "gpu-", "r1n"]),
    st.integers(0, 1200),
    st.integers(1, 12),
    st.integers(1, 5),
    st.sampled_from(["", "-ib", ".site"]),
)


@given(
    st.lists(st.one_of(NAMES.map(lambda name: [name]), RUNS), max_size=8).map(
        lambda parts: [name for part in parts for name in part]
    )
)
def test_what_is_folded_is_written_out_the_same(names):
    assert list(expand(compress(names))) == names


@given(st.text(alphabet="n01[],- a", max_size=24))
def test_any_text_is_read_or_refused(text):
    try:
        names = expand(text)
    except ValueError:
        return
    assert list(expand(compress(names))) == list(names)
