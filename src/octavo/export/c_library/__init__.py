"""A model as a C library: a folder with a header, source, objects, and what builds and uses them. Needs no TVM where it runs."""

from .export import CFolder, export_c
from .folder import check_folder, write_c_library
from .library import CLibrary, CTensor, Variant, variant_of

__all__ = ["CFolder", "CLibrary", "CTensor", "Variant", "check_folder", "export_c", "variant_of", "write_c_library"]
