"""Cases of the conformance suite, many in one module: a compilation for each would be most of a test's time."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import tvm
from tvm import relax

import octavo
from octavo.compiler.backends import Code, CodeGenerator, CSource
from octavo.evaluation import conformance
from octavo.ir.composites.attributes import read_composites
from octavo.ir.graph.dataflow import BodyWriter, DataflowView, replace_operands, write_function


def entries(folder: Path) -> list[dict[str, Any]]:
    """What the index says of each case."""
    return json.loads((folder / "index.json").read_text())["cases"]


def some(cases: Path, folder: Path, names: Collection[str], name_of: Callable[[str], str] = str) -> Path:
    """The index of these cases alone, which stay where they are; `name_of` says how a case is called in `names`."""
    index = json.loads((cases / "index.json").read_text())
    index["cases"] = [entry for entry in index["cases"] if name_of(entry["name"]) in names]
    folder.mkdir()
    (folder / "index.json").write_text(json.dumps(index))
    for entry in index["cases"]:
        (folder / entry["name"]).symlink_to(cases / entry["name"])
    return folder


def bordering(cases: Path, folder: Path) -> Path:
    """The cases at the borders, and every second of the others: some of each op."""
    names = [entry["name"] for entry in entries(cases)]
    borders = ("-ties", "-saturation", "-near_overflow", "-everything")
    return some(cases, folder, {*names[::2], *(name for name in names if name.endswith(borders))})


def joined(modules: list[tvm.IRModule]) -> tvm.IRModule:
    """One module that computes all, for one compilation: parameters and results one after the other."""
    views = [DataflowView(module["main"]) for module in modules]
    params = {old: relax.Var(f"c{i}_{old.name}", old.ty) for i, module in enumerate(modules) for old in module["main"].params}

    def body(writer: BodyWriter):
        new, results = dict(params), []
        for i, view in enumerate(views):
            for binding in view.bindings:
                is_output = not isinstance(binding.var, relax.DataflowVar)
                value = replace_operands(binding.value, lambda var: new.get(var, var))
                new[binding.var] = writer.emit(f"c{i}_{binding.var.name}", value, is_output=is_output)
            results.append(new[view.result])
        return relax.Tuple(results)

    builder = relax.BlockBuilder()
    write_function(builder, "main", list(params.values()), body, {"num_input": len(params)})
    return builder.get()


class OneFile(CodeGenerator):
    """A vendor whose functions for a model all lie in one C file, behind its kernels: one call of the compiler for all."""

    def __init__(self, vendor: CodeGenerator, model: octavo.Model, kernels: str) -> None:
        self.vendor, self.description = vendor, vendor.description
        parts = [kernels]
        for composite in read_composites(octavo.partition(model, target=vendor)).values():
            if composite.kind.startswith(f"{self.description.name}."):
                text = vendor.generate(composite).source.text  # pyright: ignore[reportAttributeAccessIssue] (it is C)
                assert text.startswith(kernels)
                parts.append(text.removeprefix(kernels))
        self.text = "\n".join(parts)

    def generate(self, composite: Any) -> Code:
        """Return what the vendor does, from the file of all."""
        code = self.vendor.generate(composite)
        return replace(code, source=CSource(text=self.text, symbol=composite.name))


def run_together(folder: Path, target_of: Callable[[octavo.Model], Any]) -> tuple[conformance.Report, octavo.Executable]:
    """Run the cases of a folder as one executable for a target, which may depend on the model."""
    cases = [conformance.Case(name=entry["name"], folder=folder / entry["name"]) for entry in entries(folder)]
    model = octavo.load(joined([case.module for case in cases]))
    executable = octavo.compile(model, target=target_of(model))
    given = {f"c{i}_{name}": value for i, case in enumerate(cases) for name, value in case.inputs.items()}
    results = dict(zip([case.name for case in cases], executable(given).values(), strict=True))
    return conformance.run(folder, lambda case, _: {"y": results[case.name]}), executable


def vendor_report(folder: Path, vendor: CodeGenerator, kernels: str) -> conformance.Report:
    """What a vendor's code gives for the cases of a folder; it must take them all. Its C starts with `kernels`."""
    report, executable = run_together(folder, lambda model: OneFile(vendor, model, kernels))
    assert {op.taker for op in octavo.explain(executable).ops} == {vendor.description.name}
    return report
