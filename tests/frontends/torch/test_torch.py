"""Torch programs: float ones go the whole way, PT2E ones straight to integers; identity, fingerprints, what is refused."""

import re
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest

import octavo
from octavo.errors import DataError, ModelError, UnsupportedOpError

SETUP = "needs PyTorch: make test-torch"
IMAGES = (50, 3, 32, 32)
"""What one call of a quantized program takes: PyTorch spends most of its time between ops."""


@pytest.fixture(scope="module")
def nets():
    pytest.importorskip("torch", reason=SETUP)
    import torch_nets

    return torch_nets


@pytest.fixture(scope="module")
def quantized(nets, patterns_once):
    return nets.quantize(nets.make_net(), {"is_per_channel": True}, IMAGES)


@pytest.fixture(scope="module")
def program(nets):
    import torch

    return nets.export(nets.make_net(), torch.zeros(nets.SHAPE))


def run(executable, x):
    [result] = executable(x).values()
    return result


# --------------------------------------------------------------------------------------------------- without PyTorch, too


@pytest.mark.parametrize("name", ["model.pt2", "weights.pt", "renamed.onnx"])
def test_files_of_pytorch_s_are_refused_unread(tmp_path: Path, name):
    path = tmp_path / name
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data.pkl", b"\x80\x02cos\nsystem\n")
    with pytest.raises(ModelError, match=r"can run code.*octavo\.load\(torch\.export\.load\(path\)\)"):
        octavo.load(path)


def test_an_old_pickle_is_refused_unread(tmp_path: Path):
    path = tmp_path / "net.pth"
    path.write_bytes(b"\x80\x02cos\nsystem\n")
    with pytest.raises(ModelError, match="can run code"):
        octavo.load(path)


# ----------------------------------------------------------------------------------------------------------------- float


def test_a_float_program_computes_what_pytorch_does(nets, program):
    import torch

    net = nets.make_net()
    executable = octavo.compile(octavo.load(program))
    for seed in range(3):
        x = torch.randn(nets.SHAPE, generator=torch.Generator().manual_seed(seed))
        expected = net(x).detach().numpy()
        assert np.abs(run(executable, x.numpy()) - expected).max() < 1e-6 * np.abs(expected).max() + 1e-6


def test_a_float_program_is_profiled_quantized_and_compiled(nets, program):
    import torch

    model = octavo.load(program)
    rng = np.random.default_rng(0)
    calibration = rng.standard_normal((32, *nets.SHAPE[1:])).astype(np.float32)
    qmodel = octavo.quantize(model, octavo.profile(model, [calibration]))
    explanation = octavo.explain(qmodel)
    assert [op for op in explanation.counted if not op.integer] == []
    executable, net = octavo.compile(qmodel), nets.make_net()
    x = rng.standard_normal((100, *nets.SHAPE)).astype(np.float32)
    ours = np.concatenate([run(executable, image) for image in x])
    theirs = net(torch.from_numpy(x[:, 0])).detach().numpy()
    noise = 10 * np.log10((theirs**2).sum() / ((ours - theirs) ** 2).sum())
    assert noise > 25, f"signal to quantization noise {noise:.1f} dB"


