"""Ids: valid, unique, deterministic, and the source's own name wherever that can stand."""

import keyword

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.ir.identity import NameSupply, TensorEntry, TensorId, TensorTable, assign_ids


@pytest.mark.parametrize(
    ("source_name", "expected"),
    [
        ("conv1", "conv1"),
        ("features.0/Conv_output_0", "features_0_Conv_output_0"),
        ("/model/Relu", "model_Relu"),
        ("647", "t647"),
        ("onnx::Conv_12", "onnx_Conv_12"),
        ("model/activation/Relu;model/add/add", "model_activation_Relu"),
        ("class", "t_class"),
        ("R", "t_R"),
        ("lv3", "t_lv3"),
        ("gv", "t_gv"),
        ("größe", "gr_e"),
        ("", "tensor"),
        ("//", "tensor"),
        (";x", "x"),
    ],
)
def test_id_of_one_name(source_name, expected):
    assert assign_ids([source_name]) == (expected,)


def test_colliding_names_get_suffixes_in_order():
    assert assign_ids(["a/b", "a.b", "a:b"]) == ("a_b", "a_b_2", "a_b_3")


def test_a_valid_name_is_its_own_id_whatever_stands_before_it():
    assert assign_ids(["a/b", "a_b", "a_b_2", "a.b"]) == ("a_b_3", "a_b", "a_b_2", "a_b_4")


def test_equal_names_get_ids_of_their_own():
    assert assign_ids(["x", "x", "x"]) == ("x", "x_2", "x_3")


@given(st.lists(st.text(max_size=12)))
def test_ids_are_valid_unique_and_deterministic(names):
    ids = assign_ids(names)
    assert len(set(ids)) == len(ids) == len(names)
    assert all(i.isidentifier() and i.isascii() and not keyword.iskeyword(i) for i in ids)
    assert assign_ids(names) == ids


@given(st.lists(st.sampled_from(["a", "a_2", "a_3", "b"])))
def test_supply_hands_out_each_name_once(wishes):
    supply = NameSupply(["a"])
    names = [supply.fresh(wish) for wish in wishes]
    assert len({*names, "a"}) == len(names) + 1


def entry(name, **fields):
    return TensorEntry(
        id=TensorId(name), source_name=fields.pop("source_name", name), kind="activation", shape=(1,), dtype="float32", **fields
    )


def test_table_finds_source_names_and_aliases():
    table = TensorTable([entry("a", source_name="/a", aliases=("b", "c")), entry("d")])
    assert [table.find(name) for name in ("/a", "b", "c", "d", "a")] == ["a", "a", "a", "d", None]
    assert list(table) == ["a", "d"]
    assert len(table) == 2
    assert table[TensorId("a")].in_module
