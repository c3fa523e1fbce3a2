"""Kernels: TIR kernels by ISA, each equal to its oracle in `numerics` bit for bit; they know no graph."""

from .....ir.composites.outputs import FloatOutput, FunctionOutput, Output, SumOutput
from .conv.bfloat16_conv2d import bfloat16_conv2d, bfloat16_matmul
from .conv.bfloat16_spec import Bfloat16Conv2dSpec
from .conv.conv2d import conv2d, matmul
from .conv.float_conv2d import can_observe, float_conv2d, float_matmul
from .conv.float_conv2d_transpose import FloatConv2dTransposeSpec, float_conv2d_transpose
from .conv.float_spec import FloatConv2dSpec
from .conv.spec import Conv2dSpec
from .conv.stored_weights import WeightDtype, fits
from .elementwise.add import add
from .elementwise.affine_rows import AffineRowsSpec, affine_rows
from .elementwise.float_elementwise import FloatElementwiseSpec, float_elementwise
from .elementwise.lookup import LookupSpec, lookup
from .elementwise.pair_lookup import PairLookupSpec, pair_lookup
from .elementwise.pairwise import PairwiseSpec, pairwise
from .elementwise.prelu import PreluSpec, prelu
from .elementwise.spec import AddSpec, Side
from .language.float_function import ElementExpressions
from .language.isa import (
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
    bfloat16_extension_of,
    extensions_of,
    isas_of,
    multiplies_bfloat16,
    scheduled,
    target_for,
)
from .language.kernel import Kernel
from .language.schedule import (
    NO_SCHEDULES,
    Schedule,
    Schedules,
    StrassenSchedule,
    TileSchedule,
    WindowSchedule,
    WinogradSchedule,
    schedule_of,
)
from .language.x86.table import without_vbmi
from .matmuls.batch_matmul import TILED_ROWS, batch_matmul, takes_views
from .matmuls.block_matmul import SYMMETRIC, BlockMatmulSpec, block_matmul
from .matmuls.block_rows import ROW_DIGITS, BlockRowsSpec, block_rows
from .matmuls.float_attention import FLOAT_ATTENTION, FloatAttentionSpec, float_attention
from .matmuls.float_batch_matmul import FloatBatchMatmulSpec, float_batch_matmul
from .matmuls.spec import BatchMatmulSpec
from .matmuls.x86_attention import ATTENTION, KNOWN_ATTENTION, AttentionSpec, attention, takes_attention
from .move.concat import ConcatSpec, concat
from .move.float_concat import FloatConcatSpec, dense_rows, float_concat
from .move.gather import GatherSpec, gather
from .move.half_concat import HalfConcatSpec, half_concat
from .move.padded_rows import PaddedAxis, padded_rows
from .move.take import TakeSpec, take
from .move.transpose import TransposeSpec, transpose
from .norms.channel_groups import ChannelGroups
from .norms.float_group_norm import FloatGroupNormSpec, float_group_norm
from .norms.float_layer_norm import FloatLayerNormSpec, float_layer_norm
from .norms.float_softmax import FloatSoftmaxSpec, SoftmaxAddend, float_softmax
from .norms.group_norm import GroupNormSpec, group_norm
from .norms.l2_normalize import L2NormalizeSpec, l2_normalize
from .norms.layer_norm import LayerNormSpec, layer_norm
from .norms.log_softmax import log_softmax
from .norms.softmax import softmax
from .norms.spec import SoftmaxSpec
from .observer.observe import observe
from .observer.statistics import ObserveSpec
from .pool.half_pool2d import HalfPool2dSpec, half_pool2d
from .pool.pool2d import Pool2dSpec, pool2d
from .quantization.dynamic import (
    ColumnsSpec,
    DynamicSpec,
    column_parameters,
    column_quantize,
    dynamic_parameters,
    dynamic_quantize,
)
from .quantization.half_cast import HalfCastSpec, half_cast
from .quantization.quantize import DequantizeSpec, QuantizeSpec, dequantize, quantize
from .quantization.relabel import RelabelSpec, relabel
from .quantization.requantize import RequantizeSpec, requantize
from .quantization.requantize_sums import requantize_sums
from .recurrent.recurrence import RecurrenceSpec, recurrence
from .reductions.float_reduce import FloatReduceSpec, float_reduce
from .reductions.reduce import ReduceSpec, reduce
from .resize.float_resize import FloatResizeSpec, float_resize_bilinear
from .resize.resize import ResizeSpec, resize_bilinear
from .resize.taps import float_tap_places, float_tap_weights, linear_taps
from .suppression.places import PlacesSpec, places
from .suppression.suppression import SuppressionSpec, suppression

