"""Which kernel and tiles a convolution gets, and that these give the oracle's integers."""

import numpy as np
import pytest
from cuda_conv2d_cases import SM61, SM75, SM80, SM90, Shape, conv2d_case, differing

from cuda_loops import model_layers, row_of
from octavo.compiler.backends.cuda.kernels.conv.conv2d import conv2d, product_of
from octavo.compiler.backends.cuda.kernels.matmuls.tile_choice import Product, best_tiling, clocks, resident_blocks, tilings

ALL = (SM61, SM75, SM80, SM90)


@pytest.mark.parametrize("isa", ALL, ids=lambda isa: isa.name)
def test_what_is_chosen_fits_the_chip(isa):
    for rows, columns, depth in ((12544, 64, 147), (49, 512, 4608), (1, 1000, 2048), (8192, 4096, 4096), (3, 5, 7)):
        product = Product(rows=rows, columns=columns, depth=depth)
        tiling, best = best_tiling(product, isa)
        blocks = resident_blocks(tiling, product, isa)
        assert blocks >= 1
        assert blocks * tiling.shared_bytes <= isa.shared_bytes
        assert blocks * tiling.threads <= isa.threads
        assert best <= min(clocks(each, product, isa) for each in tilings(product, isa))


@pytest.mark.parametrize("isa", [SM75, SM80, SM90], ids=lambda isa: isa.name)
def test_large_products_get_large_tiles_and_few_deep_ones_are_split(isa):
    large, _ = best_tiling(Product(rows=8192, columns=4096, depth=4096), isa)
    assert large.splits == 1
    assert np.prod(large.tile[:2]) >= 128 * 128
    assert best_tiling(Product(rows=49, columns=512, depth=4608), isa)[0].splits > 1
    assert best_tiling(Product(rows=49, columns=512, depth=4608, can_split=False), isa)[0].splits == 1


def test_more_multiprocessors_never_take_longer():
    product = Product(rows=784, columns=128, depth=1152)
    for tiling in tilings(product, SM80):
        assert clocks(tiling, product, SM90) <= 1.5 * clocks(tiling, product, SM80)


def test_small_groups_get_dot_products_and_whole_layers_tiles(rng):
    grouped = conv2d_case(rng, Shape(size=(56, 56), channels=(64, 64), kernel=(3, 3), padding=(1, 1, 1, 1), groups=64)).spec
    plain = conv2d_case(rng, Shape(size=(28, 28), channels=(128, 128), kernel=(3, 3), padding=(1, 1, 1, 1))).spec
    for isa in ALL:
        assert [call.kernel.name for call in conv2d(grouped, isa)] == ["conv2d_dot"]
        assert conv2d(plain, isa)[0].kernel.name == "conv2d_gemm"
    assert product_of(plain) == Product(rows=784, columns=128, depth=1152)


def test_windows_beyond_the_masks_get_dot_products(rng):
    case = conv2d_case(rng, Shape(size=(1, 40), channels=(16, 16), kernel=(1, 17)))
    assert conv2d(case.spec, SM80)[0].kernel.name == "conv2d_dot"


def test_what_is_chosen_gives_the_oracles_integers(rng):
    shapes = (
        Shape(
            size=(9, 9), channels=(3, 32), kernel=(7, 7), strides=(2, 2), padding=(3, 3, 3, 3), dtype="uint8", x_zero_point=114
        ),
        Shape(size=(7, 7), channels=(160, 96), kernel=(3, 3), padding=(1, 1, 1, 1), x_zero_point=-128),
        Shape(size=(1, 1), channels=(512, 100), weight_zero_points=True),
        Shape(size=(1, 40), channels=(16, 16), kernel=(1, 17)),
        Shape(size=(6, 6), channels=(32, 32), kernel=(3, 3), padding=(1, 1, 1, 1), groups=16),
    )
    cases = [(conv2d_case(rng, shape), lambda spec, isa=isa: conv2d(spec, isa)) for shape in shapes for isa in ALL]
    assert differing(cases) == []


def test_layers_of_a_model_are_read_and_compiled(shared):
    layers = model_layers(shared / "models" / "bench" / "mobilenet_v2_int8.tflite")
    assert sum(count for _, count in layers.values()) == 36  # 53 weighted layers without the 17 depthwise ones
    name, (spec, count) = max(layers.items(), key=lambda each: each[1][0].in_channels * each[1][0].out_channels)
    row = row_of("mobilenet_v2", name, spec, count, SM80)
    assert (row.spill_bytes, row.products > 0, row.kernel) == (0, True, "conv2d_gemm")
