"""Loop nests of products, whatever the registers: tiles, panels, strips, blocks of rows, and how weights are packed for them."""
