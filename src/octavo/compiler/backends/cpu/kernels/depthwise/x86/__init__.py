"""Depthwise convolutions for x86: four taps at once by vpdpbusd, or two by vpmaddwd."""