@pytest.mark.parametrize("results", [1, 2])
def test_what_tvm_s_own_frontend_imports_with_its_defaults(nets, results):
    """It binds the tuple of all results, of one too, to a variable and returns that."""
    import torch
    from tvm import relax
    from tvm.relax.frontend.torch import from_exported_program

    class Pooled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = torch.nn.Conv2d(3, 4, 3)

        def forward(self, x):
            image = torch.relu(self.conv(x))
            pooled = image.mean((2, 3))
            return (pooled, image) if results == 2 else pooled

    net = nets.seeded(Pooled())
    x = torch.randn(1, 3, 8, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # within torch.export and what TVM calls of it
        module = from_exported_program(torch.export.export(net, (x,)))
    assert isinstance(module["main"].ret_ty, relax.TupleType)
    model = octavo.load(module)
    assert len(set(model.output_names)) == len(model.output_ids) == results
    expected = net(x) if results == 2 else (net(x),)
    for ours, theirs in zip(octavo.compile(model)(x.numpy()).values(), expected, strict=True):
        np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_the_module_holds_plain_ops_under_the_names_of_the_program(nets, program):
    from tvm import relax

    model = octavo.load(program)
    assert [name.name_hint for name in model.module.get_global_vars()] == ["main"], "PrimFuncs are left"
    relax.analysis.well_formed(model.module)
    main = model.module["main"]
    variables = {str(binding.var.name) for block in main.body.blocks for binding in block.bindings}
    nodes = {node.name: node for node in program.graph.nodes}
    for name, node in nodes.items():
        if node.op == "call_function":
            entry = model.tensors[name]
            assert (entry.source_name, entry.op) == (name, str(node.target))
            assert name in variables
            assert entry.shape == tuple(node.meta["val"].shape)
    assert model.tensors["conv2d_2"].layer == "block.depthwise"
    for name, value in program.state_dict.items():
        key = model.tensors.find(name)
        assert key is not None, name
        if model.tensors[key].in_module:
            np.testing.assert_array_equal(model.params[key], value.detach().numpy())
    assert model.tensors[model.tensors.find("block.norm1.num_batches_tracked")].in_module is False
    assert model.tensors.find("p_stem_weight") == model.tensors.find("stem.weight")
    assert [str(name) for name in model.input_ids] == ["x"]
    assert model.source_format == "torch"


def test_the_fingerprint_is_that_of_the_program(nets, program):
    import torch

    first = octavo.load(program).fingerprint
    assert first == octavo.load(nets.export(nets.make_net(), torch.ones(nets.SHAPE))).fingerprint
    other = nets.make_net()
    with torch.no_grad():
        other.head.bias[0] += 1
    assert octavo.load(nets.export(other, torch.zeros(nets.SHAPE))).fingerprint != first
    other = nets.make_net()
    other.pool = torch.nn.AvgPool2d(2)
    assert octavo.load(nets.export(other, torch.zeros(nets.SHAPE))).fingerprint != first


def test_an_open_batch_is_1_or_as_asked(nets, tmp_path):
    import torch

    net = nets.make_net()
    example = torch.randn(3, *nets.SHAPE[1:], generator=torch.Generator().manual_seed(2))
    program = nets.export(net, example, dynamic_shapes=({0: torch.export.Dim("batch", min=1, max=64)},))
    expected = net(example).detach().numpy()
    for shapes in (None, {"x": (3, *nets.SHAPE[1:])}):
        executable = octavo.compile(octavo.load(program, shapes=shapes))
        np.testing.assert_allclose(run(executable, example.numpy()), expected, atol=1e-6)
    with pytest.raises(DataError, match="shape"):
        executable(example[:1].numpy())
    executable = octavo.compile(octavo.load(program))
    executable.save(tmp_path / "net.octavo")
    many = np.zeros((65, *nets.SHAPE[1:]), np.float32)
    for held in (executable, octavo.load_executable(tmp_path / "net.octavo")):
        with pytest.raises(DataError, match="input x holds 65 samples, the program was exported for 1 to 64; give as many"):
            held(many)
        with pytest.raises(DataError, match="input x holds 65 samples"):
            held({"x": many})
    with pytest.raises(ModelError, match=r"dimension batch is 65, the program was exported for \[1; 64\]"):
        octavo.load(program, shapes={"x": (65, *nets.SHAPE[1:])})
    with pytest.raises(ModelError, match=r"input 'x' has shape \(batch, 3, 32, 32\); \(1, 4, 32, 32\) does not fit it"):
        octavo.load(program, shapes={"x": (1, 4, 32, 32)})
    with pytest.raises(ModelError, match=r"no input \['y'\]; the inputs are \['x'\]"):
        octavo.load(program, shapes={"y": (1,)})


def test_what_samples_share_leaves_the_batch_open(nets):
    import torch

    class Net(torch.nn.Module):
        def __init__(self, shared):
            super().__init__()
            self.shared = shared

        def forward(self, x):
            return (x - x.mean(0 if self.shared else 1, keepdim=True)).relu()

    for shared in (False, True):
        dims = ({0: torch.export.Dim("batch", min=1, max=8)},)
        model = octavo.load(nets.export(Net(shared), torch.zeros(4, 3), dynamic_shapes=dims))
        assert model.any_batch == (not shared)
        assert model.sizes == ({"batch": (1, 8)} if shared else {})


def test_inputs_that_share_an_open_size_share_what_is_given(nets):
    import torch

    class Sum(torch.nn.Module):
        def forward(self, x, y):
            return x + y

    batch = torch.export.Dim("batch")
    program = nets.export(Sum(), torch.zeros(4, 3), torch.zeros(4, 3), dynamic_shapes=({0: batch}, {0: batch}))
    for shapes in ({"x": (6, 3)}, {"x": [6, 3], "y": (np.int64(6), 3)}):
        model = octavo.load(program, shapes=shapes)
        assert [model.tensors[name].shape for name in model.input_ids] == [(6, 3), (6, 3)]
    with pytest.raises(ModelError, match=r"of input 'y' is 5, and 6 elsewhere; give one size"):
        octavo.load(program, shapes={"x": (6, 3), "y": (5, 3)})
    for wrong in (5, None, "ab", (1.5, 3), (True, 3)):
        with pytest.raises(ModelError, match="expected a tuple of whole numbers and names as the shape of input 'x'"):
            octavo.load(program, shapes={"x": wrong})


@pytest.mark.parametrize(("bounds", "allowed"), [({}, (1, None)), ({"min": 2}, (1, None)), ({"min": 3, "max": 8}, (3, 8))])
def test_a_program_states_how_many_samples_a_call_may_hold(nets, bounds, allowed):
    import torch

    dims = ({0: torch.export.Dim("batch", **bounds)},)
    program = nets.export(torch.nn.Linear(3, 2), torch.zeros(4, 3), dynamic_shapes=dims)
    assert octavo.load(program).batch_range == allowed


def test_ops_in_place_keep_their_names(nets, monkeypatch):
    """Tracing the program anew takes many times as long as loading it, and renames its nodes."""
    import torch

    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(inplace=True))
    program = nets.export(nets.seeded(net), torch.zeros(nets.SHAPE))
    text = str(program.graph)
    monkeypatch.setattr(type(program), "run_decompositions", None)
    model = octavo.load(program)
    assert {"conv2d", "batch_norm", "relu_"} <= {tensor.source_name for tensor in model.tensors.values()}
    assert str(program.graph) == text


