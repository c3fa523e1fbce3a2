// What functions of single elements are written of: kernels/elementwise.py has one text for each.
#pragma once
#include "float_function.cuh"
#include "neighbours.cuh"
#include "quantize.cuh"
