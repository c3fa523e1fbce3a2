"""What tests that compare modules written in TVMScript share."""

from __future__ import annotations

import tvm


def without_attributes(module: tvm.IRModule, *names: str) -> tvm.IRModule:
    """Return the module without these attributes of its functions, which other tests look into."""
    stripped = module.clone()
    for var, function in module.functions_items():
        for name in names:
            function = function.without_attr(name) if function.attrs and name in function.attrs else function
        stripped.update_func(var, function)
    return stripped
