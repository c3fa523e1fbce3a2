"""Ray: a connection to a cluster, and what its tasks return or raise. It knows nothing of what the tasks do."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import onnx

from ..errors import OctavoError

DEATHS = 10
"""How often one task may take its worker down before the run is given up: the task itself is to blame then."""
TFLITE = b"TFL3"
"""At byte 4 of every TFLite file, as its schema says."""


def model_content(path: Path) -> bytes:
    """Return a model as one file's bytes: what an ONNX file keeps beside it is drawn in."""
    content = path.read_bytes()
    return content if content[4:8] == TFLITE else onnx.load(path).SerializeToString()


@contextlib.contextmanager
def connected(address: str | None, *, what: str, error_of: Callable[[str], OctavoError]) -> Generator[Any]:
    """Yield Ray, connected; a connection made here ends here.

    Parameters
    ----------
    address
        Of the cluster, as ray.init takes it. None: the one that RAY_ADDRESS names, or one started on this machine.
    what, error_of
        What needs Ray, and the error to raise where it isn't there.
    """
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError as error:
        raise error_of(f"{what} on a cluster needs Ray: pip install 'octavo[ray]'") from error
    if ray.is_initialized():
        yield ray
        return
    # A cluster that runs already has its dashboard, or none.
    started: dict[str, Any] = {} if address or os.environ.get("RAY_ADDRESS") else {"include_dashboard": False}
    try:
        ray.init(address=address, log_to_driver=False, configure_logging=False, **started)
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise error_of(f"cannot reach a Ray cluster at {address or 'this machine'}: {first}") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def result_of(ray: Any, reference: Any, *, lost: Callable[[str], OctavoError]) -> Any:
    """Return what a task returned, or raise what it raised; `lost` makes the error for one whose workers keep dying."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        # What a task raised: ours is to be shown as it would be without a cluster.
        if isinstance(error.cause, OctavoError):
            raise error.cause from None
        raise
    except ray.exceptions.RayError as error:
        raise lost(type(error).__name__) from error
