"""Kernels: TIR kernels by ISA, each equal to its oracle in `numerics` bit for bit; they know no graph."""

from .....ir.composites.outputs import FloatOutput, FunctionOutput, Output, SumOutput
from .add import add
from .affine_rows import AffineRowsSpec, affine_rows
from .batch_matmul import batch_matmul, takes_views
from .bfloat16_conv2d import bfloat16_conv2d, bfloat16_matmul
from .bfloat16_spec import Bfloat16Conv2dSpec
from .channel_groups import ChannelGroups
from .concat import concat
from .conv2d import conv2d, matmul
from .dynamic import DynamicSpec, dynamic_parameters, dynamic_quantize
from .float_batch_matmul import FloatBatchMatmulSpec, float_batch_matmul
from .float_concat import FloatConcatSpec, float_concat
from .float_conv2d import can_observe, float_conv2d, float_matmul
from .float_conv2d_transpose import FloatConv2dTransposeSpec, float_conv2d_transpose
from .float_elementwise import FloatElementwiseSpec, float_elementwise
from .float_function import ElementExpressions
from .float_group_norm import FloatGroupNormSpec, float_group_norm
from .float_layer_norm import FloatLayerNormSpec, float_layer_norm
from .float_reduce import FloatMeanSpec, mean_in_order
from .float_resize import FloatResizeSpec, float_resize_bilinear
from .float_softmax import FloatSoftmaxSpec, float_softmax
from .float_spec import FloatConv2dSpec
from .gather import GatherSpec, gather
from .group_norm import GroupNormSpec, group_norm
from .half_cast import HalfCastSpec, half_cast
from .half_pool2d import HalfConcatSpec, HalfPool2dSpec, half_concat, half_pool2d
from .isa import (
    ARM_BF16,
    ARM_DOTPROD,
    ARM_I8MM,
    ARM_NEON,
    AVX2,
    AVX512_BF16,
    AVX512_VNNI,
    AVX_VNNI,
    GENERIC,
    KNOWN_ISAS,
    PORTABLE_TARGETS,
    Isas,
    bfloat16_extension_of,
    extensions_of,
    has_float_adders,
    isas_of,
    multiplies_bfloat16,
    scheduled,
    target_for,
)
from .l2_normalize import L2NormalizeSpec, l2_normalize
from .layer_norm import LayerNormSpec, layer_norm
from .log_softmax import log_softmax
from .lookup import LookupSpec, lookup
from .observe import observe
from .observe_statistics import ObserveSpec
from .pair_lookup import PairLookupSpec, pair_lookup
from .pairwise import PairwiseSpec, pairwise
from .pool2d import pool2d
from .prelu import PreluSpec, prelu
from .quantize import dequantize, quantize
from .reduce import ReduceSpec, reduce
from .relabel import relabel
from .requantize import requantize
from .requantize_sums import requantize_sums
from .resize import ResizeSpec, resize_bilinear
from .schedule import (
    NO_SCHEDULES,
    Schedule,
    Schedules,
    StrassenSchedule,
    TileSchedule,
    WindowSchedule,
    WinogradSchedule,
    schedule_of,
)
from .softmax import softmax
from .spec import (
    AddSpec,
    BatchMatmulSpec,
    ConcatSpec,
    Conv2dSpec,
    DequantizeSpec,
    Kernel,
    Pool2dSpec,
    QuantizeSpec,
    RelabelSpec,
    RequantizeSpec,
    Side,
    SoftmaxSpec,
)
from .stored_weights import WeightDtype, fits
from .take import TakeSpec, take
from .transpose import TransposeSpec, transpose
from .x86.table import without_vbmi

__all__ = [
    "ARM_BF16",
    "ARM_DOTPROD",
    "ARM_I8MM",
    "ARM_NEON",
    "AVX2",
    "AVX512_BF16",
    "AVX512_VNNI",
    "AVX_VNNI",
    "GENERIC",
    "KNOWN_ISAS",
    "NO_SCHEDULES",
    "PORTABLE_TARGETS",
    "AddSpec",
    "AffineRowsSpec",
    "BatchMatmulSpec",
    "Bfloat16Conv2dSpec",
    "ChannelGroups",
    "ConcatSpec",
    "Conv2dSpec",
    "DequantizeSpec",
    "DynamicSpec",
    "ElementExpressions",
    "FloatBatchMatmulSpec",
    "FloatConcatSpec",
    "FloatConv2dSpec",
    "FloatConv2dTransposeSpec",
    "FloatElementwiseSpec",
    "FloatGroupNormSpec",
    "FloatLayerNormSpec",
    "FloatMeanSpec",
    "FloatOutput",
    "FloatResizeSpec",
    "FloatSoftmaxSpec",
    "FunctionOutput",
    "GatherSpec",
    "GroupNormSpec",
    "HalfCastSpec",
    "HalfConcatSpec",
    "HalfPool2dSpec",
    "Isas",
    "Kernel",
    "L2NormalizeSpec",
    "LayerNormSpec",
    "LookupSpec",
    "ObserveSpec",
    "Output",
    "PairLookupSpec",
    "PairwiseSpec",
    "Pool2dSpec",
    "PreluSpec",
    "QuantizeSpec",
    "ReduceSpec",
    "RelabelSpec",
    "RequantizeSpec",
    "ResizeSpec",
    "Schedule",
    "Schedules",
    "Side",
    "SoftmaxSpec",
    "StrassenSchedule",
    "SumOutput",
    "TakeSpec",
    "TileSchedule",
    "TransposeSpec",
    "WeightDtype",
    "WindowSchedule",
    "WinogradSchedule",
    "add",
    "affine_rows",
    "batch_matmul",
    "bfloat16_conv2d",
    "bfloat16_extension_of",
    "bfloat16_matmul",
    "can_observe",
    "concat",
    "conv2d",
    "dequantize",
    "dynamic_parameters",
    "dynamic_quantize",
    "extensions_of",
    "fits",
    "float_batch_matmul",
    "float_concat",
    "float_conv2d",
    "float_conv2d_transpose",
    "float_elementwise",
    "float_group_norm",
    "float_layer_norm",
    "float_matmul",
    "float_resize_bilinear",
    "float_softmax",
    "gather",
    "group_norm",
    "half_cast",
    "half_concat",
    "half_pool2d",
    "has_float_adders",
    "isas_of",
    "l2_normalize",
    "layer_norm",
    "log_softmax",
    "lookup",
    "matmul",
    "mean_in_order",
    "multiplies_bfloat16",
    "observe",
    "pair_lookup",
    "pairwise",
    "pool2d",
    "prelu",
    "quantize",
    "reduce",
    "relabel",
    "requantize",
    "requantize_sums",
    "resize_bilinear",
    "schedule_of",
    "scheduled",
    "softmax",
    "take",
    "takes_views",
    "target_for",
    "transpose",
    "without_vbmi",
]
