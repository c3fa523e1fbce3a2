"""Attributes of PrimFuncs by which a back end tells the build what they are."""

from __future__ import annotations

KERNEL_ATTR = "octavo.kernel"
"""Attribute of a kernel's PrimFunc in a module: the kernel's name. It marks plain loops, without s_tir blocks."""

LLVM_ATTR = "octavo.llvm"
"""Attribute of a kernel's PrimFunc: functions in LLVM's language that it calls, as "linkonce_odr"."""

EXTERNAL_ATTR = "octavo.external"
"""Attribute of a kernel: the symbol of the function that it calls in an object file of the module's "external_mods"."""

RESULT_ATTR = "octavo.result"
"""Attribute of a kernel: what the memory that it writes holds. An entry as in quantize_info for each tensor, with the `shape`
under which the memory is that tensor, the order of the source's axes there (`axes`, None as in the source), and what was added
to the source's integers (`shift`). Several where later ops move nothing: a reshape, a transposition that NHWC makes needless."""

IN_PLACE_ATTR = "octavo.in_place"
"""Attribute of a kernel that reads each element of its first operand before it writes the result's element at the same place, and
never after: the two may be one memory."""

VIEW_ATTR = "octavo.view"
"""Attribute of a function of s_tir blocks that gives the elements of its operand in their order, under another shape."""

OPEN_ATTR = "octavo.open"
"""Attribute of a kernel whose statements read sizes that are known only when it runs."""

SCALAR_LOOPS_ATTR = "octavo.scalar_loops"
"""Attribute of a kernel that has vectors where they matter: LLVM is to make none of its other loops."""

SIZE_NAME = "size"
"""Name of the variables, in such a kernel, of what it computes of sizes: each is stored, and the next statement loads it."""

SIZES_ATTR = "octavo.sizes"
"""Attribute of such a kernel: the sizes that these variables hold, in their order, as text: expressions take long to read."""
