"""Loop nests of convolutions, whatever the registers: tiles, panels, blocks of rows, and how weights are packed for them."""
