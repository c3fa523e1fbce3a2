"""Large parameters that a program has of a file that safetensors mapped stay where they are until they are packed."""

from mmap import PAGESIZE

import numpy as np
import pytest

import octavo
from octavo.ir.graph import model as model_module
from octavo.runtime.mapped import forget_pages

WIDTH = 520  # 1.08 MB


def aligned(array):
    """Return a copy at an address that kernels take."""
    found = np.zeros(array.size + 16, array.dtype)
    start = -found.ctypes.data % 64 // array.itemsize
    found[start : start + array.size] = array.ravel()
    return found[start : start + array.size].reshape(array.shape)


@pytest.mark.parametrize("is_large", [False, True])
def test_parameters_are_shared_at_any_address_and_count_as_copies_do(tmp_path, rng, monkeypatch, is_large):
    torch = pytest.importorskip("torch", reason="needs PyTorch: make test-torch")
    files = pytest.importorskip("safetensors.torch", reason="needs safetensors: make test-torch")
    if is_large:  # what runs it on samples reads matrices as they are
        monkeypatch.setattr(model_module, "_LARGE", 1)

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.Embedding(WIDTH, WIDTH)
            self.layer = torch.nn.Linear(WIDTH, WIDTH)

        def forward(self, tokens):
            return self.layer(torch.relu(self.table(tokens)))

    net, path = Net().eval(), tmp_path / "net.safetensors"
    files.save_file({**net.state_dict(), "a": torch.zeros(1)}, path)  # the header's length decides where values lie
    values = files.load_file(path)
    values.pop("a")
    tokens = torch.from_numpy(rng.integers(0, WIDTH, (1, 40)))
    found = []
    for read in (lambda value: value, lambda value: torch.from_numpy(aligned(value.numpy()))):
        net.load_state_dict({name: read(value) for name, value in values.items()}, assign=True)
        program = torch.export.export(net, (tokens,))
        model = octavo.load(program)
        weights = [value for value in model.params.values() if value.ndim == 2]
        assert all(np.shares_memory(value, program.state_dict[name].detach().numpy()) for name, value in named(model))
        is_aligned = all(value.ctypes.data % 64 == 0 for value in weights)
        profile = octavo.profile(model, [tokens.numpy()])
        floats = octavo.compile(model)(tokens.numpy())
        integers = octavo.compile(octavo.quantize(model, profile))(tokens.numpy())
        found.append((is_aligned, *floats.values(), *integers.values()))
    shared, copied = found
    assert (shared[0], copied[0]) == (False, True)
    np.testing.assert_array_equal(shared[1], copied[1])
    np.testing.assert_array_equal(shared[2], copied[2])
    want = net(tokens).detach().numpy()
    np.testing.assert_allclose(shared[1], want, rtol=0, atol=2e-6 * float(np.abs(want).max()))


def test_pages_of_a_mapped_file_are_given_back_and_what_was_written_stays(tmp_path, rng):
    torch = pytest.importorskip("torch", reason="needs PyTorch: make test-torch")
    files = pytest.importorskip("safetensors.torch", reason="needs safetensors: make test-torch")
    path, layers = tmp_path / "net.safetensors", torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(2))).eval()
    files.save_file(layers.state_dict(), path)
    layers.load_state_dict(files.load_file(path), assign=True)
    with torch.no_grad():
        layers[1].weight[WIDTH // 2] = 7.0
    before = [each.weight.detach().clone().numpy() for each in layers]
    model = octavo.load(torch.export.export(layers, (torch.zeros(1, WIDTH),)))
    for value in model.params.values():
        value.sum()  # reads it
    forget_pages()
    rows = [layer.weight.detach().numpy()[100:-100] for layer in layers]  # far from the other one's first page
    assert [resident(row) for row in rows] == [False, True]
    for weights, want in zip((value for value in model.params.values() if value.ndim == 2), before, strict=True):
        np.testing.assert_array_equal(weights, want)


def resident(array):
    """Return whether the system has memory for the pages of an array, all or none."""
    first, last = array.ctypes.data // PAGESIZE, (array.ctypes.data + array.nbytes - 1) // PAGESIZE
    with open("/proc/self/pagemap", "rb") as file:
        file.seek(8 * first)
        pages = np.frombuffer(file.read(8 * (last + 1 - first)), np.uint64)
    there = pages >> np.uint64(63) != 0
    assert there.all() or not there.any()
    return bool(there.all())


def named(model):
    """Return large constants of a model by the names that the program has for them."""
    return [(model.tensors[name].source_name, value) for name, value in model.params.items() if value.ndim == 2]
