"""The public surface: whoever changes it changes this list, and so cannot do it by accident."""

import inspect
from importlib import metadata

import octavo
from octavo import errors

PUBLIC = {
    "Executable",
    "Explanation",
    "ImageFolder",
    "Lineage",
    "Model",
    "ModelBuilder",
    "OctavoError",
    "Profile",
    "QuantizationPlan",
    "Recipe",
    "TargetDescription",
    "__version__",
    "compile",
    "evaluate",
    "explain",
    "export_onnx",
    "fix",
    "layer_errors",
    "load",
    "load_executable",
    "observe",
    "partition",
    "profile",
    "quantize",
    "relax_pipeline",
    "root_causes",
    "search",
    "tune",
    "unobserve",
    "verify_lineage",
}
STAGES = ("load", "profile", "quantize", "compile", "load_executable", "explain", "export_onnx", "partition", "relax_pipeline")


def test_the_public_names_are_these() -> None:
    assert set(octavo.__all__) == PUBLIC
    assert len(octavo.__all__) == len(PUBLIC) <= 30


def test_stages_are_functions_and_not_the_packages_of_the_same_name() -> None:
    assert all(inspect.isfunction(getattr(octavo, name)) for name in STAGES)


def test_the_stages_take_what_the_design_says() -> None:
    parameters = {name: list(inspect.signature(getattr(octavo, name)).parameters) for name in STAGES}
    assert parameters == {
        "load": ["source", "shapes", "sizes", "values", "signature"],
        "profile": [
            "model",
            "batches",
            "target",
            "tensors",
            "threads",
            "numbers",
            "checkpoint",
            "every",
            "resume",
            "progress",
            "keep_samples",
            "state",
        ],
        "quantize": ["model", "profile", "target", "recipe", "params", "plan", "preset", "seconds"],
        "compile": ["model", "target", "threads", "precision", "profile", "recipe", "tuning", "block_activations"],
        "load_executable": ["path"],
        "explain": ["subject", "target", "precision", "profile", "recipe", "block_activations"],
        "export_onnx": ["model", "path", "ops"],
        "partition": ["model", "target"],
        "relax_pipeline": ["target", "threads", "ids"],
    }


def test_every_public_thing_is_documented() -> None:
    assert [name for name in PUBLIC - {"__version__"} if not inspect.getdoc(getattr(octavo, name))] == []


def test_every_error_is_an_octavo_error() -> None:
    kinds = {kind for _, kind in inspect.getmembers(errors, inspect.isclass)} - {errors.OctavoWarning, errors.QuantizationWarning}
    assert len(kinds) > 5
    assert all(issubclass(kind, octavo.OctavoError) for kind in kinds)


def test_the_version_is_the_package_s() -> None:
    assert octavo.__version__ == metadata.version("octavo")
