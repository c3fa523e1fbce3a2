"""Every tensor of the source has an entry; every entry that claims a variable has exactly one, and that holds its value."""

import numpy as np
import onnx
import pytest
from tvm import relax

from octavo.frontends import load
from octavo.frontends.tflite import source as tflite_source
from reference_sessions import reference_session
from tvm_alone import tvm_alone

ONNX_MODELS = ["squeezenet1.1_224_fp32", "mobilenet_v2_1.0_224_fp32", "yolox_nano_416_fp32"]
TFLITE_MODELS = [
    "tflite/mobilenet_v2_1.0_224_uint8",
    "tflite/mobilenet_v1_0.25_128_uint8",
    "tflite/resnet8_cifar10_fp32",
    "tflite/resnet8_cifar10_int8",
    "tflite/dscnn_kws_fp32",
    "tflite/dscnn_kws_int8",
    "tflite/mobilenet_v1_vww96_fp32",
    "tflite/mobilenet_v1_vww96_int8",
    "tflite/autoencoder_ad01_fp32",
    "tflite/autoencoder_ad01_int8",
    "bench/mobilenet_v1_int8",
    "bench/inception_v3_int8",
]


def variables(model):
    """Name -> variables of that name in main; names of TVM's own must not occur."""
    main = model.module["main"]
    found = {}
    assert [type(block) for block in main.body.blocks] == [relax.DataflowBlock]
    for var in [*main.params, *(binding.var for binding in main.body.blocks[0].bindings)]:
        found.setdefault(var.name, []).append(var)
    return found


def check_form(model):
    relax.analysis.well_formed(model.module)
    assert [name.name_hint for name in model.module.get_global_vars()] == ["main"], "PrimFuncs are left"
    main = model.module["main"]
    found = variables(model)
    assert all(len(vars_) == 1 for vars_ in found.values())
    names = [param.name for param in main.params]
    count = int(main.attrs["num_input"])
    assert names[:count] == list(model.input_ids)
    assert names[count:] == list(model.params), "one parameter for each constant, in order"
    for name, value in model.params.items():
        ty = found[name][0].ty
        assert (tuple(int(d) for d in ty.shape), str(ty.dtype)) == (value.shape, str(value.dtype))
    read = set()
    for binding in main.body.blocks[0].bindings:
        relax.analysis.post_order_visit(binding.value, lambda e: read.add(e.name) if isinstance(e, relax.Var) else None)
    assert set(model.params) <= read, "a parameter is not read"


def check_entries(model):
    found = variables(model)
    for tensor_id, entry in model.tensors.items():
        assert entry.id == tensor_id
        assert (str(tensor_id) in found) == entry.in_module
        if entry.in_module:
            ty = found[str(tensor_id)][0].ty
            shape = tuple(int(d) for d in ty.shape)
            assert str(ty.dtype) == entry.dtype
            if entry.kind == "constant" and model.source_format == "tflite":
                assert np.prod(shape) == np.prod(entry.shape), "weights may be transposed, nothing else"
            else:
                assert shape == entry.shape
    outputs = [entry.id for entry in model.tensors.values() if entry.is_output]
    assert sorted(outputs) == sorted(model.output_ids)


@pytest.mark.parametrize("name", ONNX_MODELS)
def test_every_onnx_tensor(shared, name):
    path = shared / "models/onnx" / f"{name}.onnx"
    proto = onnx.load(path)
    model = load(path)
    check_form(model)
    check_entries(model)
    sources = {tensor.name for tensor in (*proto.graph.input, *proto.graph.initializer)}
    sources |= {output for node in proto.graph.node for output in node.output if output}
    assert {source for source in sources if model.tensors.find(source) is None} == set()
    named = [name for entry in model.tensors.values() for name in (entry.source_name, *entry.aliases)]
    assert sorted(named) == sorted(sources), "each source tensor in one entry, and nothing else"
    activations = {output for node in proto.graph.node for output in node.output}
    assert all(model.tensors[model.tensors.find(source)].in_module for source in activations)


@pytest.mark.parametrize("name", TFLITE_MODELS)
def test_every_tflite_tensor(shared, name):
    path = shared / "models" / f"{name}.tflite"
    graph = tflite_source.read(path.read_bytes(), str(path))
    model = load(path)
    check_form(model)
    check_entries(model)
    names = [tensor.name for tensor in graph.tensors]
    assert sorted(entry.source_name for entry in model.tensors.values()) == sorted(names)
    made = {graph.tensors[index].name for op in graph.ops for index in op.outputs}
    assert all(model.tensors[model.tensors.find(source)].in_module for source in made)
    weights = {
        graph.tensors[index].name
        for op in graph.ops
        if "CONV" in op.name or "FULLY" in op.name
        for index in op.inputs[1:]
        if index >= 0
    }
    assert {model.tensors.find(source) for source in weights} == set(model.params)


def test_values_of_onnx_intermediates(shared, expose):
    """The variable named after a tensor holds what ONNX Runtime computes for that tensor."""
    path = shared / "models/onnx/squeezenet1.1_224_fp32.onnx"
    model = load(path)
    wanted = [e for e in model.tensors.values() if e.kind == "activation"]
    proto = onnx.load(path)
    del proto.graph.output[:]
    proto.graph.output.extend(onnx.ValueInfoProto(name=entry.source_name) for entry in wanted)
    x = np.random.default_rng(0).standard_normal((1, 3, 224, 224)).astype(np.float32)
    expected = reference_session(proto).run(None, {"input": x})
    actual = tvm_alone(expose(model.bound(), [str(entry.id) for entry in wanted]), is_large=True)(x)
    assert len(actual) == len(wanted) > 60
    for entry, ours, theirs in zip(wanted, actual, expected, strict=True):
        assert ours.shape == theirs.shape
        assert np.abs(ours - theirs).max() <= 1e-5 * np.abs(theirs).max(), entry.id


def test_values_of_tflite_intermediates(shared, expose):
    """The variable named after a tensor holds what LiteRT computes for that tensor."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    path = shared / "models/tflite/resnet8_cifar10_fp32.tflite"
    model = load(path)
    x = np.load(shared / "data/cifar10/cifar10.npz")["x"][:1].astype(np.float32)
    # Without the XNNPACK delegate: that keeps no intermediate values.
    interpreter = Interpreter(
        str(path),
        experimental_preserve_all_tensors=True,
        experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
    )
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x)
    interpreter.invoke()
    theirs = {d["name"]: interpreter.get_tensor(d["index"]) for d in interpreter.get_tensor_details() if d["name"]}
    wanted = [e for e in model.tensors.values() if e.kind == "activation"]
    actual = tvm_alone(expose(model.bound(), [str(entry.id) for entry in wanted]), is_large=True)(x)
    assert len(wanted) == 16
    for entry, ours in zip(wanted, actual, strict=True):
        expected = theirs[entry.source_name]
        assert ours.shape == expected.shape
        assert np.abs(ours - expected).max() <= 1e-5 * np.abs(expected).max(), entry.id


def test_ids_do_not_depend_on_the_run(shared):
    path = shared / "models/onnx/yolox_nano_416_fp32.onnx"
    first, second = load(path), load(path)
    assert list(first.tensors.values()) == list(second.tensors.values())
    assert first.module.script() == second.module.script()
