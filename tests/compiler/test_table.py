"""Tables as text: names too long for a column are cut, and different ones stay different."""

from octavo.compiler.text_table import markdown_table


def test_names_that_differ_in_their_middle_stay_different() -> None:
    names = [
        f"model_1/cq_t2010v2_1/{middle};model_1/cq_t2010v2_1/conv1d/Squeeze" for middle in ("conv1d_23", "conv1d_24", "stack")
    ]
    rows = [
        line.split("|")[1].strip() for line in markdown_table(("tensor",), [(name,) for name in names], names=(0,)).splitlines()
    ]
    assert len(set(rows[2:])) == 3
    assert all(len(row) < len(name) for row, name in zip(rows[2:], names, strict=True))


def test_names_that_differ_anywhere_stay_different() -> None:
    names = ["a" * 40 + f"{place:03}" + "b" * 40 for place in range(200)] + ["short"]
    table = markdown_table(("tensor",), [(name,) for name in [*names, names[0]]], names=(0,)).splitlines()[2:]
    assert len(set(table)) == 201
    assert table[0] == table[-1]
    assert table[200].split("|")[1].strip() == "short"