__all__ = [
    "ARM_BF16",
    "ARM_DOTPROD",
    "ARM_I8MM",
    "ARM_NEON",
    "ATTENTION",
    "AVX2",
    "AVX512_BF16",
    "AVX512_VNNI",
    "AVX_VNNI",
    "FLOAT_ATTENTION",
    "GENERIC",
    "KNOWN_ATTENTION",
    "KNOWN_ISAS",
    "NO_SCHEDULES",
    "PORTABLE_TARGETS",
    "ROW_DIGITS",
    "SYMMETRIC",
    "TILED_ROWS",
    "AddSpec",
    "AffineRowsSpec",
    "AttentionSpec",
    "BatchMatmulSpec",
    "Bfloat16Conv2dSpec",
    "BlockMatmulSpec",
    "BlockRowsSpec",
    "ChannelGroups",
    "ColumnsSpec",
    "ConcatSpec",
    "Conv2dSpec",
    "DequantizeSpec",
    "DynamicSpec",
    "ElementExpressions",
    "FloatAttentionSpec",
    "FloatBatchMatmulSpec",
    "FloatConcatSpec",
    "FloatConv2dSpec",
    "FloatConv2dTransposeSpec",
    "FloatElementwiseSpec",
    "FloatGroupNormSpec",
    "FloatLayerNormSpec",
    "FloatOutput",
    "FloatReduceSpec",
    "FloatResizeSpec",
    "FloatSoftmaxSpec",
    "FunctionOutput",
    "GatherSpec",
    "GroupNormSpec",
    "HalfCastSpec",
    "HalfConcatSpec",
    "HalfPool2dSpec",
    "Kernel",
    "L2NormalizeSpec",
    "LayerNormSpec",
    "LookupSpec",
    "ObserveSpec",
    "Output",
    "PaddedAxis",
    "PairLookupSpec",
    "PairwiseSpec",
    "PlacesSpec",
    "Pool2dSpec",
    "PreluSpec",
    "QuantizeSpec",
    "RecurrenceSpec",
    "ReduceSpec",
    "RelabelSpec",
    "RequantizeSpec",
    "ResizeSpec",
    "Schedule",
    "Schedules",
    "Side",
    "SoftmaxAddend",
    "SoftmaxSpec",
    "StrassenSchedule",
    "SumOutput",
    "SuppressionSpec",
    "TakeSpec",
    "TileSchedule",
    "TransposeSpec",
    "WeightDtype",
    "WindowSchedule",
    "WinogradSchedule",
    "add",
    "affine_rows",
    "attention",
    "batch_matmul",
    "bfloat16_conv2d",
    "bfloat16_extension_of",
    "bfloat16_matmul",
    "block_matmul",
    "block_rows",
    "can_observe",
    "column_parameters",
    "column_quantize",
    "concat",
    "conv2d",
    "dense_rows",
    "dequantize",
    "dynamic_parameters",
    "dynamic_quantize",
    "extensions_of",
    "fits",
    "float_attention",
    "float_batch_matmul",
    "float_concat",
    "float_conv2d",
    "float_conv2d_transpose",
    "float_elementwise",
    "float_group_norm",
    "float_layer_norm",
    "float_matmul",
    "float_reduce",
    "float_resize_bilinear",
    "float_softmax",
    "float_tap_places",
    "float_tap_weights",
    "gather",
    "group_norm",
    "half_cast",
    "half_concat",
    "half_pool2d",
    "isas_of",
    "l2_normalize",
    "layer_norm",
    "linear_taps",
    "log_softmax",
    "lookup",
    "matmul",
    "multiplies_bfloat16",
    "observe",
    "padded_rows",
    "pair_lookup",
    "pairwise",
    "places",
    "pool2d",
    "prelu",
    "quantize",
    "recurrence",
    "reduce",
    "relabel",
    "requantize",
    "requantize_sums",
    "resize_bilinear",
    "schedule_of",
    "scheduled",
    "softmax",
    "suppression",
    "take",
    "takes_attention",
    "takes_views",
    "target_for",
    "transpose",
    "without_vbmi",
]