@pytest.mark.parametrize(
    ("config", "shape", "integer"),
    [
        ("Int8DynamicActivationInt8WeightConfig", (7, 64), True),
        ("Int8DynamicActivationInt8WeightConfig", (2, 5, 64), True),
        ("Int8WeightOnlyConfig", (2, 5, 64), False),
        ("Int8DynamicActivationIntxWeightConfig", (2, 5, 64), False),
        ("IntxWeightOnlyConfig", (7, 64), False),
    ],
)
def test_weights_that_torchao_replaced(nets, config, shape, integer):
    import torch

    torchao = pytest.importorskip("torchao.quantization", reason=SETUP, exc_type=ImportError)
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 32, bias=False)).eval()
    with torch.no_grad():
        net[0].weight[3] = 0.0
    torchao.quantize_(net, getattr(torchao, config)())
    example = torch.randn(shape)
    example[..., 0, :] = 0.0  # a row of zeros alone has the smallest scale
    model = octavo.load(nets.export(net, example))
    assert sum(tensor.dtype == "int8" and tensor.kind == "constant" for tensor in model.tensors.values()) >= 2
    executable = octavo.compile(model)
    products = [op for op in octavo.explain(executable).ops if op.macs]
    assert [op.integer for op in products] == [integer] * 2
    with torch.no_grad():
        wanted = net(example).numpy()
    (got,) = (
        executable(example.numpy()).values() if isinstance(executable(example.numpy()), dict) else [executable(example.numpy())]
    )
    np.testing.assert_allclose(got, wanted, atol=2e-6 * np.abs(wanted).max())


def test_an_open_batch_of_torchao_s_layers(nets):
    import torch

    torchao = pytest.importorskip("torchao.quantization", reason=SETUP, exc_type=ImportError)
    net = torch.nn.Sequential(torch.nn.Linear(32, 16)).eval()
    torchao.quantize_(net, torchao.Int8DynamicActivationInt8WeightConfig())
    batch = torch.export.Dim("batch", min=2, max=9)
    program = torch.export.export(net, (torch.randn(4, 32),), dynamic_shapes=({0: batch},))
    x = torch.randn(5, 32)
    got = octavo.compile(octavo.load(program))(x.numpy())
    with torch.no_grad():
        np.testing.assert_allclose(next(iter(got.values())), net(x).numpy(), atol=1e-5)


# ------------------------------------------------------------------------------------------------------------------ PT2E


