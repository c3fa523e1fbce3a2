// What the CUDA C that TVM writes takes for granted.
#pragma once
#include "base.cuh"

#ifndef OCTAVO_EMULATED
using int8_t = signed char;
using uint8_t = unsigned char;
using int16_t = short;
using uint16_t = unsigned short;
using int32_t = int;
using uint32_t = unsigned int;
using int64_t = long long;
using uint64_t = unsigned long long;
#endif
#define uint unsigned int
#define uchar unsigned char
#define ushort unsigned short
