from octavo.report.table import markdown_table


def test_columns_line_up_and_numbers_stand_right() -> None:
    table = markdown_table(("name", "ms"), [("LiteRT", "3.1"), ("x", "12.25")], numbers=(1,))
    assert table.splitlines() == [
        "| name   |    ms |",
        "| ------ | ----: |",
        "| LiteRT |   3.1 |",
        "| x      | 12.25 |",
    ]


def test_a_bar_in_a_cell_does_not_end_it() -> None:
    assert "a\\|b" in markdown_table(("name",), [("a|b",)])


def test_a_table_without_rows_is_its_header() -> None:
    assert markdown_table(("op", "x"), []).splitlines() == ["| op  | x   |", "| --- | --- |"]
