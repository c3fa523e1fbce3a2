"""Ray: a connection to a cluster, and tasks whose workers make something once. It knows nothing of what the tasks do."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx

from ..errors import OctavoError
from ..frontends.load import load
from ..frontends.symbols import SizeOption
from ..ir.graph import Model

DEATHS = 10
"""How often one task may take its worker down before the run is given up: the task itself is to blame then."""
TFLITE = b"TFL3"
"""At byte 4 of every TFLite file, as its schema says."""


def model_content(path: Path) -> bytes:
    """Return a model as one file's bytes: what an ONNX file keeps beside it is drawn in."""
    content = path.read_bytes()
    return content if content[4:8] == TFLITE else onnx.load(path).SerializeToString()


def loaded(content: bytes, shapes: Mapping[str, Sequence[int | str]], sizes: Mapping[str, SizeOption]) -> Model:
    """Load a model whose content was sent, with shapes and sizes as `load` takes them."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        path.write_bytes(content)
        return load(path, shapes=shapes, sizes=sizes)


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


class Workers:
    """Tasks that share what each worker makes once, a model say: to make it for each takes longer than the task.

    Parameters
    ----------
    ray
        Connected.
    make, given
        Called with these in a worker, it returns what tasks share.
    cpus
        Of one task.
    lost
        Makes the error for a task whose workers keep dying.
    """

    def __init__(
        self, ray: Any, make: Callable[..., Any], given: tuple[Any, ...], *, cpus: int = 1, lost: Callable[[str], OctavoError]
    ) -> None:
        self.ray, self._lost = ray, lost
        pickled = importlib.import_module("ray.cloudpickle").dumps((make, given))
        # The reference in a list, so that a task fetches the work only where it must.
        self._sent = [ray.put(pickled), hashlib.sha256(pickled).hexdigest()]
        self._task = ray.remote(num_cpus=cpus, max_retries=DEATHS)(_run)
        self.width = max(1, int(ray.cluster_resources().get("CPU", 1)) // cpus)
        """How many tasks run at a time."""

    def submit(self, run: Callable[..., Any], *given: Any) -> Any:
        """Begin a task: what `run` returns of what workers share, and of this. Return the task, for Ray's functions too."""
        return self._task.options(name=run.__name__).remote(self._sent, run, given)

    def result(self, task: Any) -> Any:
        """Return what a task returned, or raise what it raised."""
        try:
            return self.ray.get(task)
        except self.ray.exceptions.RayTaskError as error:
            # What a task raised: ours is to be shown as it would be without a cluster.
            if isinstance(error.cause, OctavoError):
                raise error.cause from None
            raise
        except self.ray.exceptions.RayError as error:
            raise self._lost(type(error).__name__) from error


_MADE: dict[str, Any] = {}
"""Of this worker, by the digest of what it is made of."""


def _run(sent: list[Any], run: Callable[..., Any], given: tuple[Any, ...]) -> Any:
    """Run a task, in a worker."""
    reference, digest = sent
    if digest not in _MADE:
        _MADE.clear()  # a worker that outlives its tasks keeps nothing of them
        ray: Any = importlib.import_module("ray")
        make, of = importlib.import_module("pickle").loads(ray.get(reference))
        _MADE[digest] = make(*of)
    return run(_MADE[digest], *given)