@pytest.mark.parametrize("config", [{"is_per_channel": True}, {"is_per_channel": False}, {"act_qmin": -64, "act_qmax": 63}])
def test_a_pt2e_program_gives_pytorch_s_numbers(nets, quantized, config):
    import torch

    module, program = quantized if config == {"is_per_channel": True} else nets.quantize(nets.make_net(), config, IMAGES)
    model = octavo.load(program)
    weighted = [op for op in octavo.explain(model).ops if op.macs]
    assert len(weighted) == 8
    assert all(op.integer for op in weighted)
    executable = octavo.compile(model)
    calls = 10 if config == {"is_per_channel": True} else 1
    x = torch.randn(calls, *IMAGES, generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        theirs = np.concatenate([module(images).numpy() for images in x])
    ours = np.concatenate([run(executable, images.numpy()) for images in x])
    [step] = {node.args[1] for node in program.graph.nodes if node.name == program.graph_signature.user_outputs[0]}
    steps = np.rint(np.abs(ours - theirs) / step)
    assert steps.max() <= 2
    assert (steps == 0).mean() > 0.9
    assert (ours.argmax(1) == theirs.argmax(1)).mean() >= (0.99 if calls == 10 else 0.95)


def test_a_pt2e_program_keeps_its_names(quantized):
    model = octavo.load(quantized[1])
    for node in quantized[1].graph.nodes:
        if node.op == "call_function":
            assert model.tensors[node.name].in_module
    weight = model.tensors.find("_frozen_param0")
    assert model.params[weight].dtype == np.int8
    assert model.tensors[model.tensors.find("_scale_0")].in_module is False
    assert model.tensors[model.tensors.find("stem.weight")].in_module is False, "its integers are _frozen_param0"


def test_the_page_runs(quantized, capsys):
    page = (Path(__file__).resolve().parents[3] / "docs/pytorch.md").read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torchao's quantizer says that it is deprecated
        names = {}
        exec(compile(code, "docs/pytorch.md", "exec"), names)
    assert "100.0% of MACs" in capsys.readouterr().out
    assert names["model"].module["main"].params[0].ty.shape[0] == 1
    assert names["model"].sizes == {"height": (8, 512), "width": (8, None)}


# --------------------------------------------------------------------------------------------------------------- refused


def test_what_cannot_be_imported_is_named(nets):
    import torch
    from torch import nn

    class Apply(nn.Module):
        def __init__(self, function, *modules):
            super().__init__()
            self.function, self.modules_ = function, nn.ModuleList(modules)

        def forward(self, x):
            return self.function(x, *self.modules_)

    x = torch.randn(1, 4, 6, 6)

    def load(function, *modules, value=x):
        return octavo.load(nets.export(Apply(function, *modules), value))

    with pytest.raises(UnsupportedOpError, match=r"node 'nonzero' \(aten.nonzero.default\): there is no converter"):
        load(lambda x: torch.nonzero(x))
    with pytest.raises(UnsupportedOpError, match=r"result 1 of 'max_pool2d_with_indices' is not supported"):
        load(lambda x: nn.functional.max_pool2d(x, 2, return_indices=True)[1])
    with pytest.raises(ModelError, match=r"model.eval\(\)"):
        load(lambda x, norm: norm(x), nn.BatchNorm2d(4))
    with pytest.raises(ModelError, match=r"model.eval\(\)"):
        load(lambda x, drop: drop(x), nn.Dropout())
    with pytest.raises(ModelError, match=r"'x' is bfloat16, which is not supported; convert the model to float32"):
        load(lambda x: x + 1, value=x.bfloat16())
    for narrow in (torch.bfloat16, torch.float8_e5m2):  # in between: not computed without its roundings
        name = str(narrow).removeprefix("torch.")
        with pytest.raises(ModelError, match=rf"'to' is {name}, which is not supported; convert the model to float32"):
            load(lambda x, narrow=narrow: x.to(narrow).float() * 3)
    with pytest.raises(UnsupportedOpError, match=r"while_loop.*how often it runs is known at run time only"):
        load(lambda x: torch._higher_order_ops.while_loop(lambda y: y.sum() < 3, lambda y: (y + 1,), (x,))[0])
    with pytest.raises(UnsupportedOpError, match=r"it casts to torch\.bfloat16 what it computes; export .* without autocast"):
        load(torch.autocast("cpu", torch.bfloat16)(lambda x: x.matmul(x)))
    with pytest.raises(UnsupportedOpError, match="booleans say how many values are written"):
        load(lambda x: x.index_put((torch.tensor([True, False]),), x[:1]))
    with pytest.raises(ModelError, match="cannot load a Net; give a path"):
        octavo.load(nets.make_net())
